"""Figure of a tree: one row per depth, or one column for deep trees; size and colour show each node's reach."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Float64
from treeopt.plotting.style import (
    INK,
    LINE,
    MUTED,
    PALE,
    POINTS,
    TINTS,
    WHITE,
    house_style,
    text_width,
    tint,
)
from treeopt.plotting.svg import set_tooltips, svg_text
from treeopt.trees.figure_layout import FigureLayout, lay_out_figure
from treeopt.trees.layout import Drawable, branch_curves, format_percent, rank_paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_LABELLED = 64
"""Most nodes of a tree whose nodes are labelled with percentages."""
MOST_INLINE = 1024
"""Most nodes of a tree in a notebook."""
MOST_OUTLINED = 4096
"""Larger trees are rasterized in SVG and PDF too, where outlines would take tens of megabytes."""


def tree_figure(
    tree: Drawable, reach: Float64 | None = None, *, title: str = "", subtitle: str = "", tooltips: Sequence[str] = ()
) -> "Figure":
    """Return the matplotlib figure of a tree; arguments as for `save_figure`, and a tooltip per node."""
    from matplotlib.figure import Figure

    layout = lay_out_figure(tree, reach, title, subtitle)
    with house_style():
        figure = Figure(figsize=(layout.width / POINTS, layout.height / POINTS), facecolor=WHITE)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, layout.width), ylim=(layout.height, 0))
        axes.set_axis_off()
        layout.heading.draw(figure)
        _draw_levels(axes, tree, layout)
        _draw_branches(axes, tree, layout)
        _draw_nodes(axes, tree, layout, reach, tooltips)
        if reach is not None:
            _draw_scale(figure, layout)
            if tree.nodes <= MOST_LABELLED:
                _draw_percentages(axes, tree, layout, reach)
    return figure


def inline_svg(tree: Drawable, reach: Float64 | None = None) -> str | None:
    """Return the SVG for a notebook, None for large trees."""
    return svg_text(tree_figure(tree, reach)) if tree.nodes <= MOST_INLINE else None


def node_tooltips(tree: Drawable, reach: Float64 | None = None) -> list[str]:
    """Return the number, path and reach of every node.

    >>> from treeopt.trees import TokenTree
    >>> node_tooltips(TokenTree([-1, 0, 0, 2]))[3]
    'node 3, depth 2, ranks 1, 0'
    """
    names = [
        f"node {node}, depth {len(path)}, ranks {', '.join(map(str, path))}" if node else "node 0, the root"
        for node, path in enumerate(rank_paths(tree))
    ]
    if reach is None:
        return names
    return [f"{name}: reached by {100 * value:.3g} %" for name, value in zip(names, reach.tolist(), strict=True)]


def _draw_nodes(
    axes: "Axes", tree: Drawable, layout: FigureLayout, reach: Float64 | None, tooltips: Sequence[str]
) -> None:
    """Draw the nodes in groups of equal size and colour, which keeps SVG files small."""
    strength = np.ones(tree.nodes) if reach is None else _strength(reach)
    rasterized = tree.nodes > MOST_OUTLINED
    if not rasterized:
        tooltips = tooltips or node_tooltips(tree, reach)
    groups = np.rint(TINTS * strength).astype(int)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        radius = float(layout.radius[members].min())
        rim = min(0.8, 0.15 * radius)
        nodes = axes.scatter(
            *(layout.x[members], layout.y[members], (2 * radius) ** 2),
            color=tint(group / TINTS),
            linewidths=rim,
            edgecolors=WHITE,
            clip_on=False,
            zorder=3,
        )
        nodes.set_rasterized(rasterized)
        if not rasterized:
            set_tooltips(nodes, *(tooltips[node] for node in members.tolist()))


def _strength(reach: Float64) -> Float64:
    """Return the strength of colours, with more contrast for small probabilities."""
    return np.asarray(0.2 + 0.8 * reach**0.4)


def _draw_levels(axes: "Axes", tree: Drawable, layout: FigureLayout) -> None:
    """Draw a pale line for every level, with its depth and number of nodes at its start."""
    font, widths = layout.font, tree.level_widths.tolist()
    if layout.sideways:
        names = [(layout.scale_y + lines * font, name) for lines, name in ((2.6, "depth"), (4.1, "nodes"))]
        every = int(np.ceil(0.62 * font * (len(str(max(tree.max_depth, *widths))) + 1) / layout.between_levels))
    else:
        names = [(4.2 * font, "depth"), (8.4 * font, "nodes")]
        every = int(np.ceil(1.3 * font / layout.between_levels))
    style: dict[str, Any] = {"ha": "center" if layout.sideways else "right", "va": "center", "fontsize": font}
    for (offset, name), colour in zip(names, (INK, MUTED), strict=True):
        position = (5.2 * font, offset) if layout.sideways else (offset, layout.scale_y)
        axes.text(*position, name, color=colour, **(style | {"ha": "right"}))
    for depth in range(0, tree.max_depth + 1, every):
        level = layout.level(depth)
        ends = (
            (layout.top - 1.5 * font, layout.height - font)
            if layout.sideways
            else (layout.left, layout.width - 1.3 * font)
        )
        line = ([level, level], ends) if layout.sideways else (ends, [level, level])
        axes.plot(*line, color=PALE, linewidth=0.8, clip_on=False, zorder=0)
        for (offset, _), number, colour in zip(names, (depth, widths[depth]), (INK, MUTED), strict=True):
            position = (level, offset) if layout.sideways else (offset, level)
            axes.text(*position, str(number), color=colour, **style)


def _draw_branches(axes: "Axes", tree: Drawable, layout: FigureLayout) -> None:
    """Draw the branches, thicker below larger nodes; one patch per thickness."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points = branch_curves(np.stack([layout.x, layout.y], axis=-1), tree.parents, sideways=layout.sideways)
    widths = np.rint(5 * np.clip(0.25 * layout.radius[1:], 0.4, 2.4)) / 5
    codes = np.array([Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4], dtype=Path.code_type)
    for width in np.unique(widths):
        curves = points[widths == width]
        path = Path(curves.reshape(-1, 2), np.tile(codes, len(curves)))
        branches = PathPatch(path, fill=False, edgecolor=LINE, linewidth=width, clip_on=False, zorder=2)
        branches.set_rasterized(tree.nodes > MOST_OUTLINED)
        axes.add_patch(branches)


def _draw_percentages(axes: "Axes", tree: Drawable, layout: FigureLayout, reach: Float64) -> None:
    """Write the percentages next to the nodes, or above them in sideways trees, where there is room."""
    font = min(0.85 * layout.font, 0.22 * layout.between_nodes) if not layout.sideways else 0.85 * layout.font
    if font < 5 or (layout.between_nodes if layout.sideways else layout.between_levels) < 1.3 * font:
        return
    background = {"facecolor": WHITE, "edgecolor": "none", "pad": 0.6}  # over the level's line, below the branches
    style: dict[str, Any] = {"fontsize": font, "color": INK, "bbox": background, "zorder": 1}
    for node in range(tree.nodes):
        text = format_percent(float(reach[node])) + "\u2009%"
        x, y, radius = float(layout.x[node]), float(layout.y[node]), float(layout.radius[node])
        if layout.sideways:
            first = node == 0 or tree.depth[node] > tree.depth[node - 1]
            above = -np.inf if first else layout.y[node - 1] + layout.radius[node - 1]
            if text_width(text, font) < 0.95 * layout.between_levels and y - radius - 1.3 * font > above:
                axes.text(x, y - radius - 0.25 * font, text, ha="center", va="bottom", **style)
            continue
        start = x + radius + 0.35 * font
        last = node + 1 == tree.nodes or tree.depth[node + 1] > tree.depth[node]
        if last or start + text_width(text, font) + 0.3 * font < layout.x[node + 1] - layout.radius[node + 1]:
            axes.text(start, y, text, va="center", **style)


def _draw_scale(figure: "Figure", layout: FigureLayout) -> None:
    """Draw the scale of colours on the right."""
    font, length, thickness = layout.font, 15 * layout.font, 0.8 * layout.font
    left, bottom = layout.width - 2.6 * font - length, layout.height - layout.scale_y - thickness / 2
    size = (length / layout.width, thickness / layout.height)
    axes = figure.add_axes((left / layout.width, bottom / layout.height, *size), xlim=(0, 1), ylim=(0, 1), yticks=[])
    starts = np.arange(TINTS) / TINTS  # of reach ** 0.4
    colours = [tint(float(_strength((start + 0.5 / TINTS) ** 2.5))) for start in starts]
    axes.bar(starts, 1, 1 / TINTS, align="edge", color=colours, clip_on=False, antialiased=False)
    ticks = np.array([0.01, 0.1, 0.3, 0.6, 1.0])
    labels = [f"{100 * value:.0f}\u2009%" for value in ticks]
    axes.set_xticks(ticks**0.4, labels, fontsize=0.85 * font, color=MUTED)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=0.3 * font)
    style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": font, "color": MUTED}
    axes.text(-0.04, 0.5, "probability of being reached", transform=axes.transAxes, **style)
