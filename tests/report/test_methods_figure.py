"""The figure of `bench methods`: every row is told, those that did not run too, and nothing is covered."""

from pathlib import Path

from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from tests.support.pictures import Picture, box, common, drawn
from treeopt.pictures.style import INK, SERIES
from treeopt.records.results import NotRun, Row
from treeopt.report.methods_figure import save_methods_figure

TITLE = "a-target-with-a-long-name-instruct-v0.3 + a-draft-with-a-long-name on NVIDIA H100 80GB HBM3"
REASON = "its heads are of another target. Train some for this one, or leave it out. " * 4


def row(method: str, temperature: float, speedup: float, predicted: float, rule: str = "sequoia") -> Row:
    return Row(
        method=method,
        rule=rule,
        temperature=temperature,
        setting="a setting",
        tokens_per_step=2.0,
        step_s=0.002,
        draft_s=0.001,
        verify_s=0.001,
        overhead_s=0.0,
        rounds=4,
        tokens_per_s=1000.0,
        speedup=speedup,
        predicted_speedup=predicted,
        lossless=True,
        evidence="",
    )


ROWS = [
    row("plain", 0.0, 1.0, 1.0),
    row("a-method-with-a-long-name", 0.0, 2.0, 2.05, "traversal"),
    NotRun(method="heads", temperature=0.0, reason=REASON),
    row("plain", 0.6, 1.0, 1.0),
    row("a-method-with-a-long-name", 0.6, 1.5, 1.9, "specinfer"),
    row("heads", 0.6, 1.2, 1.1),
]


def picture(rows: list[Row | NotRun], path: Path) -> Picture:
    return drawn(lambda at: save_methods_figure(rows, at, title=TITLE), path)


def test_every_row_is_told_and_nothing_is_covered_or_cut(tmp_path: Path) -> None:
    found = picture(ROWS, tmp_path / "methods.png")

    assert TITLE.replace(" ", "") in "".join(found.words).replace(" ", "")
    for text in ("2.00", "1.50", "1.20", "temperature 0", "temperature 0.6", "predicted", "traversal, specinfer"):
        assert text in found.words
    (reason,) = (text for text in found.words if text.startswith("not run: its heads are of another target."))
    assert reason.endswith(" …")
    assert found.cut_off() == []
    assert found.overlapping() == []
    axes = found.figure.axes[0]
    assert not common(axes.get_legend().get_window_extent(), axes.bbox)


def test_bars_end_at_what_was_measured_and_marks_stand_at_what_was_predicted(tmp_path: Path) -> None:
    axes = picture(ROWS, tmp_path / "methods.png").figure.axes[0]

    bars = [(to_hex(bar.get_facecolor()), bar.get_width()) for bar in axes.patches]
    assert bars == [(SERIES[0], 1.0), (SERIES[0], 2.0), (SERIES[1], 1.0), (SERIES[1], 1.5), (SERIES[1], 1.2)]
    marks = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert {to_hex(colour) for each in marks for colour in each.get_colors()} == {INK}
    assert [line[0, 0] for each in marks for line in each.get_segments()] == [1.0, 2.05, 1.0, 1.9, 1.1]
    assert all(each.get_path_effects() for each in marks)  # a rim, so that they are seen on every bar


def test_numbers_stand_beside_their_bars_and_clear_of_the_marks(tmp_path: Path) -> None:
    found = picture(ROWS, tmp_path / "methods.png")
    axes = found.figure.axes[0]
    numbers = [
        text for text in found.texts if isinstance(text, Annotation) and text.get_text() in ("2.00", "1.50", "1.20")
    ]
    assert len(numbers) == 3
    for text in numbers:
        starts, predicted = box(text).x0, {"2.00": 2.05, "1.50": 1.9, "1.20": 1.1}[text.get_text()]
        bar, mark = (axes.transData.transform((x, 0))[0] for x in (float(text.get_text()), predicted))
        assert bar < starts
        assert not starts - 1 < mark < box(text).x1 + 1


def test_nothing_that_ran_is_a_picture_too(tmp_path: Path) -> None:
    found = picture([NotRun(method="heads", temperature=0.0, reason=REASON)], tmp_path / "methods.png")
    assert found.cut_off() == []


def test_equal_rows_give_equal_bytes_and_control_characters_a_readable_file(tmp_path: Path) -> None:
    from xml.dom import minidom

    rows = [row("pl\x1bain", 0.0, 1.0, 1.0, rule="\x00"), NotRun(method="heads", temperature=0.0, reason="no\x07pe")]
    for name in ("a.svg", "b.svg"):
        save_methods_figure(rows, tmp_path / name, title="\x1b[2J")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert minidom.parse(str(tmp_path / "a.svg")).documentElement.tagName == "svg"
