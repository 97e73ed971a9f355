"""A tree as a picture: root on top, one row per depth, size and colour for how often a step reaches a node."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arguments import instance
from treeopt.figure_file import checked_suffix, save_drawing
from treeopt.trees.layout import layout
from treeopt.trees.text_drawing import percent
from treeopt.trees.token_tree import FloatArray, TokenTree
from treeopt.trees.tree_file import TreeFile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST_LABELLED = 64
"""Trees of at most that many nodes have percentages written beside the nodes."""

# All lengths are points. A tree that would be wider or taller than the limits has everything closer together.
_GAP, _ROOMY_GAP, _WIDEST = 34.0, 44.0, 1000.0  # between neighbours; in narrow trees; all of a level
_ROW, _ROOMY_ROW, _TALLEST = 46.0, 90.0, 800.0  # between levels; of wide, low trees; all levels
_RADIUS = 11.0
_DARK, _MEDIUM, _GREY, _PALE, _BLUE = "#24292f", "#57606a", "#b6bcc4", "#f0f2f4", "#2c7fb8"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    """Where things stand, in points from the upper left corner."""

    width: float
    height: float
    font: float
    left: float
    top: float
    gap: float
    row: float
    x: FloatArray
    y: FloatArray
    radius: FloatArray


def save_figure(
    tree: TokenTree, path: Path | str, *, reach: FloatArray | None = None, title: str | None = None
) -> None:
    """Draw the tree into an SVG, PNG or PDF file, as the path's suffix says; equal trees give equal bytes.

    Args:
        tree: the tree to draw.
        path: file to write, ending in .svg, .png or .pdf.
        reach: float64 (n,), probability that a step reaches each node; without it all nodes look alike.
        title: a line above the picture.

    Raises InvalidValueError for another suffix or when `reach` does not fit the tree, TreeoptError when the file
    cannot be written.
    """
    checked_suffix(path)
    instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
    if reach is not None:
        reach = TreeFile(tree=tree, reach=reach).reach  # checks that they fit
    save_drawing(lambda: _draw(tree, reach, title), path)


def _measure(tree: TokenTree, reach: FloatArray | None, title: str | None) -> _Sheet:
    x, y = layout(tree)
    gap = min(np.clip(640 / max(x.max(), 1), _GAP, _ROOMY_GAP), _WIDEST / max(x.max(), 1))
    x *= gap
    row = min(np.clip(0.4 * x.max() / max(tree.max_depth, 1), _ROW, _ROOMY_ROW), _TALLEST / max(tree.max_depth, 1))
    font = 8 * max(1.0, x.max() / 640)  # larger where a page will show the picture smaller
    left, right, top = 10 * font, 4 * font, (8.8 if title else 6.2) * font
    content = max(x.max(), (12 if reach is None else 33) * font, 0.9 * font * len(title or "") - left)
    return _Sheet(
        width=left + content + right,
        height=top + row * tree.max_depth + 3 * font,
        font=font,
        left=left,
        top=top,
        gap=gap,
        row=row,
        x=left + x + (content - x.max()) / 2,
        y=top + row * y,
        radius=_radii(tree, x, row, np.full(tree.nodes, 0.15) if reach is None else reach),
    )


def _radii(tree: TokenTree, x: FloatArray, row: float, reach: FloatArray) -> FloatArray:
    """Return the nodes' radii, all shrunk by what it takes that no two nodes touch."""
    radius = _RADIUS * reach**0.4
    shrink, nearest = min(1.0, 0.4 * row / radius[0]), row
    for level in tree.levels:
        gaps = np.diff(x[level])
        shrink = np.min(0.85 * gaps / (radius[level][1:] + radius[level][:-1]), initial=shrink)
        nearest = np.min(gaps, initial=nearest)
    shrunk: FloatArray = np.maximum(radius * shrink, min(1.5, 0.4 * nearest))
    return shrunk


def _draw(tree: TokenTree, reach: FloatArray | None, title: str | None) -> "Figure":
    from matplotlib.figure import Figure

    sheet = _measure(tree, reach, title)
    figure = Figure(figsize=(sheet.width / 72, sheet.height / 72), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, sheet.width), ylim=(sheet.height, 0))
    axes.set_axis_off()
    if title:
        large = 1.4 * sheet.font
        axes.text(1.3 * sheet.font, 2 * sheet.font, title, fontsize=large, weight="bold", va="center", color=_DARK)
    colours = _colours()
    _draw_levels(axes, tree, sheet)
    _draw_branches(axes, tree, sheet)
    faces = _BLUE if reach is None else colours.to_rgba(reach)
    rims = np.minimum(0.8, 0.15 * sheet.radius).tolist()
    axes.scatter(sheet.x, sheet.y, (2 * sheet.radius) ** 2, faces, linewidths=rims, edgecolors="white", zorder=3)
    if reach is not None:
        _draw_scale(figure, sheet, colours)
        if tree.nodes <= MOST_LABELLED:
            _draw_percentages(axes, tree, sheet, reach)
    return figure


def _colours() -> "ScalarMappable":
    """Map probabilities to colours whose brightness falls, spread out so that small ones can be told apart."""
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, PowerNorm

    return ScalarMappable(PowerNorm(0.4, 0, 1), ListedColormap(mpl.colormaps["YlGnBu"](np.linspace(0.3, 1, 256))))


def _draw_levels(axes: "Axes", tree: TokenTree, sheet: _Sheet) -> None:
    """Draw a pale line for every level, with its depth and width on the left."""
    every = int(np.ceil(1.3 * sheet.font / sheet.row))
    style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": sheet.font}
    depth_x, width_x, header_y = 4.2 * sheet.font, 8.4 * sheet.font, sheet.top - 3.8 * sheet.font
    axes.text(depth_x, header_y, "depth", color=_DARK, **style)
    axes.text(width_x, header_y, "nodes", color=_MEDIUM, **style)
    for depth in range(0, tree.max_depth + 1, every):
        y = sheet.top + sheet.row * depth
        axes.plot([sheet.left, sheet.width - 1.3 * sheet.font], [y, y], color=_PALE, linewidth=0.8, zorder=0)
        axes.text(depth_x, y, str(depth), color=_DARK, **style)
        axes.text(width_x, y, str(tree.level_widths[depth]), color=_MEDIUM, **style)


def _draw_branches(axes: "Axes", tree: TokenTree, sheet: _Sheet) -> None:
    """Draw curves that leave and arrive upright: those of a level never cross, and they touch no other node."""
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path as Curve

    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    curves = []
    for node, parent in enumerate(tree.parents[1:].tolist(), start=1):
        (x0, y0), (x1, y1) = (sheet.x[parent], sheet.y[parent]), (sheet.x[node], sheet.y[node])
        curves.append(Curve([(x0, y0), (x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2), (x1, y1)], codes))
    widths = np.clip(0.25 * sheet.radius[1:], 0.4, 2.4)
    axes.add_collection(PathCollection(curves, facecolors="none", edgecolors=_GREY, linewidths=widths, zorder=2))


def _draw_percentages(axes: "Axes", tree: TokenTree, sheet: _Sheet, reach: FloatArray) -> None:
    """Write the percentages to the right of the nodes wherever there is room before the next."""
    font = min(0.85 * sheet.font, 0.22 * sheet.gap)
    if font < 5 or sheet.row < 1.3 * font:
        return
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # over the level's line, below the branches
    for node in range(tree.nodes):
        text = percent(float(reach[node])) + "\u2009%"
        start = sheet.x[node] + sheet.radius[node] + 0.35 * font
        stop = start + font * (0.64 * len(text) - 0.3)
        last = node + 1 == tree.nodes or tree.depth[node + 1] > tree.depth[node]
        if last or stop + 0.3 * font < sheet.x[node + 1] - sheet.radius[node + 1]:
            axes.text(start, sheet.y[node], text, fontsize=font, va="center", color=_DARK, bbox=paper, zorder=1)


def _draw_scale(figure: "Figure", sheet: _Sheet, colours: "ScalarMappable") -> None:
    """Draw the colour bar on the right of the line that names the columns."""
    font, length, thickness = sheet.font, 15 * sheet.font, 0.8 * sheet.font
    left, bottom = sheet.width - 2.6 * font - length, sheet.height - sheet.top + 3.4 * font
    size = (length / sheet.width, thickness / sheet.height)
    axes = figure.add_axes((left / sheet.width, bottom / sheet.height, *size))
    shown = [0.01, 0.1, 0.3, 0.6, 1.0]
    bar = figure.colorbar(colours, cax=axes, orientation="horizontal", ticks=shown)
    bar.set_ticklabels([f"{100 * value:.0f}\u2009%" for value in shown], fontsize=0.85 * font, color=_MEDIUM)
    bar.minorticks_off()
    bar.outline.set_visible(False)
    axes.tick_params(length=0, pad=0.3 * font)
    style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": font, "color": _MEDIUM}
    axes.text(-0.04, 0.5, "probability of being reached", transform=axes.transAxes, **style)
