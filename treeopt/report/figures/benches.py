"""Predictions next to measurements: single trees, grids, methods, engines, and batch sizes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Float64
from treeopt.plotting.labels import label_points
from treeopt.plotting.panels import Panel
from treeopt.plotting.style import CHAIN, CHOICE, GREEN, LINE, MUTED, PALE, PURPLE, SKY, TREE, grid_lines, whole_numbers
from treeopt.plotting.svg import set_tooltips
from treeopt.records.bench_file import GridBench, GridTree, MethodsBench, TreeBench
from treeopt.records.results import BatchBench, BatchRow, BatchSize, EngineBench, EngineRow
from treeopt.report.figures.cells import draw_lines
from treeopt.report.figures.rows import PLAIN_LINE, SpeedupRow, speedup_panel
from treeopt.report.figures.speedup_map import STAR
from treeopt.report.text import counted, percent
from treeopt.trees import TokenTree, describe_tree, kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.05
"""Relative half width of the band around the diagonal."""
MAX_LABELLED = 40
OTHERS = (GREEN, SKY, PURPLE)
"""Colours of all trees and chains but the first of each kind."""
_KINDS = {"chain": ("chains", CHAIN, "D", 24), "tree": ("trees", TREE, "o", 30), "plain": ("plain", MUTED, "o", 30)}


def trees_panel(benches: Sequence[TreeBench]) -> Panel:
    """Return a row for each benchmark of one tree."""
    return speedup_panel([_tree_row(bench) for bench in benches], "Trees, predicted and measured")


def methods_panels(bench: MethodsBench) -> list[Panel]:
    """Return a panel of all methods for each temperature."""
    return [
        speedup_panel(
            [
                SpeedupRow(
                    name=f"{row.method}: {row.setting}, rule {row.rule}",
                    predicted=row.predicted_speedup,
                    measured=row.speedup,
                )
                for row in bench.rows
                if row.temperature == temperature
            ]
            + [
                SpeedupRow(name=row.method, reason=f"not run: {row.reason}")
                for row in bench.not_run
                if row.temperature == temperature
            ],
            f"Methods at temperature {temperature:g}",
        )
        for temperature in bench.temperatures
    ]


def grid_panel(bench: GridBench) -> Panel:
    """Return measured against predicted speedup, a point for each tree."""
    labelled = len(bench.trees) <= MAX_LABELLED
    return Panel(
        draw=lambda axes: _draw_grid(axes, bench, labelled=labelled),
        title="Trees of a grid",
        x="predicted speedup",
        y="measured speedup",
        height=310.0,
        note="labels are nodes/depth; " * labelled + "vertical lines are 95\u2009% intervals",
    )


def engine_panel(benches: Sequence[EngineBench]) -> Panel:
    """Return speedup over the draft tokens of one engine, measured once or several times."""
    return Panel(
        draw=lambda axes: _draw_engine(axes, benches),
        title=f"{benches[0].engine} {benches[0].version}",
        x="draft tokens",
        y="times plain decoding",
    )


def batches_panels(bench: BatchBench) -> list[Panel]:
    """Return tokens per second over the batch size, and the speedup of every configuration."""
    rows = [
        SpeedupRow(
            name=f"batch of {size.batch_size}: {describe_tree(row.tree)}",
            predicted=row.predicted.speedup,
            measured=row.measured.speedup,
            chosen=row.chosen,
        )
        for size in bench.sizes
        for row in size.rows
        if row.tree.nodes > 1 or row.chosen
    ]
    over_sizes = Panel(
        draw=lambda axes: _draw_batches(axes, bench),
        title="Tokens per second over the batch size",
        x="batch size, sequences",
        y="tokens per second",
        left=56.0,
        height=240.0,
        note="lines are measured, dashes predicted",
    )
    return [over_sizes, speedup_panel(rows, "Batches, predicted and measured")]


def rates_by_batch_size(bench: BatchBench, tree: TokenTree) -> tuple[list[float], list[float]]:
    """Return measured and predicted tokens per second of a tree at every batch size; nan where missing."""
    rows = [(size, next((row for row in size.rows if row.tree == tree), None)) for size in bench.sizes]
    rates = [
        (row.measured.tokens_per_s, size.predicted_tokens_per_s(row)) if row else (None, None) for size, row in rows
    ]
    measured, predicted = ([np.nan if rate is None else rate for rate in column] for column in zip(*rates, strict=True))
    return measured, predicted


def tree_colours(bench: BatchBench) -> dict[TokenTree, str]:
    """Return the trees to draw with their colours: chosen trees first, the first tree of a kind in the kind's colour."""
    rows = sorted((row for size in bench.sizes for row in size.rows), key=lambda row: not row.chosen)
    colours: dict[TokenTree, str] = {}
    others = iter(OTHERS)
    for tree in dict.fromkeys(row.tree for row in rows):
        kind_colour = _KINDS[kind_of(tree)][1]
        colour = kind_colour if kind_colour not in colours.values() else next(others, None)
        if colour is not None:
            colours[tree] = colour
    return colours


def _tree_row(bench: TreeBench) -> SpeedupRow:
    drafter = "" if bench.drafter == "model" else f"{bench.drafter}, "
    return SpeedupRow(
        name=f"{drafter}{bench.nodes} nodes, depth {bench.depth}, rule {bench.rule} at temperature {bench.temperature:g}",
        predicted=bench.predicted.estimate,
        measured=bench.measured.speedup,
    )


def _draw_grid(axes: "Axes", bench: GridBench, *, labelled: bool) -> None:
    points = np.array([(row.predicted.speedup, row.measured.speedup.value) for row in bench.trees], float)
    intervals = np.array([(row.measured.speedup.low, row.measured.speedup.high) for row in bench.trees])
    diagonal = _draw_diagonal(axes, np.concatenate([points.ravel(), intervals.ravel()]))
    bars = np.stack([np.stack([points[:, 0]] * 2, -1), intervals], -1)
    draw_lines(axes, bars, LINE, 1.0, z=2)
    for kind, (label, colour, marker, size) in _KINDS.items():
        members = [index for index, row in enumerate(bench.trees) if kind_of(row.tree) == kind]
        if members:
            style: dict[str, Any] = {"s": size, "color": colour, "marker": marker, "linewidths": 0}
            dots = axes.scatter(*points[members].T, label=label, zorder=3, **style)
            set_tooltips(dots, *(_grid_tooltip(bench.trees[index]) for index in members))
    first = "fastest tree" if bench.plain_is_fastest else "choice of the plan"
    ring: dict[str, Any] = {"s": 110, "facecolors": "none", "edgecolors": CHOICE, "linewidths": 1.6}
    axes.scatter(*points[:1].T, label=first, zorder=4, **ring)
    if labelled:
        labels = [f"{row.tree.nodes}/{row.tree.max_depth}" for row in bench.trees]
        label_points(axes, points, labels, lines=[diagonal, *bars])
    axes.spines[["top", "right"]].set_visible(False)


def _draw_diagonal(axes: "Axes", values: Float64) -> Float64:
    """Set the limits, draw the diagonal with a band around it, and return the ends of the diagonal."""
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low) or 0.06 * high
    limits = np.array([max(0.0, low - margin), high + margin])
    axes.set_xlim(*limits)
    axes.set_ylim(*limits)
    label = f"within {100 * BAND:.0f}\u2009% of the prediction"
    axes.fill_between(limits, limits * (1 - BAND), limits * (1 + BAND), color=PALE, linewidth=0, label=label)
    axes.plot(limits, limits, color=MUTED, linewidth=0.8)
    return np.stack([limits, limits], axis=1)


def _grid_tooltip(row: GridTree) -> str:
    speedup = row.measured.speedup
    measured = f"{speedup.value:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"
    return f"{describe_tree(row.tree)}: predicted {row.predicted.speedup:.2f}, measured {measured}"


def _draw_engine(axes: "Axes", benches: Sequence[EngineBench]) -> None:
    axes.axhline(1.0, label="plain decoding", **PLAIN_LINE)
    for index, bench in enumerate(benches):
        first = index == 0
        predicted = [np.nan if row.predicted.speedup is None else row.predicted.speedup for row in bench.rows]
        rows, label = bench.rows, "predicted" if first else None
        axes.plot([row.length for row in rows], predicted, color=CHAIN, linewidth=1.6, label=label, zorder=2)
        spread = [row.speedup * row.spread / 2 for row in rows]
        lengths, speedups = [row.length for row in rows], [row.speedup for row in rows]
        axes.errorbar(lengths, speedups, spread, fmt="none", ecolor=TREE, elinewidth=1.0, zorder=3)
        label = "measured, with the spread of repeats" if first else None
        dots = axes.scatter(lengths, speedups, s=28, color=TREE, linewidths=0, label=label, zorder=3)
        set_tooltips(dots, *map(_engine_tooltip, rows))
        axes.plot(
            bench.chosen.length, bench.chosen.speedup, label="choice" if first else None, **(STAR | {"markersize": 13})
        )
    speedups = [max(row.speedup, row.predicted.speedup or 0) for bench in benches for row in bench.rows]
    axes.set_ylim(0, 1.1 * max(speedups))
    grid_lines(axes)
    whole_numbers(axes.xaxis)


def _engine_tooltip(row: EngineRow) -> str:
    predicted = "" if row.predicted.speedup is None else f", predicted {row.predicted.speedup:.2f}"
    return f"{counted(row.length, 'draft token')}: measured {row.speedup:.2f}{predicted}"


def _draw_batches(axes: "Axes", bench: BatchBench) -> None:
    sizes = [size.batch_size for size in bench.sizes]
    for tree, colour in tree_colours(bench).items():
        measured, predicted = rates_by_batch_size(bench, tree)
        label = describe_tree(tree)
        axes.plot(sizes, predicted, color=colour, linewidth=1.3, linestyle=(0, (4, 2.5)), zorder=2)
        axes.plot(sizes, measured, color=colour, linewidth=1.6, label=label, zorder=3)
        rows = [(size, row) for size in bench.sizes for row in size.rows if row.tree == tree]
        dots = axes.scatter(
            [size.batch_size for size, _ in rows],
            [row.measured.tokens_per_s for _, row in rows],
            s=22,
            color=colour,
            linewidths=0,
            zorder=3,
        )
        set_tooltips(dots, *(_batch_tooltip(size, row) for size, row in rows))
    chosen = [(size.batch_size, size.chosen.measured.tokens_per_s) for size in bench.sizes if size.chosen]
    if chosen:
        axes.plot(*np.array(chosen).T, label="choice", **(STAR | {"markersize": 13}))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
    axes.set_ylim(bottom=0)
    if len(sizes) > 1 and min(after / before for before, after in pairwise(sizes)) < 1.15:
        axes.set_xticks([sizes[0], sizes[-1]], [str(sizes[0]), str(sizes[-1])])
    grid_lines(axes)


def _batch_tooltip(size: BatchSize, row: BatchRow) -> str:
    measured, rate = row.measured, size.predicted_tokens_per_s(row)
    predicted = "" if rate is None else f", predicted {rate:.0f}"
    return (
        f"batch of {size.batch_size}, {describe_tree(row.tree)}: {measured.tokens_per_s:.0f} tokens per second{predicted}; "
        f"{measured.speedup:.2f}x plain decoding, {percent(measured.overhead)} of a step is host overhead"
    )
