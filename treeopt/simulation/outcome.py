"""What serving came to: tokens per second, and how long people waited."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.simulation.served import ServedText

NO_GROWTH = 0.01
"""Seconds by which the shortest waits may grow in a second of arrivals."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Percentiles(ShortRepr):
    """The middle of some seconds, and what one in a hundred exceeds."""

    median_s: float
    p99_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Percentiles":
        """Return those of some values, at least one."""
        median, p99 = np.percentile(seconds, [50, 99]).tolist()
        return cls(median_s=median, p99_s=p99)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Outcome(ShortRepr):
    """One setting under one load."""

    name: str
    """Of the setting."""
    rate_per_s: float
    texts: int
    tokens_per_s: float
    """All new tokens over the time from the first arrival to the last token."""
    tokens_per_step: float
    """Of one text."""
    time_to_first_token: Percentiles
    time_per_token: Percentiles | None
    """Of each sequence's tokens after the first; None if no sequence has two tokens."""
    latency: Percentiles
    """Of whole texts, from the arrival to the last token."""
    keeps_up: bool
    """Whether the queue empties to the end: of the last third to arrive, the shortest wait is that of all, but for 1 % of the
    time over which sequences arrive, or the time between two that end."""

    @property
    def token_s(self) -> float:
        """Median seconds per token: of tokens after the first, or of whole sequences if all have one token."""
        return (self.time_per_token or self.latency).median_s


def outcome(name: str, rate_per_s: float, served: Sequence[ServedText]) -> Outcome:
    """Return what some texts, at least one, came to."""
    first_s = min(each.asked.arrival_s for each in served)
    tokens = sum(each.asked.new_tokens for each in served)
    times_per_token_s = [each.time_per_token_s for each in served if each.time_per_token_s is not None]
    return Outcome(
        name=name,
        rate_per_s=rate_per_s,
        texts=len(served),
        tokens_per_s=tokens / (max(each.finished_s for each in served) - first_s),
        tokens_per_step=sum(each.step_tokens for each in served) / max(1, sum(each.steps for each in served)),
        time_to_first_token=Percentiles.of([each.time_to_first_token_s for each in served]),
        time_per_token=Percentiles.of(times_per_token_s) if times_per_token_s else None,
        latency=Percentiles.of([each.latency_s for each in served]),
        keeps_up=_keeps_up(served),
    )


def _keeps_up(served: Sequence[ServedText]) -> bool:
    """Return whether the queue empties again and again.

    At a rate r times what a server can do, waits grow by r - 1 seconds a second, the shortest ones too.  Those of a stable
    server come back to nothing, however long its busy periods are, so the shortest wait tells them apart sooner than the
    mean or the median.
    """
    by_arrival = sorted(served, key=lambda each: each.asked.arrival_s)
    arrivals_s = [each.asked.arrival_s for each in by_arrival]
    waits_s = [each.time_to_first_token_s for each in by_arrival]
    growth_s = min(waits_s[-max(1, len(waits_s) // 3) :]) - min(waits_s)
    between_ends_s = (max(each.finished_s for each in served) - arrivals_s[0]) / len(served)
    return growth_s <= max(NO_GROWTH * (arrivals_s[-1] - arrivals_s[0]), between_ends_s)
