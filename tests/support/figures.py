"""Drawn figures: positions of text, overlaps, and text that is cut off."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from treeopt.plotting.style import house_style

SLACK = 0.5
"""Overlap in pixels, at 100 dpi, that counts as rounding."""


@dataclass(frozen=True)
class DrawnFigure:
    """A drawn figure with its text."""

    figure: Figure
    texts: list[Text]

    @property
    def words(self) -> list[str]:
        return [text.get_text() for text in self.texts]

    def overlapping(self) -> list[tuple[str, str]]:
        """Return the pairs of texts that overlap."""
        boxes = [(text.get_text(), box(text)) for text in self.texts]
        return [(one, other) for (one, first), (other, second) in combinations(boxes, 2) if common(first, second)]

    def cut_off(self) -> list[str]:
        """Return the texts that extend beyond the figure."""
        width, height = self.figure.bbox.size
        boxes = [(text.get_text(), box(text)) for text in self.texts]
        return [
            text
            for text, bounds in boxes
            if min(bounds.x0, bounds.y0) < -SLACK or bounds.x1 > width + SLACK or bounds.y1 > height + SLACK
        ]


def drawn(save: Callable[[Path], object], path: Path) -> DrawnFigure:
    """Return the drawn figure that a function saves at a path."""
    figures: list[DrawnFigure] = []
    with patch.object(Figure, "savefig", lambda figure, *_, **__: figures.append(seen(figure))):
        save(path)
    (drawn_figure,) = figures
    return drawn_figure


def seen(figure: Figure) -> DrawnFigure:
    """Draw a figure."""
    texts: list[Text] = []
    draw = Text.draw

    def record(text: Text, *args: object, **kwargs: object) -> None:
        if text.get_visible() and text.get_text().strip():
            texts.append(text)
        draw(text, *args, **kwargs)

    with house_style(), patch.object(Text, "draw", record):
        FigureCanvasAgg(figure).draw()
    return DrawnFigure(figure, texts)


def box(text: Text) -> Bbox:
    """Return the bounds of a text's letters in pixels, without its arrow."""
    return Text.get_window_extent(text)


def common(one: Bbox, other: Bbox) -> bool:
    """Whether two boxes overlap by more than rounding."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width > SLACK and height > SLACK
