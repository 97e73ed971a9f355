"""Results of serving a load: throughput and latencies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.simulation.arrivals import Load
from treeopt.simulation.serving import ServedSequence

WARM_UP = 0.1
"""Fraction of the duration at its beginning whose requests no percentile includes: the server is not yet in steady state.

Deleting the first observations of each run is the replication/deletion approach (Law, 2015, section 9.5.1).  A fixed fraction
leaves out the same requests under every setting, so that settings are compared on the same requests.
"""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Percentiles(ShortRepr):
    """Median and 99th percentile."""

    median_s: float
    p99_s: float
    sequences: int
    """Number of sequences included."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Percentiles":
        """Return the percentiles of at least one value."""
        median, p99 = np.percentile(seconds, [50, 99]).tolist()
        return cls(median_s=median, p99_s=p99, sequences=len(seconds))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Outcome(ShortRepr):
    """One setting under one load."""

    name: str
    """Name of the setting."""
    rate_per_s: float
    requests: int
    """Number of requests that arrived, warm-up included."""
    warm_up_s: float
    """Percentiles leave out requests that arrive earlier."""
    tokens_per_s: float
    """All new tokens divided by the time from the first arrival to the last token."""
    tokens_per_step: float
    """Per sequence."""
    time_to_first_token: Percentiles
    time_per_token: Percentiles | None
    """Per sequence, for its tokens after the first; None if no sequence has two tokens."""
    latency: Percentiles
    """From the arrival to the last token."""
    capacity_per_s: float
    """Requests completed per second while there is always a backlog."""
    keeps_up: bool
    """Whether the backlog stays bounded because the arrival rate is below the capacity."""

    @property
    def token_s(self) -> float:
        """Median seconds per token after the first, or per sequence if all have one token."""
        return (self.time_per_token or self.latency).median_s


def outcome(name: str, load: Load, served: Sequence[ServedSequence], capacity_per_s: float) -> Outcome:
    """Return the outcome of serving a load; there is at least one request."""
    arrivals_s = [sequence.request.arrival_s for sequence in served]
    warm_up_s = min(WARM_UP * load.duration_s, max(arrivals_s))
    counted = [sequence for sequence in served if sequence.request.arrival_s >= warm_up_s]
    times_per_token_s = [sequence.time_per_token_s for sequence in counted if sequence.time_per_token_s is not None]
    tokens = sum(sequence.request.new_tokens for sequence in served)
    return Outcome(
        name=name,
        rate_per_s=load.rate_per_s,
        requests=len(served),
        warm_up_s=warm_up_s,
        tokens_per_s=tokens / (max(sequence.finished_s for sequence in served) - min(arrivals_s)),
        tokens_per_step=sum(sequence.step_tokens for sequence in served)
        / max(1, sum(sequence.steps for sequence in served)),
        time_to_first_token=Percentiles.of([sequence.time_to_first_token_s for sequence in counted]),
        time_per_token=Percentiles.of(times_per_token_s) if times_per_token_s else None,
        latency=Percentiles.of([sequence.latency_s for sequence in counted]),
        capacity_per_s=capacity_per_s,
        keeps_up=load.rate_per_s < capacity_per_s,
    )
