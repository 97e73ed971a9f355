"""Heat maps of rectangles and sets of lines, drawn as few SVG elements and readable on light and dark paper."""

import itertools
from typing import TYPE_CHECKING

import numpy as np

from treeopt.arrays import Bool, Float64

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = 25
"""Number of distinct densities."""


def draw_cells(axes: "Axes", x_edges: Float64, y_edges: Float64, density: Float64, colour: str) -> None:
    """Fill cells with a colour of different densities.

    Args:
        axes: whose limits do not change.
        x_edges: float64 (columns + 1,).
        y_edges: float64 (rows + 1,).
        density: float64 (rows, columns) from 0 to 1; below half a step a cell stays empty.
        colour: of all cells.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    steps = np.rint(STEPS * density).astype(int)
    corner = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for step in range(1, STEPS + 1):
        boxes = [
            [(x_edges[first], low), (x_edges[last], low), (x_edges[last], high), (x_edges[first], high)]
            for row, (low, high) in enumerate(itertools.pairwise(y_edges))
            for first, last in runs(steps[row] == step)
        ]
        if boxes:
            points = np.array([[*box, box[0]] for box in boxes]).reshape(-1, 2)
            path = Path(points, np.tile(np.array(corner, dtype=Path.code_type), len(boxes)))
            axes.add_patch(PathPatch(path, facecolor=colour, alpha=step / STEPS, linewidth=0, antialiased=False))


def draw_lines(axes: "Axes", lines: Float64, colour: str, width: float, *, z: float, cap: str = "butt") -> None:
    """Draw straight lines as one path.

    Args:
        axes: whose limits follow the lines.
        lines: float64 (lines, 2, 2): start and end of each.
        colour: of all lines.
        width: points.
        z: the order of drawing.
        cap: `butt`, `projecting` or `round`.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    path = Path(lines.reshape(-1, 2), np.tile(np.array([Path.MOVETO, Path.LINETO], Path.code_type), len(lines)))
    path.should_simplify = False
    axes.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=width, capstyle=cap, zorder=z))


def runs(marked: Bool) -> list[tuple[int, int]]:
    """Return the start and end of each run of marked entries.

    >>> runs(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    ends = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]])))
    return [(int(first), int(last)) for first, last in ends.reshape(-1, 2)]
