"""A plan as a picture: how fast which budget and depth is, and the measurements that this comes from."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from treeopt.files.picture_file import save_drawing
from treeopt.pictures.style import (
    DEPTH_MAP,
    MUTED,
    POINTS,
    WHITE,
    Heading,
    legend_below,
    name_axes,
    plain_numbers,
    whole_numbers,
)
from treeopt.planner.plan_record import Plan
from treeopt.records.profile import Profile
from treeopt.report.plan_figure_map import draw_map
from treeopt.report.plan_figure_passes import draw_passes
from treeopt.report.profile_words import measured_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_DEPTHS = (1, 2, 4, 8, 16, 32)

# Points. On the left the map, on the right two panels; below each of the three its legend.
_WIDTH, _BODY, _TOP = 800.0, 446.0, 34.0
_MAP_LEFT, _MAP_WIDTH, _MAP_HEIGHT = 46.0, 410.0, 334.0
_PANEL_LEFT, _PANEL_WIDTH, _PANEL_HEIGHT, _PANELS_APART = 520.0, 264.0, 114.0, 112.0


def save_plan_figure(plan: Plan, path: Path | str, *, title: str | None = None, profile: Profile | None = None) -> None:
    """Draw a plan into an SVG, PNG or PDF file, as the path's suffix says; equal plans give equal bytes.

    On the left, speedup over budget and depth, with the best tree, the best chain and plain decoding; on the right,
    seconds of passes and acceptance.

    Args:
        plan: what to draw.
        path: file to write, ending in .svg, .png or .pdf.
        title: what was planned for, such as the pair and the machine; the conditions are written below it.
        profile: what was planned from; its other conditions are drawn pale.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(plan, title=title, profile=profile), path)


def _draw(plan: Plan, *, title: str | None = None, profile: Profile | None = None) -> "Figure":
    """Return the picture; arguments as for `save_plan_figure`."""
    from matplotlib.figure import Figure

    conditions = plan.conditions if profile is None else f"{plan.conditions}, {measured_on(profile.created)}"
    heading = Heading.fitting(title or "Plan", conditions, width=_WIDTH)
    height = heading.height + _BODY
    figure = Figure(figsize=(_WIDTH / POINTS, height / POINTS), facecolor=WHITE)
    heading.draw(figure)

    def axes(left: float, top: float, width: float, tall: float) -> "Axes":
        """Return axes whose upper left corner lies so many points right of the figure's and below the heading."""
        bottom = height - heading.height - top - tall
        return figure.add_axes((left / _WIDTH, bottom / height, width / _WIDTH, tall / height))

    draw_map(axes(_MAP_LEFT, _TOP, _MAP_WIDTH, _MAP_HEIGHT), plan)
    draw_passes(axes(_PANEL_LEFT, _TOP, _PANEL_WIDTH, _PANEL_HEIGHT), plan, profile)
    lower = _TOP + _PANEL_HEIGHT + _PANELS_APART
    _draw_acceptance(axes(_PANEL_LEFT, lower, _PANEL_WIDTH, _PANEL_HEIGHT), plan)
    return figure


def _draw_acceptance(axes: "Axes", plan: Plan) -> None:
    """Draw acceptance by rank at some depths; below parents of rank 0 where the parent's rank matters."""
    import matplotlib as mpl

    table = plan.model.acceptance.table
    rows = table.rows(table.max_depth or 1)[:, 0]
    shown = [depth for depth in SHOWN_DEPTHS if depth <= len(rows)]
    for depth, colour in zip(shown, mpl.colormaps[DEPTH_MAP](np.linspace(0, 0.85, len(shown))), strict=True):
        label = "every depth" if table.position_invariant else f"depth {depth}"
        axes.plot(np.ma.masked_equal(rows[depth - 1], 0), "o-", color=colour, markersize=3, linewidth=1.2, label=label)
    if not rows[np.array(shown) - 1].any():
        axes.text(0.5, 0.5, "no child is ever accepted", transform=axes.transAxes, ha="center", fontsize=8, color=MUTED)
    axes.set_yscale("log")
    axes.set_xlim(-0.3, table.branching - 0.7)
    whole_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    below = "Acceptance below a first child" if table.parent_ranks > 1 else "Acceptance"
    name_axes(axes, below, "rank among siblings", "probability")
    legend_below(axes, columns=3)
