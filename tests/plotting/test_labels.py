"""Labels in crowds of points, at corners and along lines."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.support.figures import box, seen
from treeopt.plotting.labels import Box, label_points


@pytest.mark.parametrize(
    ("start", "end", "crosses"),
    [
        ((-9, 0), (9, 0), True),
        ((-9, 1.5), (9, 1.5), False),
        ((-9, 1), (9, 1), False),
        ((-9, 0), (-3, 0), False),
        ((0, 0), (0.1, 0.1), True),
        ((-3, -2), (3, 2), True),
        ((-3, 0), (0, 9), False),
        ((-2, -9), (-2, 9), False),
    ],
)
def test_lines_cross_boxes(start: tuple[float, float], end: tuple[float, float], crosses: bool) -> None:
    assert Box(0, 0, 4, 2).crossed_by(np.array(start), np.array(end)) is crosses
    assert Box(7, 7, 4, 2).crossed_by(np.array(start) + 7, np.array(end) + 7) is crosses


@pytest.mark.parametrize(("shift", "meets"), [((3.9, 0), True), ((4, 0), False), ((0, 2), False), ((3, 1.9), True)])
def test_boxes_overlap(shift: tuple[float, float], meets: bool) -> None:
    assert Box(0, 0, 4, 2).overlaps(Box(*shift, 4, 2)) is meets
    assert Box(*shift, 4, 2).overlaps(Box(0, 0, 4, 2)) is meets


@pytest.mark.parametrize("seed", range(2))
def test_labels_of_many_points_cover_nothing(seed) -> None:
    rng = np.random.default_rng(seed)
    points = np.concatenate([rng.normal(0.5, 0.04, (12, 2)), rng.uniform(0, 1, (12, 2)), [[0, 0], [1, 1], [0, 1]]])
    names = [f"number {i}" for i in range(len(points))]
    figure = Figure(figsize=(6, 6))
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.8), xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=[], yticks=[])
    label_points(axes, points, names)
    drawn = seen(figure)
    assert sorted(drawn.words) == sorted(names)
    assert drawn.overlapping() == []
    for text in drawn.texts:
        bounds = box(text)
        assert not any(bounds.contains(*point) for point in axes.transData.transform(points))
        assert axes.bbox.x0 - 1 <= bounds.x0 < bounds.x1 <= axes.bbox.x1 + 1
        assert axes.bbox.y0 - 1 <= bounds.y0 < bounds.y1 <= axes.bbox.y1 + 1
