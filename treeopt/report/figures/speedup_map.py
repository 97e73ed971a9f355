"""The map of a plan: predicted speedup over budget and depth, with tree, chain and plain decoding marked."""

from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Bool, Float64
from treeopt.planner.fastest import solution_speedups
from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan
from treeopt.plotting.panels import TICK_SIZE, Panel
from treeopt.plotting.style import CHAIN, CHOICE, INK, MUTED, PLAIN, TREE, WHITE, size_of, whole_numbers
from treeopt.plotting.svg import set_tooltips
from treeopt.report.figures.cells import draw_cells, draw_lines, runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NEAR_BEST = 0.95
STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 16,
    "color": CHOICE,
    "markeredgecolor": WHITE,
    "linestyle": "none",
    "clip_on": False,
    "zorder": 6,
}
"""Mark of the choice."""
_MARKS = {"tree": ("^", TREE), "chain": ("D", CHAIN), "plain": ("o", PLAIN)}
_FIRST_EDGE = 0.75
"""Left edge of the map on its logarithmic scale of budgets."""


def map_panel(plan: Plan) -> Panel:
    """Return the map, with outlines of the cells faster than plain decoding and of those near the best."""
    return Panel(
        draw=lambda axes: _draw(axes, plan),
        title="Speedup over budget and depth",
        x="budget, nodes",
        y="depth, levels",
        height=260.0,
        above=36.0,
    )


def _draw(axes: "Axes", plan: Plan) -> None:
    speedups = solution_speedups(plan.solution, plan.model.costs)[:, 1:]
    depths, budgets = speedups.shape
    best, drafted = float(speedups.max()), speedups[1:, 1:]
    x = np.log2(np.concatenate([[_FIRST_EDGE], np.arange(1, budgets + 1) + 0.5]))
    y = np.arange(depths + 1) - 0.5
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    _draw_speedups(axes, x, y, speedups, best)
    _draw_scale(axes, float(speedups[speedups > 0].min()), best)
    _mark_options(axes, plan)
    for level, colour, name in (
        (1.0, INK, "as fast as plain decoding"),
        (NEAR_BEST * best, CHOICE, f"{100 * NEAR_BEST:.0f}\u2009% of the best"),
    ):
        if drafted.size and drafted.min() <= level < drafted.max():
            _draw_outline(axes, x, y, speedups > level, colour, name)
    sizes = 2 ** np.arange(budgets.bit_length())
    axes.set_xticks(np.log2(sizes), [str(size) for size in sizes])
    whole_numbers(axes.yaxis)


def _draw_speedups(axes: "Axes", x: Float64, y: Float64, speedups: Float64, best: float) -> None:
    """Fill the cells; cells without a measured pass stay empty."""
    faster, slower = _densities(speedups, best)
    draw_cells(axes, x, y, faster, TREE)
    draw_cells(axes, x, y, slower, CHAIN)


def _densities(speedups: Float64, best: float) -> tuple[Float64, Float64]:
    """Return densities of cells faster and of cells slower than plain decoding, from 0 to 1."""
    above = np.clip((speedups - 1) / max(best - 1, 0.05), 0, 1)
    below = np.where(speedups > 0, np.clip(1 - speedups, 0, 1), 0)
    return np.where(speedups >= 1, 0.04 + 0.88 * above**1.3, 0), np.where(below > 0, 0.04 + 0.8 * below, 0)


def _draw_scale(axes: "Axes", low: float, best: float) -> None:
    """Draw the scale of densities above the map."""
    from matplotlib.ticker import MaxNLocator

    _, height = size_of(axes)
    scale = axes.inset_axes((0.5, 1 + 6 / height, 0.5, 9 / height))
    edges = np.linspace(min(low, 0.9), max(best, 1.1), 101)
    _draw_speedups(scale, edges, np.array([0.0, 1.0]), 0.5 * (edges[1:] + edges[:-1])[None], best)
    scale.set_xlim(edges[0], edges[-1])
    scale.set_ylim(0, 1)
    scale.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2.5, 5, 10]))
    scale.xaxis.set_ticks_position("top")
    scale.set_yticks([])
    scale.spines[:].set_visible(False)
    scale.tick_params(length=0, labelsize=TICK_SIZE, labelcolor=MUTED, pad=1)
    name: dict[str, Any] = {
        "ha": "right",
        "va": "center_baseline",
        "transform": scale.transAxes,
        "fontsize": TICK_SIZE,
        "color": MUTED,
    }
    scale.text(-0.03, 0.5, "times plain decoding", **name)


def _draw_outline(axes: "Axes", x: Float64, y: Float64, inside: Bool, colour: str, name: str) -> None:
    """Draw the edges between marked drafting cells and all others, so that lines end at the map's edge only."""
    inside[0], inside[:, 0] = False, False
    depths, budgets = inside.shape
    vertical, horizontal = np.diff(inside, axis=1), np.diff(inside, axis=0)
    lines = [
        ((x[column + 1], y[first]), (x[column + 1], y[last]))
        for column in range(budgets - 1)
        for first, last in runs(vertical[:, column])
    ]
    lines += [
        ((x[first], y[row + 1]), (x[last], y[row + 1]))
        for row in range(depths - 1)
        for first, last in runs(horizontal[row])
    ]
    draw_lines(axes, np.array(lines), colour, 1.3, z=3, cap="projecting")
    axes.plot([], [], color=colour, linewidth=1.3, label=name)


def _mark_options(axes: "Axes", plan: Plan) -> None:
    """Mark the choice, and the other candidates unless they are the same tree; the legend contains their speedups."""
    marked: list[Option] = []
    for option in (plan.choice, plan.tree, plan.chain, plan.plain):
        if any(option.tree == other.tree for other in marked):
            continue
        position = float(np.log2(option.tree.nodes)), option.tree.max_depth
        label = f"{option.shape}: {option.speedup.value:.2f}x"
        if not marked:
            (mark,) = axes.plot(*position, label=f"choice, {label}", **STAR)
        else:
            shape, colour = _MARKS[option.kind]
            style: dict[str, Any] = {"markeredgecolor": WHITE, "linestyle": "none", "clip_on": False, "zorder": 5}
            (mark,) = axes.plot(*position, shape, color=colour, markersize=8, label=label, **style)
        set_tooltips(mark, label)
        marked.append(option)
