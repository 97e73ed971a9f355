"""Acceptance by depth and rank as heat maps."""

from typing import TYPE_CHECKING

import numpy as np

from treeopt.arrays import Float64
from treeopt.plotting.panels import Panel, legend_patch
from treeopt.plotting.style import INK, TREE, WHITE, whole_numbers
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.report.curve_text import EXPONENT, shown_rows
from treeopt.report.figures.cells import draw_cells
from treeopt.report.profile_text import labelled_acceptances

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DEPTHS, MAX_RANKS = 32, 32
MAX_NUMBERED_RANKS, MAX_NUMBERED_DEPTHS = 12, 20
"""Size of the largest map with percentages in its cells."""
LEGEND = (0.01, 0.1, 0.3, 0.6, 1.0)


def acceptance_panels(profile: Profile) -> list[Panel]:
    """Return a heat map for every rule, temperature and drafter."""
    return [acceptance_panel(label, measured) for label, measured in labelled_acceptances(profile)]


def acceptance_panel(label: str, measured: MeasuredAcceptance) -> Panel:
    """Return the heat map of one acceptance."""
    rows = shown_rows(measured.table)[:MAX_DEPTHS, :MAX_RANKS]
    below = ", below a first child" if measured.table.parent_ranks > 1 else ""
    return Panel(
        draw=lambda axes: _draw(axes, measured.table, rows),
        title=f"Acceptance, {label}",
        x="rank among siblings",
        y="depth",
        height=float(np.clip(17.0 * len(rows), 34.0, 240.0)),
        note=f"accepted, given that the parent was reached{below}",
    )


def _draw(axes: "Axes", table: AcceptanceTable, rows: Float64) -> None:
    depths, ranks = rows.shape
    axes.set_xlim(-0.5, ranks - 0.5)
    axes.set_ylim(depths + 0.5, 0.5)
    density: Float64 = rows**EXPONENT
    draw_cells(axes, np.arange(ranks + 1) - 0.5, np.arange(depths + 1) + 0.5, density, TREE)
    for value in LEGEND:
        legend_patch(axes, TREE, f"{100 * value:.0f}\u2009%", density=value**EXPONENT)
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis)
    axes.spines[:].set_visible(False)
    if table.position_invariant:
        axes.set_yticks([1], ["every"])
    if ranks > MAX_NUMBERED_RANKS or depths > MAX_NUMBERED_DEPTHS:
        return
    for depth in range(depths):
        for rank in range(ranks):
            value = 100 * float(rows[depth, rank])
            colour = WHITE if density[depth, rank] > 0.6 else INK
            text = f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
            axes.text(rank, depth + 1, text, ha="center", va="center_baseline", fontsize=8.5, color=colour)
