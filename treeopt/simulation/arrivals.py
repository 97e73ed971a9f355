"""Requests that arrive at random: a Poisson process, with prompts and outputs of random lengths."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError

MAX_REQUESTS = 1_000_000


class Request(NamedTuple):
    """A prompt that arrives, and how many tokens it asks for."""

    arrival_s: float
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Load(ShortRepr):
    """How often requests arrive, and how long they are.

    Raises InvalidValueError for a rate or a duration that is not above 0, lengths below 1, and over a million requests.
    """

    rate_per_s: float
    """Mean requests per second."""
    prompt_tokens: tuple[int, int]
    """Shortest and longest; all lengths between are equally likely."""
    new_tokens: tuple[int, int]
    duration_s: float = 60.0
    """How long requests arrive."""
    seed: int = 0

    @property
    def mean_new_tokens(self) -> int:
        """Rounded to the nearest token."""
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
        if self.rate_per_s * self.duration_s > MAX_REQUESTS:
            raise InvalidValueError(
                f"rate_per_s: expected at most {MAX_REQUESTS} requests in all. Got {self.rate_per_s:g} a second for "
                f"{self.duration_s:g} s: take a shorter duration."
            )


def requests(load: Load) -> Iterator[Request]:
    """Yield requests without end; at twice the rate, a seed yields the same requests in half the time."""
    gaps, lengths = (np.random.default_rng([load.seed, part]) for part in range(2))
    arrival_s = 0.0
    while True:
        arrival_s += float(gaps.exponential()) / load.rate_per_s
        prompt, new = (int(lengths.integers(low, high + 1)) for low, high in (load.prompt_tokens, load.new_tokens))
        yield Request(arrival_s, prompt, new)


def arrivals(load: Load) -> tuple[Request, ...]:
    """Return the requests that arrive within the load's duration, at least one."""
    endless = requests(load)
    first = next(endless)
    return (first, *takewhile(lambda request: request.arrival_s < load.duration_s, endless))
