"""Labels beside points, where they cover neither another label nor a point nor a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from treeopt.arrays import Float64
from treeopt.pictures.style import LINE, MUTED, shown, size_of, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DISTANCES = tuple(6.0 * 1.25**step for step in range(18))
"""Points from a point to the middle of its label's nearer side, tried from the nearest on."""
DIRECTIONS = tuple(np.pi / 8 * turn for turn in (0, 15, 1, 8, 7, 9, 14, 2, 4, 12, 3, 13, 5, 11, 6, 10))
"""Tried in this order: to the right, to the left, above, below."""
NEAR = 9.0
"""Labels farther from their point than this have a line to it."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle around a middle, in points."""

    x: float
    y: float
    width: float
    height: float

    def corners(self) -> Float64:
        """Return float64 (4, 2), around."""
        x, y = self.width / 2, self.height / 2
        return np.array([[self.x + dx, self.y + dy] for dx, dy in ((-x, -y), (x, -y), (x, y), (-x, y))])

    def meets(self, other: "Box") -> bool:
        """Return whether they have more in common than an edge."""
        across, along = abs(self.x - other.x), abs(self.y - other.y)
        return 2 * across < self.width + other.width and 2 * along < self.height + other.height

    def crossed_by(self, start: Float64, end: Float64) -> bool:
        """Return whether a straight line from start to end enters it (Liang and Barsky, 1984)."""
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
    size: float = 7.0,
    radius: float = 3.5,
    lines: Sequence[Float64] = (),
) -> None:
    """Write a text beside each point, as near as it finds room, farther ones with a line to their point.

    The limits of the axes have to be set before.

    Args:
        axes: where.
        points: float64 (n, 2), in data coordinates.
        texts: n, one line each.
        size: of the letters.
        radius: points around each point that stay free.
        lines: float64 (2, 2) each, ends in data coordinates of straight lines that no label may cover.
    """
    middles, scale = _in_points(axes, points), _frame(axes)
    walls = [_in_points(axes, line) for line in lines]
    taken = [Box(float(x), float(y), 2 * radius, 2 * radius) for x, y in middles]
    for point, middle, text in zip(points, middles, map(shown, texts), strict=True):
        width, height = text_width(text, size) + 2.0, 1.15 * size
        box = _room(middle, width, height, taken, walls, scale)
        taken.append(box)
        offset = np.array([box.x, box.y]) - middle
        far = max(abs(offset[0]) - width / 2, abs(offset[1]) - height / 2) > NEAR
        line = {"arrowstyle": "-", "color": LINE, "linewidth": 0.6, "shrinkA": 0, "shrinkB": radius}
        axes.annotate(
            text,
            (float(point[0]), float(point[1])),
            xytext=(float(offset[0]), float(offset[1])),
            textcoords="offset points",
            ha="center",
            va="center_baseline",
            fontsize=size,
            color=MUTED,
            arrowprops=line if far else None,
            annotation_clip=False,
            zorder=3,
        )


def _room(
    middle: Float64,
    width: float,
    height: float,
    taken: Sequence[Box],
    walls: Sequence[Float64],
    frame: Box,
) -> Box:
    """Return the nearest free place for a label, or the one that meets least where none is free."""
    best, fewest = Box(float(middle[0]), float(middle[1]), width, height), np.inf
    for distance in DISTANCES:
        for turn in DIRECTIONS:
            across, along = np.cos(turn), np.sin(turn)
            reach = min(width / 2 / max(abs(across), 1e-9), height / 2 / max(abs(along), 1e-9))
            x, y = middle + (distance + reach) * np.array([across, along])
            box = Box(float(x), float(y), width, height)
            if (
                abs(box.x - frame.x) + width / 2 > frame.width / 2
                or abs(box.y - frame.y) + height / 2 > frame.height / 2
            ):
                continue
            met = sum(box.meets(other) for other in taken) + sum(box.crossed_by(*wall) for wall in walls)
            own = [other for other in taken if (other.x, other.y) != (middle[0], middle[1])]
            met += sum(other.crossed_by(middle, np.array([box.x, box.y])) for other in own)
            if met < fewest:
                best, fewest = box, met
            if met == 0:
                return box
    return best


def _frame(axes: "Axes") -> Box:
    """Return the axes' own rectangle, from their lower left corner on."""
    width, height = size_of(axes)
    return Box(width / 2, height / 2, width, height)


def _in_points(axes: "Axes", places: Float64) -> Float64:
    """Return places, (n, 2), in points from the axes' lower left corner."""
    inside = (axes.transData - axes.transAxes).transform(places)
    return np.asarray(inside * np.array(size_of(axes)))
