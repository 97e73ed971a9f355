"""Texts that arrive at random: a Poisson process, each text with a prompt and a length of its own."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError

MOST_TEXTS = 1_000_000


class Arrival(NamedTuple):
    """One text that is asked for."""

    arrival_s: float
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Load(ShortRepr):
    """How often texts are asked for, and how long they are.

    Raises InvalidValueError for a rate or a duration that is not above 0, lengths below 1, and more than a million texts.
    """

    rate_per_s: float
    """Texts a second, on average."""
    prompt_tokens: tuple[int, int]
    """Shortest and longest; all lengths between are equally likely."""
    new_tokens: tuple[int, int]
    duration_s: float = 60.0
    """How long texts go on arriving."""
    seed: int = 0

    @property
    def mean_new_tokens(self) -> int:
        """Of a text on average, to the nearest."""
        return round(sum(self.new_tokens) / 2)

    def __post_init__(self) -> None:
        for name in ("rate_per_s", "duration_s"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise InvalidValueError(f"{name}: expected a number above 0. Got {getattr(self, name)}.", field=name)
        for name in ("prompt_tokens", "new_tokens"):
            shortest, longest = getattr(self, name)
            if not 1 <= shortest <= longest:
                raise InvalidValueError(
                    f"{name}: expected lengths from 1 that rise. Got {shortest} to {longest}.", field=name
                )
        if self.rate_per_s * self.duration_s > MOST_TEXTS:
            raise InvalidValueError(
                f"rate_per_s: expected at most {MOST_TEXTS} texts in all. Got {self.rate_per_s:g} a second for "
                f"{self.duration_s:g} s: take a shorter duration."
            )


def arrivals(load: Load) -> tuple[Arrival, ...]:
    """Return the texts that arrive within the load's duration, at least one; the same seed gives the same texts.

    Seeds hold over rates: at twice the rate the same texts come in half the time.
    """
    gaps, lengths = (np.random.default_rng([load.seed, part]) for part in range(2))
    texts: list[Arrival] = []
    arrival_s = 0.0
    while True:
        arrival_s += float(gaps.exponential()) / load.rate_per_s
        if texts and arrival_s >= load.duration_s:
            return tuple(texts)
        prompt, new = (int(lengths.integers(low, high + 1)) for low, high in (load.prompt_tokens, load.new_tokens))
        texts.append(Arrival(arrival_s, prompt, new))
