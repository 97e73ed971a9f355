"""Sizes and positions in the figure of a tree: levels are rows, or columns for deep trees."""

from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Float64
from treeopt.plotting.style import Heading
from treeopt.trees.layout import Drawable, node_positions

# All lengths are points. Trees beyond the largest width or height are drawn closer together.
_GAP, _ROOMY_GAP = 34.0, 72.0  # between neighbours of a row
_STEEP_GAP, _ROOMY_STEEP_GAP = 34.0, 46.0  # between neighbours of a column
_ROW, _ROOMY_ROW = 46.0, 90.0  # between rows; of wide, low trees
_COLUMN, _ROOMY_COLUMN, _WIDE_COLUMN = 46.0, 64.0, 120.0  # between columns; of few levels
_COMMON, _WIDEST, _TALLEST = 640.0, 1000.0, 800.0
_RADIUS, _FONT = 11.0, 8.0
_SCALE_WIDTH = 33  # letters of the scale of probabilities and its name


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLayout:
    """Positions in points from the upper left corner."""

    heading: Heading
    sideways: bool
    """Whether levels are columns."""
    width: float
    height: float
    font: float
    left: float
    """End of the row labels and start of the tree."""
    top: float
    """End of the column labels and start of the tree."""
    scale_y: float
    """The middle of the scale of probabilities."""
    between_nodes: float
    between_levels: float
    x: Float64
    """float64 (n,), like y and radius."""
    y: Float64
    radius: Float64

    def level(self, depth: int) -> float:
        """Return the y of a row, or the x of a column."""
        return float(self.x[0] if self.sideways else self.y[0]) + self.between_levels * depth


def lay_out_figure(tree: Drawable, reach: Float64 | None, title: str, subtitle: str) -> FigureLayout:
    """Return the layout of a tree, sideways if it has more levels than neighbours."""
    across, along = node_positions(tree.parents), tree.depth.astype(float)
    sideways = tree.max_depth > across.max()
    between_levels, between_nodes = _distances(tree.max_depth, float(across.max()), sideways=sideways)
    across, along = across * between_nodes, along * between_levels
    x, y = (along, across) if sideways else (across, along)
    radius = _radii(tree, across, between_levels, np.full(tree.nodes, 0.15) if reach is None else reach)
    font = _FONT * max(1.0, x.max() / _COMMON)  # larger in figures that a page scales down
    left, right = (9.0 if sideways else 10.0) * font, 4 * font
    content = max(x.max(), _SCALE_WIDTH * font)
    width = left + content + right
    heading = Heading.wrap(title, subtitle, width=width, size=1.05 * font, margin=1.3 * font)
    scale_y = heading.height + 1.2 * font
    # sideways, two rows of labels are between the scale and the tree, and percentages above the nodes
    top = scale_y + (3.8 if not sideways else 3.2 if reach is None else 5.0) * font
    first = left + (content - x.max()) / 2
    if sideways:
        first, top = left + radius[0], top + 1.5 * font + radius[0]
    return FigureLayout(
        heading=heading,
        sideways=sideways,
        width=width,
        height=float(top + y.max() + (3 * font if not sideways else 1.5 * font + radius.max())),
        font=font,
        left=left,
        top=top,
        scale_y=scale_y,
        between_nodes=between_nodes,
        between_levels=between_levels,
        x=first + x,
        y=top + y,
        radius=radius,
    )


def _distances(levels: int, extent: float, *, sideways: bool) -> tuple[float, float]:
    """Return the distances between levels and between neighbours; `extent` is the width in neighbours."""
    levels, extent = max(levels, 1), max(extent, 1.0)
    if sideways:
        roomy = np.clip(_FONT * _SCALE_WIDTH / levels, _ROOMY_COLUMN, _WIDE_COLUMN)
        between_levels = min(np.clip(_COMMON / levels, _COLUMN, roomy), _WIDEST / levels)
        between_nodes = min(np.clip(0.3 * _COMMON / extent, _STEEP_GAP, _ROOMY_STEEP_GAP), _TALLEST / extent)
    else:
        between_nodes = min(np.clip(_COMMON / extent, _GAP, _ROOMY_GAP), _WIDEST / extent)
        between_levels = np.clip(0.4 * between_nodes * extent / levels, _ROW, _ROOMY_ROW)
        between_levels = min(between_levels, _TALLEST / levels)
    return float(between_levels), float(between_nodes)


def _radii(tree: Drawable, across: Float64, between_levels: float, reach: Float64) -> Float64:
    """Return the radii of the nodes, float64 (n,), scaled down so that no two nodes touch."""
    radius = _RADIUS * reach**0.4
    shrink, nearest = min(1.0, 0.4 * between_levels / radius[0]), between_levels
    for level in tree.levels:
        gaps = np.diff(across[level])
        shrink = np.min(0.85 * gaps / (radius[level][1:] + radius[level][:-1]), initial=shrink)
        nearest = np.min(gaps, initial=nearest)
    shrunk: Float64 = np.maximum(radius * shrink, min(1.5, 0.4 * nearest))
    return shrunk
