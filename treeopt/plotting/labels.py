"""Labels next to points that cover neither other labels nor points nor lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from treeopt.arrays import Float64
from treeopt.plotting.style import LINE, MUTED, printable_glyphs, size_of, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DISTANCES = tuple(6.0 * 1.25**step for step in range(18))
"""Distances from a point to the middle of its label's nearer side, in the order tried."""
DIRECTIONS = tuple(np.pi / 8 * turn for turn in (0, 15, 1, 8, 7, 9, 14, 2, 4, 12, 3, 13, 5, 11, 6, 10))
"""Angles in the order tried: right, left, above, below, and between."""
SIZE, RADIUS = 8.5, 3.5
"""Font size of labels, and free space around each point."""
NEAR = 9.0
"""A label farther from its point has a line to it."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle around its middle, in points."""

    x: float
    y: float
    width: float
    height: float

    def corners(self) -> Float64:
        """Return float64 (4, 2), in order."""
        x, y = self.width / 2, self.height / 2
        return np.array([[self.x + dx, self.y + dy] for dx, dy in ((-x, -y), (x, -y), (x, y), (-x, y))])

    def overlaps(self, other: "Box") -> bool:
        """Whether the boxes share more than an edge."""
        dx, dy = abs(self.x - other.x), abs(self.y - other.y)
        return 2 * dx < self.width + other.width and 2 * dy < self.height + other.height

    def crossed_by(self, start: Float64, end: Float64) -> bool:
        """Whether the line from start to end enters the box (Liang and Barsky, 1984)."""
        direction, first, last = end - start, 0.0, 1.0
        for axis, (middle, size) in enumerate(((self.x, self.width), (self.y, self.height))):
            low, high = middle - size / 2 - start[axis], middle + size / 2 - start[axis]
            if direction[axis] == 0:
                if low >= 0 or high <= 0:
                    return False
                continue
            enter, leave = sorted((low / direction[axis], high / direction[axis]))
            first, last = max(first, enter), min(last, leave)
        return bool(first < last)


def label_points(
    axes: "Axes",
    points: Float64,
    texts: Sequence[str],
    *,
    lines: Sequence[Float64] = (),
) -> None:
    """Write a label next to each point, in the nearest free place, with a line to the point if that is far.

    Set the limits of the axes first.

    Args:
        axes: of the points.
        points: float64 (n, 2), in data coordinates.
        texts: n labels of one line.
        lines: ends, float64 (2, 2) in data coordinates, of straight lines that labels do not cover.
    """
    middles, frame = _in_points(axes, points), _frame(axes)
    obstacles = [_in_points(axes, line) for line in lines]
    boxes = [Box(float(x), float(y), 2 * RADIUS, 2 * RADIUS) for x, y in middles]
    for point, middle, text in zip(points, middles, map(printable_glyphs, texts), strict=True):
        width, height = text_width(text, SIZE) + 2.0, 1.15 * SIZE
        box = _free_box(middle, width, height, boxes, obstacles, frame)
        boxes.append(box)
        offset = np.array([box.x, box.y]) - middle
        far = max(abs(offset[0]) - width / 2, abs(offset[1]) - height / 2) > NEAR
        line = {"arrowstyle": "-", "color": LINE, "linewidth": 0.6, "shrinkA": 0, "shrinkB": RADIUS}
        axes.annotate(
            text,
            (float(point[0]), float(point[1])),
            xytext=(float(offset[0]), float(offset[1])),
            textcoords="offset points",
            ha="center",
            va="center_baseline",
            fontsize=SIZE,
            color=MUTED,
            arrowprops=line if far else None,
            annotation_clip=False,
            zorder=3,
        )


def _free_box(
    middle: Float64,
    width: float,
    height: float,
    boxes: Sequence[Box],
    lines: Sequence[Float64],
    frame: Box,
) -> Box:
    """Return the nearest free box for a label, or else the one with the fewest conflicts."""
    best, fewest = Box(float(middle[0]), float(middle[1]), width, height), np.inf
    for distance in DISTANCES:
        for angle in DIRECTIONS:
            dx, dy = np.cos(angle), np.sin(angle)
            extent = min(width / 2 / max(abs(dx), 1e-9), height / 2 / max(abs(dy), 1e-9))
            x, y = middle + (distance + extent) * np.array([dx, dy])
            box = Box(float(x), float(y), width, height)
            if (
                abs(box.x - frame.x) + width / 2 > frame.width / 2
                or abs(box.y - frame.y) + height / 2 > frame.height / 2
            ):
                continue
            conflicts = sum(box.overlaps(other) for other in boxes) + sum(box.crossed_by(*line) for line in lines)
            others = [other for other in boxes if (other.x, other.y) != (middle[0], middle[1])]
            conflicts += sum(other.crossed_by(middle, np.array([box.x, box.y])) for other in others)
            if conflicts < fewest:
                best, fewest = box, conflicts
            if conflicts == 0:
                return box
    return best


def _frame(axes: "Axes") -> Box:
    """Return the rectangle of the axes, with the origin in their lower left corner."""
    width, height = size_of(axes)
    return Box(width / 2, height / 2, width, height)


def _in_points(axes: "Axes", positions: Float64) -> Float64:
    """Return positions (n, 2) in points from the axes' lower left corner."""
    fractions = (axes.transData - axes.transAxes).transform(positions)
    return np.asarray(fractions * np.array(size_of(axes)))
