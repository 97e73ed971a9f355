"""The map of a plan's picture: speedup over budget and depth, and where tree, chain and plain decoding lie on it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Bool, Float64
from treeopt.pictures.style import (
    CHAIN,
    CHOICE,
    INK,
    MUTED,
    PALE,
    PLAIN,
    SPEEDUP_MAP,
    TREE,
    WHITE,
    legend_below,
    name_axes,
    whole_numbers,
)
from treeopt.planner.fastest import speeds
from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage


NEAR_BEST = 0.95
COLUMNS, ROWS = 1024, 8
"""Columns of the map's image, and rows per depth: so many that edges are sharp in every viewer."""
STAR: dict[str, Any] = {"marker": "*", "color": CHOICE, "markeredgecolor": WHITE, "linestyle": "none", "clip_on": False}
"""How the choice is marked."""
_MARKS = {"tree": ("^", TREE), "chain": ("D", CHAIN), "plain": ("o", PLAIN)}
_LEFT = 0.75
"""Where the map begins: half a budget of 1, on a logarithmic scale."""


def draw_map(axes: "Axes", plan: Plan) -> None:
    """Draw the map, lines around what is faster than plain decoding and what is nearly the best, and the candidates."""
    speedups = speeds(plan.solution, plan.model.costs)[:, 1:]
    _draw_legend_of_colours(axes, _draw_speedups(axes, speedups))
    _draw_candidates(axes, plan)
    best, drafted = float(speedups.max()), speedups[1:, 1:]
    for level, colour, name in (
        (1.0, INK, "as fast as plain decoding"),
        (NEAR_BEST * best, CHOICE, f"{100 * NEAR_BEST:.0f}\u2009% of the best"),
    ):
        if drafted.size and drafted.min() <= level < drafted.max():
            _draw_outline(axes, speedups, level, colour, name)
    axes.set_facecolor(PALE)
    sizes = 2 ** np.arange(speedups.shape[1].bit_length())
    axes.set_xticks(np.log2(sizes), [str(size) for size in sizes])
    whole_numbers(axes.yaxis)
    name_axes(axes, "Speedup over plain decoding", "budget, nodes", "depth")
    legend_below(axes, columns=2).get_texts()[0].set(weight="bold", color=INK)


def _draw_speedups(axes: "Axes", speedups: Float64) -> "AxesImage":
    """Draw the cells; what no pass was timed for stays empty."""
    depths, budgets = speedups.shape
    left, right = float(np.log2(_LEFT)), float(np.log2(budgets + 0.5))
    centres = np.linspace(left, right, 2 * COLUMNS + 1)[1::2]
    column = np.clip(np.rint(2**centres).astype(int), 1, budgets) - 1
    low, high = min(0.9, float(speedups[speedups > 0].min())), max(1.1, float(speedups.max()))
    return axes.imshow(
        np.ma.masked_equal(np.repeat(speedups[:, column], ROWS, axis=0), 0),
        extent=(left, right, -0.5, depths - 0.5),
        origin="lower",
        aspect="auto",
        interpolation="none",
        cmap=_colours(low, high),
        vmin=low,
        vmax=high,
    )


def _draw_outline(axes: "Axes", speedups: Float64, level: float, colour: str, name: str) -> None:
    """Draw the edges between drafted cells above a level and all others, so that no line ends but at the map's rim."""
    from matplotlib.collections import LineCollection

    inside = speedups > level
    inside[0], inside[:, 0] = False, False
    lines = LineCollection(_edges(inside), colors=[colour], linewidths=1.3, capstyle="projecting", label=name, zorder=3)
    axes.add_collection(lines, autolim=False)


def _edges(inside: Bool) -> list[Float64]:
    """Return the straight lines, float64 (2, 2), around the cells inside of a map of (depth, budget - 1).

    The map's own rim is left out.
    """
    depths, budgets = inside.shape
    x = np.log2(np.concatenate([[_LEFT], np.arange(1, budgets + 1) + 0.5]))
    y = np.arange(depths + 1) - 0.5
    upright, level = np.diff(inside, axis=1), np.diff(inside, axis=0)
    lines = [
        np.array([[x[column + 1], y[first]], [x[column + 1], y[last]]])
        for column in range(budgets - 1)
        for first, last in _runs(upright[:, column])
    ]
    lines += [
        np.array([[x[first], y[row + 1]], [x[last], y[row + 1]]])
        for row in range(depths - 1)
        for first, last in _runs(level[row])
    ]
    return lines


def _runs(marked: Bool) -> list[tuple[int, int]]:
    """Return where runs of marked entries begin and end.

    >>> _runs(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    ends = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]])))
    return [(int(first), int(last)) for first, last in ends.reshape(-1, 2)]


def _draw_candidates(axes: "Axes", plan: Plan) -> None:
    """Mark the choice, and what else was planned where it lies elsewhere; each is said in the legend."""
    marked: list[Option] = []
    for candidate in (plan.choice, plan.tree, plan.chain, plan.plain):
        if all(candidate.tree != other.tree for other in marked):
            marked.append(candidate)
    for number, candidate in enumerate(marked):
        at = float(np.log2(candidate.tree.nodes)), candidate.tree.max_depth
        label = f"{candidate.shape}: {candidate.speedup.value:.2f}"
        if number == 0:
            axes.plot(*at, markersize=17, zorder=6, label=label, **STAR)
            continue
        shape, colour = _MARKS[candidate.kind]
        style: dict[str, Any] = {"markeredgecolor": WHITE, "linestyle": "none", "clip_on": False}
        axes.plot(*at, shape, color=colour, markersize=8, zorder=5, label=label, **style)


def _draw_legend_of_colours(axes: "Axes", image: "AxesImage") -> None:
    from matplotlib.ticker import MaxNLocator

    scale = axes.inset_axes((0.5, 1.03, 0.5, 0.025))
    bar = axes.figure.colorbar(image, cax=scale, orientation="horizontal", ticks=MaxNLocator(6, steps=[1, 2.5, 5, 10]))
    bar.outline.set_visible(False)
    scale.xaxis.set_ticks_position("top")
    scale.tick_params(length=0, labelsize=8, labelcolor=MUTED, pad=1)


def _colours(low: float, high: float) -> "Colormap":
    """Return brown for slower than plain decoding, white for as fast and green for faster."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    from_one = np.linspace(low - 1, high - 1, 512) / max(1 - low, high - 1)
    return ListedColormap(mpl.colormaps[SPEEDUP_MAP](0.5 + 0.4 * from_one))
