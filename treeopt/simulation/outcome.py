"""What serving a load yields: tokens per second, and how long requests wait."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.simulation.arrivals import Load
from treeopt.simulation.serving import ServedSequence

WARM_UP = 0.1
"""Share of the duration whose arrivals no percentile counts: they meet a server that has only just begun.

Deleting the first observations of each run is the replication/deletion approach (Law, 2015, section 9.5.1).  A fixed
share leaves out the same requests under every setting, so that settings are compared on the same ones.
"""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Percentiles(ShortRepr):
    """The median, and what one sequence in a hundred exceeds."""

    median_s: float
    p99_s: float
    sequences: int
    """That were counted."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Percentiles":
        """Return those of at least one value."""
        median, p99 = np.percentile(seconds, [50, 99]).tolist()
        return cls(median_s=median, p99_s=p99, sequences=len(seconds))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Outcome(ShortRepr):
    """One setting under one load."""

    name: str
    """Of the setting."""
    rate_per_s: float
    requests: int
    """That arrived, warm-up included."""
    warm_up_s: float
    """Percentiles leave out the requests that arrive before."""
    tokens_per_s: float
    """All new tokens over the time from the first arrival to the last token."""
    tokens_per_step: float
    """Of one sequence."""
    time_to_first_token: Percentiles
    time_per_token: Percentiles | None
    """Of each sequence's tokens after the first; None if no sequence has two tokens."""
    latency: Percentiles
    """From the arrival to the last token."""
    capacity_per_s: float
    """Requests per second that are completed while there is always a backlog."""
    keeps_up: bool
    """Whether the backlog stays bounded: whether requests arrive at a lower rate than the capacity."""

    @property
    def token_s(self) -> float:
        """Median seconds per token: of tokens after the first, or of whole sequences if all have one token."""
        return (self.time_per_token or self.latency).median_s


def outcome(name: str, load: Load, served: Sequence[ServedSequence], capacity_per_s: float) -> Outcome:
    """Return the outcome of serving a load's requests, at least one."""
    arrivals_s = [each.request.arrival_s for each in served]
    warm_up_s = min(WARM_UP * load.duration_s, max(arrivals_s))
    counted = [each for each in served if each.request.arrival_s >= warm_up_s]
    times_per_token_s = [each.time_per_token_s for each in counted if each.time_per_token_s is not None]
    tokens = sum(each.request.new_tokens for each in served)
    return Outcome(
        name=name,
        rate_per_s=load.rate_per_s,
        requests=len(served),
        warm_up_s=warm_up_s,
        tokens_per_s=tokens / (max(each.finished_s for each in served) - min(arrivals_s)),
        tokens_per_step=sum(each.step_tokens for each in served) / max(1, sum(each.steps for each in served)),
        time_to_first_token=Percentiles.of([each.time_to_first_token_s for each in counted]),
        time_per_token=Percentiles.of(times_per_token_s) if times_per_token_s else None,
        latency=Percentiles.of([each.latency_s for each in counted]),
        capacity_per_s=capacity_per_s,
        keeps_up=load.rate_per_s < capacity_per_s,
    )
