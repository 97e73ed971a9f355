"""What every warning is: something doubtful that was found, and what to do about it."""

import math
from dataclasses import dataclass


class Caution:
    """A warning, whose text is what was found, followed by what to do."""

    __slots__ = ()

    @property
    def found(self) -> str:
        """What is doubtful, and why."""
        raise NotImplementedError

    @property
    def action(self) -> str:
        """What to do about it."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.found} {self.action}"


@dataclass(frozen=True, slots=True)
class FormatCaution(Caution):
    """What one engine, or one program's format of trees, cannot take or needs; it alone knows the words."""

    text: str
    """Of two sentences or more; the last is what to do."""

    @property
    def found(self) -> str:
        """All but the last sentence."""
        return self.text[: -len(self.action) - 1]

    @property
    def action(self) -> str:
        """The last sentence."""
        return self.text.rpartition(". ")[2]


def listed(numbers: tuple[int, ...]) -> str:
    """Return numbers with commas between, as options take them."""
    return ",".join(map(str, numbers))


def sureness(probability: float) -> str:
    """Return a probability, worked out by draws, in whole percent, never rounded up.

    >>> sureness(0.899), sureness(1.0)
    ('89 %', 'more than 99 %')
    """
    return "more than 99 %" if probability > 0.99 else f"{math.floor(100 * probability + 1e-9)} %"
