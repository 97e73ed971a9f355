"""Figure of a tree: one row per depth, or one column for deep trees; size and colour show the reach of each node."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Float64
from treeopt.pictures.style import (
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
from treeopt.pictures.svg import svg_text, tip
from treeopt.trees.figure_sheet import Sheet, sheet
from treeopt.trees.layout import Drawable, branch_curves, percent, rank_paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_LABELLED = 64
"""Most nodes of a tree whose nodes have percentages."""
MOST_INLINE = 1024
MOST_OUTLINED = 4096
"""Larger trees are pixels also in SVG and PDF, where outlines would take tens of megabytes."""


def tree_figure(
    tree: Drawable, reach: Float64 | None = None, *, title: str = "", subtitle: str = "", tips: Sequence[str] = ()
) -> "Figure":
    """Return the matplotlib figure of a tree; arguments as for `treeopt.trees.save_figure`, and a tooltip for each node."""
    from matplotlib.figure import Figure

    place = sheet(tree, reach, title, subtitle)
    with house_style():
        figure = Figure(figsize=(place.width / POINTS, place.height / POINTS), facecolor=WHITE)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, place.width), ylim=(place.height, 0))
        axes.set_axis_off()
        place.heading.draw(figure)
        _draw_levels(axes, tree, place)
        _draw_branches(axes, tree, place)
        _draw_nodes(axes, tree, place, reach, tips)
        if reach is not None:
            _draw_scale(figure, place)
            if tree.nodes <= MOST_LABELLED:
                _draw_percentages(axes, tree, place, reach)
    return figure


def inline_svg(tree: Drawable, reach: Float64 | None = None) -> str | None:
    """Return the figure for a notebook; None for more nodes than a notebook shows without delay."""
    return svg_text(tree_figure(tree, reach)) if tree.nodes <= MOST_INLINE else None


def node_tips(tree: Drawable, reach: Float64 | None = None) -> list[str]:
    """Return the number, path and reach of every node.

    >>> from treeopt.trees import TokenTree
    >>> node_tips(TokenTree([-1, 0, 0, 2]))[3]
    'node 3, depth 2, ranks 1, 0'
    """
    names = [
        f"node {node}, depth {len(path)}, ranks {', '.join(map(str, path))}" if node else "node 0, the root"
        for node, path in enumerate(rank_paths(tree.parents, tree.rank))
    ]
    if reach is None:
        return names
    return [f"{name}: reached by {100 * share:.3g} %" for name, share in zip(names, reach.tolist(), strict=True)]


def _draw_nodes(axes: "Axes", tree: Drawable, place: Sheet, reach: Float64 | None, tips: Sequence[str]) -> None:
    """Draw the nodes in groups of one size and colour, which SVG holds in few bytes."""
    strength = np.ones(tree.nodes) if reach is None else _strength(reach)
    rasterized = tree.nodes > MOST_OUTLINED
    if not rasterized:
        tips = tips or node_tips(tree, reach)
    groups = np.rint(TINTS * strength).astype(int)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        radius = float(place.radius[members].min())
        rim = min(0.8, 0.15 * radius)
        nodes = axes.scatter(
            *(place.x[members], place.y[members], (2 * radius) ** 2),
            color=tint(group / TINTS),
            linewidths=rim,
            edgecolors=WHITE,
            clip_on=False,
            zorder=3,
        )
        nodes.set_rasterized(rasterized)
        if not rasterized:
            tip(nodes, *(tips[node] for node in members.tolist()))


def _strength(reach: Float64) -> Float64:
    """Return how strong colours are, with more contrast for small probabilities."""
    return np.asarray(0.2 + 0.8 * reach**0.4)


def _draw_levels(axes: "Axes", tree: Drawable, place: Sheet) -> None:
    """Draw a pale line for every level, with its depth and number of nodes at its start."""
    font, widths = place.font, tree.level_widths.tolist()
    if place.sideways:
        names = [(place.scale_y + lines * font, name) for lines, name in ((2.6, "depth"), (4.1, "nodes"))]
        every = int(np.ceil(0.62 * font * (len(str(max(tree.max_depth, *widths))) + 1) / place.between_levels))
    else:
        names = [(4.2 * font, "depth"), (8.4 * font, "nodes")]
        every = int(np.ceil(1.3 * font / place.between_levels))
    style: dict[str, Any] = {"ha": "center" if place.sideways else "right", "va": "center", "fontsize": font}
    for (at, name), colour in zip(names, (INK, MUTED), strict=True):
        spot = (5.2 * font, at) if place.sideways else (at, place.scale_y)
        axes.text(*spot, name, color=colour, **(style | {"ha": "right"}))
    for depth in range(0, tree.max_depth + 1, every):
        level = place.level(depth)
        ends = (
            (place.top - 1.5 * font, place.height - font) if place.sideways else (place.left, place.width - 1.3 * font)
        )
        line = ([level, level], ends) if place.sideways else (ends, [level, level])
        axes.plot(*line, color=PALE, linewidth=0.8, clip_on=False, zorder=0)
        for (at, _), text, colour in zip(names, (depth, widths[depth]), (INK, MUTED), strict=True):
            axes.text(*((level, at) if place.sideways else (at, level)), str(text), color=colour, **style)


def _draw_branches(axes: "Axes", tree: Drawable, place: Sheet) -> None:
    """Draw the branches, thicker below larger nodes, those of one thickness at once."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    points = branch_curves(np.stack([place.x, place.y], axis=-1), tree.parents, sideways=place.sideways)
    widths = np.rint(5 * np.clip(0.25 * place.radius[1:], 0.4, 2.4)) / 5
    codes = np.array([Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4], dtype=Curve.code_type)
    for width in np.unique(widths):
        curves = points[widths == width]
        path = Curve(curves.reshape(-1, 2), np.tile(codes, len(curves)))
        branches = PathPatch(path, fill=False, edgecolor=LINE, linewidth=width, clip_on=False, zorder=2)
        branches.set_rasterized(tree.nodes > MOST_OUTLINED)
        axes.add_patch(branches)


def _draw_percentages(axes: "Axes", tree: Drawable, place: Sheet, reach: Float64) -> None:
    """Write the percentages next to the nodes, or above them in sideways trees, where there is room."""
    font = min(0.85 * place.font, 0.22 * place.between_nodes) if not place.sideways else 0.85 * place.font
    if font < 5 or (place.between_nodes if place.sideways else place.between_levels) < 1.3 * font:
        return
    paper = {"facecolor": WHITE, "edgecolor": "none", "pad": 0.6}  # over the level's line, below the branches
    style: dict[str, Any] = {"fontsize": font, "color": INK, "bbox": paper, "zorder": 1}
    for node in range(tree.nodes):
        text = percent(float(reach[node])) + "\u2009%"
        x, y, radius = (float(each[node]) for each in (place.x, place.y, place.radius))
        if place.sideways:
            first = node == 0 or tree.depth[node] > tree.depth[node - 1]
            above = -np.inf if first else place.y[node - 1] + place.radius[node - 1]
            if text_width(text, font) < 0.95 * place.between_levels and y - radius - 1.3 * font > above:
                axes.text(x, y - radius - 0.25 * font, text, ha="center", va="bottom", **style)
            continue
        start = x + radius + 0.35 * font
        last = node + 1 == tree.nodes or tree.depth[node + 1] > tree.depth[node]
        if last or start + text_width(text, font) + 0.3 * font < place.x[node + 1] - place.radius[node + 1]:
            axes.text(start, y, text, va="center", **style)


def _draw_scale(figure: "Figure", place: Sheet) -> None:
    """Draw the scale of colours on the right."""
    font, length, thickness = place.font, 15 * place.font, 0.8 * place.font
    left, bottom = place.width - 2.6 * font - length, place.height - place.scale_y - thickness / 2
    size = (length / place.width, thickness / place.height)
    axes = figure.add_axes((left / place.width, bottom / place.height, *size), xlim=(0, 1), ylim=(0, 1), yticks=[])
    starts = np.arange(TINTS) / TINTS  # of reach ** 0.4
    colours = [tint(float(_strength((start + 0.5 / TINTS) ** 2.5))) for start in starts]
    axes.bar(starts, 1, 1 / TINTS, align="edge", color=colours, clip_on=False, antialiased=False)
    marks = np.array([0.01, 0.1, 0.3, 0.6, 1.0])
    names = [f"{100 * value:.0f}\u2009%" for value in marks]
    axes.set_xticks(marks**0.4, names, fontsize=0.85 * font, color=MUTED)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=0.3 * font)
    style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": font, "color": MUTED}
    axes.text(-0.04, 0.5, "probability of being reached", transform=axes.transAxes, **style)
