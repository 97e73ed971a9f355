"""What serving came to: tokens per second, and how long people waited."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.simulation.served import ServedText


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
    time_per_token: Percentiles
    """Of each text's tokens after the first."""
    latency: Percentiles
    """Of whole texts, from the arrival to the last token."""
    keeps_up: bool
    """Whether texts did not wait longer and longer: the last tenth to arrive at most twice as long as all, or a second."""


def outcome(name: str, rate_per_s: float, served: Sequence[ServedText]) -> Outcome:
    """Return what some texts, at least one, came to."""
    first_s = min(each.asked.arrival_s for each in served)
    tokens = sum(each.asked.new_tokens for each in served)
    by_arrival = sorted(served, key=lambda each: each.asked.arrival_s)
    waits = [each.time_to_first_token_s for each in by_arrival]
    last = waits[-max(1, len(waits) // 10) :]
    return Outcome(
        name=name,
        rate_per_s=rate_per_s,
        texts=len(served),
        tokens_per_s=tokens / (max(each.finished_s for each in served) - first_s),
        tokens_per_step=sum(each.step_tokens for each in served) / max(1, sum(each.steps for each in served)),
        time_to_first_token=Percentiles.of(waits),
        time_per_token=Percentiles.of([each.time_per_token_s for each in served]),
        latency=Percentiles.of([each.latency_s for each in served]),
        keeps_up=float(np.median(last)) <= max(1.0, 2 * float(np.median(waits))),
    )
