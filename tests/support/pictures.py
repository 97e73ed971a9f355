"""Pictures as matplotlib draws them: where every text stands, what covers what, what is cut off."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from treeopt.pictures.style import house_style

SLACK = 0.5
"""Pixels, at 100 to the inch, that boxes may have in common: rounding."""


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn, and the texts in it."""

    figure: Figure
    texts: list[Text]

    @property
    def words(self) -> list[str]:
        """What the texts say."""
        return [text.get_text() for text in self.texts]

    def overlapping(self) -> list[tuple[str, str]]:
        """Return the pairs of texts that cover one another."""
        boxes = [(text.get_text(), box(text)) for text in self.texts]
        return [(one, other) for (one, first), (other, second) in combinations(boxes, 2) if common(first, second)]

    def cut_off(self) -> list[str]:
        """Return the texts that the picture's rim cuts."""
        width, height = self.figure.bbox.size
        boxes = [(text.get_text(), box(text)) for text in self.texts]
        return [
            said for said, at in boxes if min(at.x0, at.y0) < -SLACK or at.x1 > width + SLACK or at.y1 > height + SLACK
        ]


def drawn(save: Callable[[Path], object], path: Path) -> Picture:
    """Return the picture that a function saves at a path, drawn, so that everything in it knows where it stands."""
    found: list[Picture] = []
    with patch.object(Figure, "savefig", lambda figure, *_, **__: found.append(seen(figure))):
        save(path)
    (picture,) = found
    return picture


def seen(figure: Figure) -> Picture:
    """Return a figure, drawn."""
    texts: list[Text] = []
    draw = Text.draw

    def record(text: Text, *args: object, **kwargs: object) -> None:
        if text.get_visible() and text.get_text().strip():
            texts.append(text)
        draw(text, *args, **kwargs)

    with house_style(), patch.object(Text, "draw", record):
        FigureCanvasAgg(figure).draw()
    return Picture(figure, texts)


def box(text: Text) -> Bbox:
    """Return what the letters of a text cover, in pixels; an arrow is no part of it."""
    return Text.get_window_extent(text)


def common(one: Bbox, other: Bbox) -> bool:
    """Return whether two boxes have more in common than rounding explains."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width > SLACK and height > SLACK
