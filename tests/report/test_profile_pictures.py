"""Curves and acceptance of a profile, as pictures and as text: all that is there is drawn, and nothing is cut."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import TABLE, invented
from tests.support.pictures import drawn
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.report.acceptance_figure import save_acceptance_figure
from treeopt.report.curve_figure import save_curve_figure
from treeopt.report.curve_text import LEAST_WIDTH, acceptance_text, curve_text
from treeopt.report.profile_words import labelled_acceptances

ROOT = Path(__file__).parents[2]
MANY = invented(conditions=[(context, batch) for context in (64, 256, 4096) for batch in (1, 2, 16)], verify_noise=0.2)
FLAT = invented(tables=[AcceptanceTable([0.7, 0.1])], others={"target": TABLE})
NAMES = {"a name of words " * 20: "long", "模型": "no glyph", "a$^_{b}$": "no formula"}
PROFILES = {
    "one": invented(verify_noise=0.3),
    "many": MANY,
    "flat": FLAT,
    "engine": Profile.load(ROOT / "tests/data/profile-engine.yaml"),
    "drafters": Profile.load(ROOT / "tests/data/profile-drafters.yaml"),
    "golden": Profile.load(ROOT / "tests/data/profile-golden.yaml"),
}


@pytest.mark.parametrize("name", PROFILES)
def test_pictures_name_what_they_show_and_nothing_is_cut(tmp_path: Path, name: str) -> None:
    profile = PROFILES[name]
    for save in (save_curve_figure, save_acceptance_figure):
        found = drawn(lambda path, save=save: save(profile, path), tmp_path / "a.png")
        said = " ".join(found.words)
        assert found.cut_off() == []
        assert found.overlapping() == []
        for text in (profile.pair.label, profile.machine.processor, profile.acceptances[0].rule, profile.created[:10]):
            assert text in said.replace("\n", " ")
        assert f"temperature {profile.acceptances[0].temperature:g}" in said


def test_long_and_strange_names_stay_within_the_picture(tmp_path: Path) -> None:
    for text in NAMES:
        profile = replace(FLAT, pair=replace(FLAT.pair, target=text))
        for save in (save_curve_figure, save_acceptance_figure):
            assert (
                drawn(lambda path, save=save, profile=profile: save(profile, path), tmp_path / "a.png").cut_off() == []
            )


def test_every_measured_count_is_a_point_with_its_interval(tmp_path: Path) -> None:
    profile = PROFILES["one"]
    found = drawn(lambda path: save_curve_figure(profile, path), tmp_path / "a.png")
    verification = found.figure.axes[0]
    table = profile.latencies[0].verify
    (container,) = verification.containers
    line = container.lines[0]
    assert line.get_xdata() == pytest.approx(table.tokens)
    assert line.get_ydata() == pytest.approx(1000 * table.medians_s)
    ends = np.array([segment[:, 1] for segment in container.lines[2][0].get_segments()])
    assert ends == pytest.approx(1000 * np.array([timing.interval_s for timing in table.timings]))
    samples = next(each for each in verification.lines if each.get_marker() == ".")
    assert len(samples.get_ydata()) == sum(len(timing.samples_s) for timing in table.timings)


def test_the_heat_map_is_the_table(tmp_path: Path) -> None:
    found = drawn(lambda path: save_acceptance_figure(invented(), path), tmp_path / "a.png")
    image = found.figure.axes[0].images[0].get_array()
    assert image.shape[:2] == TABLE.p.shape
    bright = image[..., :3] @ np.array([0.2126, 0.7152, 0.0722])
    order = np.argsort(-TABLE.p.ravel(), kind="stable")
    assert np.all(np.diff(bright.ravel()[order]) >= -1e-9)  # denser where more is accepted
    assert "70" in found.words


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_bytes_repeat(tmp_path: Path, suffix: str) -> None:
    for save in (save_curve_figure, save_acceptance_figure):
        written = []
        for number in range(2):
            save(FLAT, path := tmp_path / f"{number}.{suffix}")
            written.append(path.read_bytes())
        assert written[0] == written[1]


@pytest.mark.parametrize("width", [LEAST_WIDTH, 40, 80, 100, 200])
def test_text_fits_its_width(width: int) -> None:
    for profile in PROFILES.values():
        for text in (curve_text(profile, width), acceptance_text(profile, width)):
            assert max(map(len, text.splitlines())) <= width
            assert not any(line != line.rstrip() for line in text.splitlines())


def test_text_has_every_number() -> None:
    profile = PROFILES["one"]
    lines = curve_text(profile, 100).splitlines()
    table = profile.latencies[0].verify
    rows = [line.split() for line in lines if line.lstrip()[:1].isdigit()]
    assert [int(row[0]) for row in rows] == 2 * table.tokens.tolist()
    bars = [row[-1].count("█") for row in rows[: len(table.tokens)]]
    assert bars[-1] == max(bars)
    assert bars == pytest.approx(table.medians_s / table.medians_s.max() * max(bars), abs=0.51)
    map_lines = acceptance_text(profile, 100).splitlines()
    assert map_lines[-4].split() == ["1", "▓▓", "70", "▒▒", "15", "░░", "5.0"]


def test_what_is_left_out_of_a_narrow_map_is_said() -> None:
    wide = invented(tables=[AcceptanceTable([[0.3] + [0.02] * 30])])
    text = acceptance_text(wide, 60)
    assert "…" in text
    assert "left out: ranks from 7 on, to 30" in text
    assert "left out" not in acceptance_text(wide, 300)


def test_acceptance_at_several_contexts_has_labels_that_tell_them_apart():
    profile = Profile.load(Path(__file__).parents[1] / "data" / "profile-contexts.yaml")
    labels = [label for label, _ in labelled_acceptances(profile)]
    assert len(set(labels)) == len(labels) == 3
    assert [label.endswith("tokens of context") for label in labels] == [True, True, False]
