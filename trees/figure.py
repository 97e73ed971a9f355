"""Figure of a tree: one row per depth, or one column for deep trees; size and colour show the reach of each node."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arguments import instance
from treeopt.arrays import Float64
from treeopt.files.picture_file import checked_suffix, save_drawing
from treeopt.pictures.style import BLUE, INK, LINE, MUTED, PALE, POINTS, REACH_MAP, WHITE, text_width
from treeopt.trees.figure_sheet import Sheet, sheet
from treeopt.trees.layout import branch_curves
from treeopt.trees.text_diagram import percent
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import TreeFile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST_LABELLED = 64
"""Most nodes of a tree whose nodes have percentages."""
MOST_OUTLINED = 4096
"""Larger trees are pixels also in SVG and PDF, where outlines would take tens of megabytes."""


def save_figure(
    tree: TokenTree,
    path: Path | str,
    *,
    reach: Float64 | None = None,
    title: str | None = None,
    subtitle: str | None = None,
) -> None:
    """Write an SVG, PNG or PDF figure of the tree, by the suffix of `path`; equal trees give equal bytes.

    Args:
        tree: the tree to draw.
        path: file to write, ending in .svg, .png or .pdf.
        reach: float64 (n,), probability that a step reaches each node; without it all nodes look the same.
        title: a line above the tree, such as `treeopt.trees.headline` returns.
        subtitle: a smaller line below the title.

    Raises InvalidValueError for another suffix or when `reach` does not fit the tree, TreeoptError when the file
    cannot be written.
    """
    checked_suffix(path)
    instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
    if reach is not None:
        reach = TreeFile(tree=tree, reach=reach).reach  # checks that they fit
    save_drawing(lambda: _draw(tree, reach, title=title or "", subtitle=subtitle or ""), path)


def _draw(tree: TokenTree, reach: Float64 | None, *, title: str = "", subtitle: str = "") -> "Figure":
    """Return the picture; arguments as for `save_figure`."""
    from matplotlib.figure import Figure

    place = sheet(tree, reach, title, subtitle)
    figure = Figure(figsize=(place.width / POINTS, place.height / POINTS), facecolor=WHITE)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, place.width), ylim=(place.height, 0))
    axes.set_axis_off()
    place.heading.draw(figure)
    colours = _colours()
    _draw_levels(axes, tree, place)
    _draw_branches(axes, tree, place)
    faces = BLUE if reach is None else colours.to_rgba(reach)
    rims = np.minimum(0.8, 0.15 * place.radius).tolist()
    nodes = axes.scatter(place.x, place.y, (2 * place.radius) ** 2, faces, linewidths=rims, edgecolors=WHITE, zorder=3)
    nodes.set_rasterized(tree.nodes > MOST_OUTLINED)
    if reach is not None:
        _draw_scale(figure, place, colours)
        if tree.nodes <= MOST_LABELLED:
            _draw_percentages(axes, tree, place, reach)
    return figure


def _colours() -> "ScalarMappable":
    """Return a map from probabilities to darker and darker colours, with more contrast for small probabilities."""
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, PowerNorm

    return ScalarMappable(PowerNorm(0.4, 0, 1), ListedColormap(mpl.colormaps[REACH_MAP](np.linspace(0.3, 1, 256))))


def _draw_levels(axes: "Axes", tree: TokenTree, place: Sheet) -> None:
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
        axes.plot(*line, color=PALE, linewidth=0.8, zorder=0)
        for (at, _), text, colour in zip(names, (depth, widths[depth]), (INK, MUTED), strict=True):
            axes.text(*((level, at) if place.sideways else (at, level)), str(text), color=colour, **style)


def _draw_branches(axes: "Axes", tree: TokenTree, place: Sheet) -> None:
    """Draw the branches; thicker below larger nodes."""
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path as Curve

    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    points = branch_curves(np.stack([place.x, place.y], axis=-1), tree.parents, sideways=place.sideways)
    widths = np.clip(0.25 * place.radius[1:], 0.4, 2.4)
    curves = PathCollection(
        [Curve(each, codes) for each in points], facecolors="none", edgecolors=LINE, linewidths=widths, zorder=2
    )
    curves.set_rasterized(tree.nodes > MOST_OUTLINED)
    axes.add_collection(curves)


def _draw_percentages(axes: "Axes", tree: TokenTree, place: Sheet, reach: Float64) -> None:
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


def _draw_scale(figure: "Figure", place: Sheet, colours: "ScalarMappable") -> None:
    """Draw the colour bar on the right."""
    font, length, thickness = place.font, 15 * place.font, 0.8 * place.font
    left, bottom = place.width - 2.6 * font - length, place.height - place.scale_y - thickness / 2
    size = (length / place.width, thickness / place.height)
    axes = figure.add_axes((left / place.width, bottom / place.height, *size))
    marks = [0.01, 0.1, 0.3, 0.6, 1.0]
    bar = figure.colorbar(colours, cax=axes, orientation="horizontal", ticks=marks)
    bar.set_ticklabels([f"{100 * value:.0f}\u2009%" for value in marks], fontsize=0.85 * font, color=MUTED)
    bar.minorticks_off()
    bar.outline.set_visible(False)
    axes.tick_params(length=0, pad=0.3 * font)
    style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": font, "color": MUTED}
    axes.text(-0.04, 0.5, "probability of being reached", transform=axes.transAxes, **style)
