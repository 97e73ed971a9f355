"""Random arrivals: a Poisson process of requests with random prompt and output lengths."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError

MAX_REQUESTS = 100_000
"""Of one run; more take minutes for each setting."""
MAX_NEW_TOKENS = 1_000_000
"""Longest output; no model has a longer context by far, and each step of it is simulated."""


class Request(NamedTuple):
    """An arriving prompt and its number of new tokens."""

    arrival_s: float
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Load(ShortRepr):
    """The rate and the lengths of requests.

    Raises InvalidValueError for a rate or duration that is not positive, lengths below 1, more than 100,000 requests, and
    outputs of more than a million tokens.
    """

    rate_per_s: float
    """Mean requests per second."""
    prompt_tokens: tuple[int, int]
    """Shortest and longest; uniformly distributed."""
    new_tokens: tuple[int, int]
    duration_s: float = 60.0
    """Time during which requests arrive."""
    seed: int = 0

    @property
    def max_rate_per_s(self) -> float:
        """The rate of as many requests as can be simulated."""
        return MAX_REQUESTS / self.duration_s

    @property
    def mean_context_tokens(self) -> int:
        """Of a sequence halfway through its output."""
        return round(sum(self.prompt_tokens) / 2 + sum(self.new_tokens) / 4)

    @property
    def mean_new_tokens(self) -> int:
        return round(sum(self.new_tokens) / 2)

    def __post_init__(self) -> None:
        for name in ("rate_per_s", "duration_s"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise InvalidValueError(f"{name}: expected a number above 0. Got {getattr(self, name)}.", field=name)
        for name in ("prompt_tokens", "new_tokens"):
            shortest, longest = getattr(self, name)
            if not 1 <= shortest <= longest:
                raise InvalidValueError(
                    f"{name}: expected two lengths of at least 1, the shorter first. Got {shortest} to {longest}.",
                    field=name,
                )
        if self.new_tokens[1] > MAX_NEW_TOKENS:
            raise InvalidValueError(
                f"new_tokens: expected at most {MAX_NEW_TOKENS}. Got {self.new_tokens[1]}: choose shorter outputs.",
                field="new_tokens",
            )
        if self.rate_per_s > self.max_rate_per_s:
            raise InvalidValueError(
                f"rate_per_s: expected at most {MAX_REQUESTS} requests in all. Got {self.rate_per_s:g} per second for "
                f"{self.duration_s:g} s: choose a lower rate or a shorter duration.",
                field="rate_per_s",
            )


def requests(load: Load) -> Iterator[Request]:
    """Yield an endless sequence of requests; at twice the rate, a seed gives the same requests in half the time."""
    gaps, lengths = (np.random.default_rng([load.seed, part]) for part in range(2))
    arrival_s = 0.0
    while True:
        arrival_s += float(gaps.exponential()) / load.rate_per_s
        prompt_tokens, new_tokens = (
            int(lengths.integers(low, high + 1)) for low, high in (load.prompt_tokens, load.new_tokens)
        )
        yield Request(arrival_s, prompt_tokens, new_tokens)


def arrivals(load: Load) -> tuple[Request, ...]:
    """Return the requests that arrive within the load's duration, at least one."""
    endless = requests(load)
    first = next(endless)
    return (first, *takewhile(lambda request: request.arrival_s < load.duration_s, endless))
