"""Style: colours for all kinds of colour vision, and fitted text."""

import numpy as np
import pytest

from treeopt.plotting import style
from treeopt.plotting.style import DARK, LIGHT, PAPER, Heading, cut_text, printable_glyphs, text_width, wrap_text

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as seen without red and without green receptors.
VISIONS = {
    "all": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
APART = 17.0
"""Distance in CIE L*a*b* from which colours of small marks are distinguished at a glance; 2.3 is just noticed."""


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str) -> float:
    """Return the least distance of two colours over all kinds of vision."""
    return min(
        float(np.linalg.norm(lab(vision @ linear(one)) - lab(vision @ linear(other)))) for vision in VISIONS.values()
    )


def closest(colours: tuple[str, ...]) -> float:
    return min(distance(one, other) for i, one in enumerate(colours) for other in colours[:i])


def test_colours_are_distinguishable_with_colour_blindness() -> None:
    assert closest(style.SERIES) > APART
    assert closest((style.TREE, style.CHAIN, style.PLAIN, style.WHITE)) > APART
    for bar in style.SERIES:  # what is marked on bars is dark with a white rim
        assert distance(style.INK, bar) > APART
        assert distance(style.WHITE, bar) > APART


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_colours_are_distinguishable_with_colour_blindness(theme: str) -> None:
    colours = LIGHT if theme == "light" else DARK
    assert set(LIGHT) == set(DARK)
    assert closest(tuple(colours[each] for each in ("tree", "chain", "s3", "s4", "s6"))) > APART
    for paper in (PAPER[theme], colours["panel"]):
        assert closest((colours["tree"], colours["chain"], colours["muted"], paper)) > APART
        assert closest((colours["choice"], colours["tree"], paper, colours["ink"])) > APART
        for text in (colours["ink"], colours["muted"]):  # WCAG 2.2, 1.4.3: contrast of text
            bright, dim = sorted((luminance(text), luminance(paper)), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) > 4.5


def luminance(colour: str) -> float:
    return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour))


def test_choice_is_visible_on_the_map() -> None:
    for share in np.linspace(0, 1, 11):
        assert distance(style.CHOICE, style.tint(share)) > 30


@pytest.mark.parametrize(
    "colours", [("#0f5a54", "#b0702a", "#6b7fae", "#8a5a8c"), ("#c8102e", "#6b8e23"), ("#d62728", "#2ca02c")]
)
def test_indistinguishable_colours_fail(colours: tuple[str, ...]) -> None:
    assert closest(colours) < APART


@pytest.mark.parametrize("text", ["one two three four five six seven", "a" * 60, "short", "a " + "b" * 50 + " c"])
def test_wrapped_text_is_complete_and_fits(text: str) -> None:
    lines = wrap_text(text, 90, 9)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(text_width(line, 9) for line in lines) <= 90
    assert all(lines)


@pytest.mark.parametrize("text", ["short", "a" * 60, "模型" * 50, "", "one two three four five six seven"])
def test_cut_text_fits_and_ends_in_an_ellipsis(text: str) -> None:
    line = cut_text(text, 90, 9)
    assert text_width(line, 9) <= 90
    assert line == text if text_width(printable_glyphs(text), 9) <= 90 else line.endswith("…")
    assert printable_glyphs(text).startswith(line.removesuffix("…"))


def test_bold_letters_are_wider() -> None:
    assert text_width("mmm", 10, bold=True) > text_width("mmm", 10) == pytest.approx(0.5 * text_width("mmm", 20))


def test_characters_that_figures_cannot_contain_are_replaced() -> None:
    assert printable_glyphs("a\x1b[31m\x00b\ud800\nc\td") == "a\ufffd[31m\ufffdb\ufffd c d"
    assert printable_glyphs("模型 + größe, 0.5\u2009%") == "\ufffd\ufffd + größe, 0.5\u2009%"


def test_heading_height_follows_its_lines() -> None:
    heights = [
        Heading.wrap(title, subtitle, width=200).height
        for title, subtitle in (("", ""), ("a", ""), ("a", "b"), ("a " * 60, "b"), ("a " * 60, "b " * 60))
    ]
    assert heights == sorted(set(heights))
