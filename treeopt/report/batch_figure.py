"""Several texts at a time as a picture: tokens per second over the batch size, measured and predicted."""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.style import (
    CHOICE,
    MUTED,
    POINTS,
    SERIES,
    WHITE,
    Heading,
    grid_lines,
    legend_below,
    name_axes,
)
from treeopt.records.batch_bench import BatchBench
from treeopt.records.rules import rule_label
from treeopt.report.batch_bench import setting_name
from treeopt.trees import TokenTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BELOW, _TOP, _LEGEND_ROW = 440.0, 300.0, 64.0, 20.0, 52.0, 12.0, 16.0  # points
MOST_TREES = len(SERIES)
"""Beside plain decoding; those that are chosen somewhere come first."""
Line = Sequence[tuple[int, float]]
"""Batch sizes and tokens per second; nan, over which no line is drawn, where a tree was not raced."""


def save_batch_figure(found: BatchBench, path: Path | str, *, title: str) -> None:
    """Draw a bench into an SVG, PNG or PDF file; equal benches give equal bytes.

    Args:
        found: what to draw.
        path: file to write, ending in .svg, .png or .pdf.
        title: the pair and the machine.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(found, title), path)


def _draw(found: BatchBench, title: str) -> "Figure":
    from matplotlib.figure import Figure

    width = _LEFT + _WIDTH + _RIGHT
    subtitle = f"{rule_label(found.rule)} at temperature {found.temperature:g}; line measured, dashes predicted"
    heading = Heading.fitting(title, subtitle, width=width)
    trees = drawn_trees(found)
    below = _BELOW + _LEGEND_ROW * (len(trees) // 2 + 1)  # two names a row, the choice's among them
    height = heading.height + _TOP + _HEIGHT + below
    figure = Figure(figsize=(width / POINTS, height / POINTS), facecolor=WHITE)
    heading.draw(figure)
    axes = figure.add_axes((_LEFT / width, below / height, _WIDTH / width, _HEIGHT / height))
    colours = iter(SERIES)
    for tree in trees:
        colour = MUTED if tree.nodes == 1 else next(colours)
        measured, predicted = lines_of(found, tree)
        _plot(axes, measured, colour, "-", label=setting_name(tree), marker="o")
        _plot(axes, predicted, colour, "--")
    chosen = [(each.batch_size, each.chosen.measured.tokens_per_s) for each in found.sizes if each.chosen]
    if chosen:
        axes.scatter(
            [size for size, _ in chosen],
            [rate for _, rate in chosen],
            s=90,
            facecolors="none",
            edgecolors=CHOICE,
            linewidths=1.6,
            label="the choice",
            zorder=4,
        )
    sizes = [each.batch_size for each in found.sizes]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    grid_lines(axes)
    name_axes(axes, "", "texts at a time", "tokens per second")
    legend_below(axes, columns=2)
    return figure


def drawn_trees(found: BatchBench) -> list[TokenTree]:
    """Return plain decoding and as many trees as there are colours, those that are chosen somewhere first."""
    rows = [row for size in found.sizes for row in size.rows if row.tree.nodes > 1]
    trees = list(dict.fromkeys(row.tree for row in sorted(rows, key=lambda row: not row.chosen)))
    plain = dict.fromkeys(row.tree for size in found.sizes for row in size.rows if row.tree.nodes == 1)
    return [*plain, *trees[:MOST_TREES]]


def lines_of(found: BatchBench, tree: TokenTree) -> tuple[Line, Line]:
    """Return what was measured of a tree, and what was predicted, at every batch size; nan where it was not."""
    measured, predicted = [], []
    for size in found.sizes:
        row = next((each for each in size.rows if each.tree == tree), None)
        measured.append((size.batch_size, nan if row is None else row.measured.tokens_per_s))
        rate = None if row is None else row.predicted_tokens_per_s
        predicted.append((size.batch_size, nan if rate is None else rate))
    return measured, predicted


def _plot(axes: "Axes", line: Line, colour: str, style: str, label: str = "", marker: str = "") -> None:
    axes.plot(
        [size for size, _ in line],
        [rate for _, rate in line],
        color=colour,
        linewidth=1.4,
        linestyle=style,
        marker=marker,
        markersize=3.5,
        label=label or "_predicted",  # which legends leave out
    )
