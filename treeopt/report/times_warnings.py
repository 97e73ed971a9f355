"""What makes measured times doubtful, each with what to do about it."""

from collections.abc import Iterable

from treeopt.records.profile import StepLatency
from treeopt.records.steadiness import drift, spread
from treeopt.records.warnings import Caution, DisturbedTimes, ScatteredTimes, SpeedChanged

MUCH_DRIFT = 0.05
MUCH_SPREAD = 0.25
"""Relative changes from which a warning is given; spread is between the quartiles of single calls."""


def warnings(latencies: Iterable[StepLatency]) -> list[Caution]:
    """Return what makes the times of some conditions doubtful."""
    return [doubt for latency in latencies for doubt in _doubts(latency)]


def _doubts(latency: StepLatency) -> list[Caution]:
    """Return what makes the times of one condition doubtful; disturbed ones tell nothing of the machine itself."""
    where = f"{latency.context_tokens} tokens of context, batch {latency.batch_size}"
    disturbance = latency.disturbance
    if disturbance is not None and disturbance.processors is not None and disturbance.samples > 0:
        return [DisturbedTimes(where, disturbance.processors, disturbance.calls, disturbance.samples)]
    timings = [*latency.verify.timings, *latency.draft.timings]
    changed, wide = drift(timings), spread(timings)
    found: list[Caution] = []
    if abs(changed) > MUCH_DRIFT:
        found.append(SpeedChanged(where, changed))
    if wide > MUCH_SPREAD:
        found.append(ScatteredTimes(where, wide))
    return found
