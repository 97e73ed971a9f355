"""Acceptance by depth and rank as heat maps."""

from typing import TYPE_CHECKING

import numpy as np

from treeopt.arrays import Float64
from treeopt.pictures.panels import Panel, legend_patch
from treeopt.pictures.style import INK, TREE, WHITE, whole_numbers
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.report.figures.cells import draw_cells
from treeopt.report.profile_words import labelled_acceptances

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_SHOWN = 5e-4
"""Ranks that no depth accepts more often are left out at the end."""
MOST_DEPTHS, MOST_RANKS = 32, 32
MOST_NUMBERED = 12
"""Maps of at most so many ranks have the percentages in the cells."""
SPREAD = 0.45
"""Exponent that makes small probabilities denser, so that they can be told apart."""
LEGEND = (0.01, 0.1, 0.3, 0.6, 1.0)


def acceptance_panels(profile: Profile) -> list[Panel]:
    """Return a heat map for every rule, temperature and drafter."""
    return [acceptance_panel(label, measured) for label, measured in labelled_acceptances(profile)]


def acceptance_panel(label: str, measured: MeasuredAcceptance) -> Panel:
    """Return one heat map under a label."""
    rows = _drawn_rows(measured.table)
    below = ", below a first child" if measured.table.parent_ranks > 1 else ""
    return Panel(
        draw=lambda axes: _draw(axes, measured.table, rows),
        title=f"Acceptance, {label}",
        x="rank among siblings",
        y="depth",
        height=float(np.clip(17.0 * len(rows), 34.0, 240.0)),
        note=f"accepted, given that the parent was reached{below}",
    )


def _drawn_rows(table: AcceptanceTable) -> Float64:
    """Return the drawn part of a table, float64 (depths, ranks); below parents of rank 0 where they matter."""
    rows = table.rows(table.max_depth or 1)[:, 0]
    used = [rank + 1 for rank in range(table.branching) if rows[:, rank].max() >= LEAST_SHOWN]
    return rows[:MOST_DEPTHS, : min(MOST_RANKS, max(used, default=1))]


def _draw(axes: "Axes", table: AcceptanceTable, rows: Float64) -> None:
    depths, ranks = rows.shape
    axes.set_xlim(-0.5, ranks - 0.5)
    axes.set_ylim(depths + 0.5, 0.5)
    density = _density(rows)
    draw_cells(axes, np.arange(ranks + 1) - 0.5, np.arange(depths + 1) + 0.5, density, TREE)
    for value in LEGEND:
        legend_patch(axes, TREE, f"{100 * value:.0f}\u2009%", density=value**SPREAD)
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis)
    axes.spines[:].set_visible(False)
    if table.position_invariant:
        axes.set_yticks([1], ["every"])
    if ranks > MOST_NUMBERED or depths > 20:
        return
    for depth in range(depths):
        for rank in range(ranks):
            value = 100 * float(rows[depth, rank])
            colour = WHITE if density[depth, rank] > 0.6 else INK
            text = f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
            axes.text(rank, depth + 1, text, ha="center", va="center_baseline", fontsize=8.5, color=colour)


def _density(values: Float64) -> Float64:
    """Return how dense probabilities are drawn."""
    spread: Float64 = values**SPREAD
    return spread
