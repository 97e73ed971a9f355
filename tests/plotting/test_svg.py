"""SVG of figures: text, tooltips, and colours."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from treeopt.plotting.panels import Panel, compose
from treeopt.plotting.style import INK, LIGHT, SERIES, TREE, tint
from treeopt.plotting.svg import set_tooltips, svg_text

SVG = "{http://www.w3.org/2000/svg}"
MODEL = "模型 <b> & $x_1$"


def figure(names: tuple[str, ...] = ("first", "second", "third")) -> Figure:
    def draw(axes: Axes) -> None:
        for place, colour in enumerate(SERIES):
            axes.plot([0, 1, 2], [place, 1 + place, place], color=colour, label=f"series {place}")
        dots = axes.scatter([0, 1, 2], [1.5, 2.5, 1.5], s=40, color=tint(0.5))
        set_tooltips(dots, *names)
        (bar,) = axes.bar(1, 3, 0.2, color=INK)
        set_tooltips(bar, MODEL)

    return compose([Panel(draw=draw, title="", x="tokens", y="ms")])


def elements(text: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter())


def test_text_is_text_and_no_font_is_embedded() -> None:
    root = elements(svg_text(figure()))
    texts = [each.text for each in root if each.tag == f"{SVG}text"]
    assert {"tokens", "ms", "series 0", "series 4"} <= set(texts)
    assert not [each for each in root if "font-face" in each.tag or each.tag == f"{SVG}style"]


@pytest.mark.parametrize("on_page", [False, True])
def test_every_mark_has_its_own_tooltip(on_page: bool) -> None:
    text = svg_text(figure(), name="a", on_page=on_page)
    prefix = "" if on_page else SVG
    tips = {
        tuple(round(float(each.get(axis, 0))) for axis in "xy"): title.text
        for each in elements(text)
        if each.tag == f"{prefix}use" and (title := each.find(f"{prefix}title")) is not None
    }
    assert [name for _, name in sorted(tips.items())] == ["first", "second", "third"]
    (bar,) = (
        each for each in elements(text) if (found := each.find(f"{prefix}title")) is not None and found.text == MODEL
    )
    assert bar.find(f"{prefix}path") is not None


def test_wrong_number_of_tooltips() -> None:
    with pytest.raises(ValueError, match="zip"):
        svg_text(figure(("first", "second")))


def test_a_page_sets_every_colour_and_has_no_inline_style() -> None:
    text = svg_text(figure(), name="a", on_page=True)
    assert "style=" not in text
    assert not re.findall(r"#[0-9a-f]{6}", text)
    used = set(re.findall(r"var\(--(\w+)\)", text))
    assert {"tree", "chain", "s3", "s4", "s6", "ink", "muted", "pale"} <= used <= set(LIGHT)
    assert "color-mix(in srgb,var(--tree) 50%,var(--panel))" in text


def test_files_have_colours_and_a_white_background() -> None:
    text = svg_text(figure())
    assert "var(" not in text
    assert f'stroke="{TREE}"' in text
    assert elements(text)[1].get("fill") == "#ffffff"


def test_ids_are_unique_and_references_resolve() -> None:
    ids = []
    for name in ("one", "two"):
        text = svg_text(figure(), name=name, on_page=True)
        own = re.findall(r' id="([^"]+)"', text)
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) == set(own)
        assert all(each.startswith(f"{name}_") for each in own)
        ids += own
    assert len(ids) == len(set(ids)) > 2


def test_rounding_keeps_line_positions() -> None:
    def draw(axes: Axes) -> None:
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.plot(np.linspace(0, 1, 11), np.linspace(0, 1, 11) ** 2, color=TREE, label="x")

    root = elements(svg_text(compose([Panel(draw=draw, title="", x="", y="", height=200.0, left=50.0)])))
    line = next(each for each in root if each.get("stroke") == TREE)
    points = re.findall(r"([\d.]+) ([\d.]+)", line.get("d", "").replace("H", " ").replace("V", " "))
    x, y = np.array([[float(one), float(other)] for one, other in points]).T
    shares = (x - x[0]) / (x[-1] - x[0])
    assert (y[0] - y) / (y[0] - y[-1]) == pytest.approx(shares**2, abs=0.002)
