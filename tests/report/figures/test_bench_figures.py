"""Figures of benches and loads: every measurement is drawn, and no text is cut or covered."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch

from tests.support.figures import DrawnFigure, box, common, seen
from tests.support.pages import BATCHES, ENGINE, GRID, MEASURED, METHODS, ROW, batch_row, bench_of, planned
from treeopt.plotting.panels import Panel, compose
from treeopt.plotting.style import CHAIN, CHOICE, INK, MUTED, TREE
from treeopt.records.bench_file import GridTree, MethodsBench
from treeopt.records.latency import Estimate
from treeopt.records.results import NO_PREDICTION, BatchSize, NotRun, TreePrediction
from treeopt.report.figures.benches import (
    batches_panels,
    engine_panel,
    grid_panel,
    methods_panels,
    rates_by_batch_size,
    tree_colours,
    trees_panel,
)
from treeopt.report.figures.rows import ROW as ROW_HEIGHT
from treeopt.report.figures.rows import SpeedupRow, axis_end, speedup_panel
from treeopt.trees import chain, level_widths

REASON = "its heads are of another target. Train some for this one, or leave it out. " * 4
OTHER = replace(
    ROW, method="a-method-with-a-long-name", temperature=0.6, rule="specinfer", speedup=1.5, predicted_speedup=1.9
)


def drawn_panels(*panels: Panel) -> DrawnFigure:
    return seen(compose(panels, title="a-target-with-a-long-name + a-draft on a machine", columns=2))


FIGURES = {
    "trees": [
        trees_panel(
            [
                bench_of(planned(), 1.5),
                bench_of(
                    planned(),
                    0.5,
                    drafter="medusa",
                    predicted=TreePrediction(tokens_per_step=None, step_s=None, speedup=1.4),
                ),
            ]
        )
    ],
    "grid": [grid_panel(GRID)],
    "grid after plain decoding": [grid_panel(replace(GRID, plain_is_fastest=True))],
    "methods": methods_panels(
        MethodsBench(rows=(ROW, OTHER), not_run=(NotRun(method="heads", temperature=0.0, reason=REASON),))
    ),
    "engine": [engine_panel([ENGINE, ENGINE])],
    "batches": batches_panels(BATCHES),
    "one batch size": batches_panels(replace(BATCHES, sizes=BATCHES.sizes[1:])),
}


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_or_covered(name: str) -> None:
    drawn = drawn_panels(*FIGURES[name])
    assert drawn.cut_off() == []
    assert drawn.overlapping() == []


def rows_of(axes: Axes) -> list[tuple[str, float, str]]:
    """Return the name, the end and the colour of every bar."""
    names = {int(text.get_position()[1]): text.get_text() for text in axes.texts if text.get_position()[0] == 0}
    return [
        (names[int(bar.get_y())], bar.get_width(), to_hex(bar.get_facecolor()))
        for bar in axes.patches
        if bar.get_width()
    ]


def marks_of(axes: Axes) -> list[float]:
    """Return where predictions are marked."""
    return [
        float(line.get_xdata()[0])
        for line in axes.lines
        if line.get_color() == INK and len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]
    ]


def test_bars_end_at_measurements_and_marks_are_at_predictions() -> None:
    rows = [
        SpeedupRow(name="a", predicted=1.8, measured=1.7),
        SpeedupRow(name="b", predicted=Estimate(2.0, 1.9, 2.1), measured=Estimate(2.2, 2.1, 2.3), chosen=True),
        SpeedupRow(name="c", predicted=Estimate(1.2, 1.1, 1.3)),
        SpeedupRow(name="d", reason="not run: no room"),
    ]
    drawn = drawn_panels(speedup_panel(rows, "t"))
    axes = drawn.figure.axes[0]
    assert rows_of(axes) == [("a", 1.7, TREE), ("★ b", 2.2, CHOICE), ("c", 1.2, TREE)]
    assert marks_of(axes) == [1.8, 2.0]
    intervals = [
        line.get_xdata()
        for line in axes.lines
        if line.get_color() == INK and len(set(line.get_ydata())) == 1 and len(line.get_ydata()) == 2
    ]
    assert np.array(intervals) == pytest.approx(np.array([(2.1, 2.3), (1.1, 1.3)]))
    legend = {"measured", "measured, the choice", "predicted", "prediction", "95\u2009% interval", "plain decoding"}
    assert legend | {"not run: no room"} <= set(drawn.words)
    alone = seen(compose([speedup_panel(rows[2:3], "t")])).words
    assert "predicted" in alone
    assert not {"measured", "prediction"} & set(alone)


def test_numbers_do_not_overlap_bars_and_marks() -> None:
    rows = [
        SpeedupRow(name=f"{place}", predicted=1.5 + shift, measured=1.5)
        for place, shift in enumerate((0.0, 0.02, 0.1, 0.5, -0.2))
    ]
    drawn = drawn_panels(speedup_panel(rows, "t"))
    axes = drawn.figure.axes[0]
    numbers = [text for text in axes.texts if text.get_text() == "1.50"]
    assert len(numbers) == 5
    for text, row in zip(numbers, rows, strict=True):
        bounds = box(text)
        (mark, _) = axes.transData.transform((row.predicted, 0))
        assert bounds.x0 > axes.transData.transform((1.5, 0))[0]
        assert not bounds.x0 - 1 < mark < bounds.x1 + 1


def test_bars_are_visible_with_an_infinite_interval() -> None:
    rows = [
        SpeedupRow(name="a", predicted=Estimate(1.5, 0.1, 1e9)),
        SpeedupRow(name="b", predicted=Estimate(2.0, 1.9, 2.1)),
    ]
    drawn = drawn_panels(speedup_panel(rows, "t"))
    assert drawn.figure.axes[0].get_xlim()[1] == axis_end([1.5, 2.0], [1e9, 2.1]) < 5
    assert drawn.cut_off() == []


def test_methods_have_a_panel_for_each_temperature_and_reasons_in_their_rows() -> None:
    drawn = drawn_panels(*FIGURES["methods"])
    first, second = drawn.figure.axes
    assert rows_of(first) == [("medusa: tree of 8 nodes, rule target", 1.7, TREE)]
    assert rows_of(second)[0][1] == 1.5
    (reason,) = (text for text in drawn.words if text.startswith("not run: its heads are of another target."))
    assert reason.endswith("…")
    assert [panel.title for panel in methods_panels(METHODS)] == ["Methods at temperature 0"]


def test_grid_points_are_predictions_and_measurements() -> None:
    drawn = drawn_panels(grid_panel(GRID))
    axes = drawn.figure.axes[0]
    points = {
        tuple(map(float, point)) for dots in axes.collections for point in np.asarray(dots.get_offsets()).round(6)
    }
    assert {(1.5, 1.6), (1.3, 1.4)} <= points
    (intervals,) = (patch for patch in axes.patches if isinstance(patch, PathPatch))
    ends = intervals.get_path().vertices.reshape(2, 2, 2)
    assert ends == pytest.approx(np.array([[[1.5, 1.5], [1.5, 1.7]], [[1.3, 1.3], [1.3, 1.5]]]))
    assert {"4/2", "3/2", "trees", "chains", "choice of the plan"} <= set(drawn.words)
    assert "fastest tree" in seen(compose(FIGURES["grid after plain decoding"])).words


def test_every_point_of_a_grid_is_labelled_and_no_label_covers_a_point_or_the_diagonal() -> None:
    generator = np.random.default_rng(0)
    trees = [chain(depth) for depth in range(1, 12)] + [level_widths([2] * depth) for depth in range(1, 5)]
    rows = tuple(
        GridTree(
            tree=tree,
            predicted=TreePrediction(tokens_per_step=2.0, step_s=0.01, speedup=float(predicted)),
            measured=replace(MEASURED, speedup=Estimate(*(float(predicted + shift + end) for end in (0, -0.03, 0.03)))),
        )
        for tree, predicted, shift in zip(trees, generator.uniform(1, 2, 15), generator.normal(0, 0.1, 15), strict=True)
    )
    drawn = drawn_panels(grid_panel(replace(GRID, trees=rows)))
    assert drawn.overlapping() == []
    axes = drawn.figure.axes[0]
    labels = [text for text in drawn.texts if "/" in text.get_text() and text.get_text()[0].isdigit()]
    assert len(labels) == len(rows)
    points = axes.transData.transform([(row.predicted.speedup, row.measured.speedup.value) for row in rows])
    for label in labels:
        bounds = box(label)
        assert not any(bounds.contains(*point) for point in points)
        ends = axes.transData.inverted().transform([(bounds.x0, bounds.y1), (bounds.x1, bounds.y0)])
        assert np.ptp(np.sign(ends[:, 1] - ends[:, 0])) == 0


def test_engine_curve_has_gaps_at_missing_predictions() -> None:
    drawn = drawn_panels(engine_panel([ENGINE]))
    axes = drawn.figure.axes[0]
    (line,) = (line for line in axes.lines if line.get_color() == CHAIN)
    assert np.asarray(line.get_ydata())[:3] == pytest.approx([1.0, 1.2, 1.4])
    assert np.isnan(line.get_ydata()[3])
    dots = [
        tuple(map(float, point))
        for collection in axes.collections
        if hasattr(collection, "get_sizes") and len(collection.get_sizes())
        for point in collection.get_offsets()
    ]
    assert dots == [(0, 1.0), (1, 1.25), (2, 1.5), (3, 1.75)]
    (star,) = (line for line in axes.lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2, 1.5)


def test_batches_are_measured_lines_and_predicted_dashes_with_the_choices_marked() -> None:
    drawn = drawn_panels(*batches_panels(BATCHES))
    axes, rows = drawn.figure.axes
    (star,) = (line for line in axes.lines if line.get_marker() == "*")
    assert np.array(star.get_data()).T.tolist() == [[1, 600], [6, 1600]]
    by_colour = {
        (line.get_color(), line.is_dashed()): line.get_ydata()
        for line in axes.lines
        if len(line.get_xdata()) == 2 and line is not star
    }
    assert list(by_colour[MUTED, False]) == [400.0, 1600.0]
    assert by_colour[MUTED, True] == pytest.approx([396.0, 1584.0])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "6"]
    assert [name for name, *_ in rows_of(rows)] == [
        "★ batch of 1: tree of 5 nodes, depth 2",
        "batch of 1: chain of 3 draft tokens",
        "★ batch of 6: plain decoding",
        "batch of 6: chain of 3 draft tokens",
        "batch of 6: chain of 2 draft tokens",
    ]
    assert len(marks_of(rows)) == 4  # nothing was predicted of the last


def test_trees_have_different_colours() -> None:
    colours = tree_colours(BATCHES)
    assert (colours[chain(0)], colours[level_widths([2, 2])], colours[chain(3)]) == (MUTED, TREE, CHAIN)
    assert colours[chain(2)] not in (MUTED, TREE, CHAIN, CHOICE)
    many = tuple(batch_row(chain(length), 400.0 + length, 3) for length in range(9))
    crowded = tree_colours(replace(BATCHES, sizes=(BatchSize(batch_size=3, rows=many),)))
    assert len(set(crowded.values())) == len(crowded) == 5


def test_curves_have_gaps_at_missing_batch_sizes() -> None:
    first, last = BATCHES.sizes
    tree = chain(3)
    between = replace(first, batch_size=4, rows=tuple(row for row in first.rows if row.tree != tree))
    measured, predicted = rates_by_batch_size(replace(BATCHES, sizes=(first, between, last)), tree)
    assert np.isnan(measured).tolist() == np.isnan(predicted).tolist() == [False, True, False]
    unknown = replace(last, rows=(batch_row(tree, 1.0, 6, predicted=NO_PREDICTION),))
    assert np.isnan(rates_by_batch_size(replace(BATCHES, sizes=(first, unknown)), tree)[1]).tolist() == [False, True]


def test_row_names_are_above_their_bars() -> None:
    drawn = drawn_panels(*batches_panels(BATCHES))
    axes = drawn.figure.axes[1]
    for place, text in enumerate(text for text in axes.texts if text.get_position()[0] == 0):
        assert place < text.get_position()[1] < place + 0.5
        bars = [bar for bar in axes.patches if bar.get_width() and place < bar.get_y() < place + 1]
        assert not [bar for bar in bars if common(box(text), bar.get_window_extent())]
    assert axes.bbox.height * 72 / axes.figure.dpi == pytest.approx(5 * ROW_HEIGHT + 4)
