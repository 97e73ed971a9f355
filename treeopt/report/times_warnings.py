"""What makes measured times doubtful, each with what to do about it."""

from collections.abc import Iterable

from treeopt.errors import Warning
from treeopt.records.steadiness import drift, spread
from treeopt.records.step_latency import StepLatency

MUCH_DRIFT = 0.05
MUCH_SPREAD = 0.25
"""Relative changes from which a warning is given; spread is between the quartiles of single calls."""
PLAIN_SPEED_CHANGED = Warning(
    "the machine is not as fast as when it was profiled.",
    "Profile again right before this, or trust speedups more than times.",
)


def warnings(latencies: Iterable[StepLatency]) -> list[Warning]:
    """Return what makes the times of some conditions doubtful."""
    return [warning for latency in latencies for warning in _warnings(latency)]


def _warnings(latency: StepLatency) -> list[Warning]:
    """Return what makes the times of one condition doubtful; disturbed ones tell nothing of the machine itself."""
    where = f"{latency.context_tokens} tokens of context, batch {latency.batch_size}"
    disturbance = latency.disturbance
    if disturbance is not None and disturbance.processors is not None and disturbance.samples > 0:
        found = (
            f"{where}: other programs used {disturbance.processors:.0%} of the processors during "
            f"{disturbance.calls:.0%} of the timed calls; {disturbance.samples:.0%} of the samples were taken then, and are "
            "too long."
        )
        return [Warning(found, "Close them, or wait for quiet with --wait 10m, and profile again.")]
    timings = [*latency.verify.timings, *(latency.draft.timings if latency.draft else ())]
    changed, wide = drift(timings), spread(timings)
    warnings = []
    if abs(changed) > MUCH_DRIFT:
        slower = "slower" if changed > 0 else "faster"
        warnings.append(
            Warning(
                f"{where}: the machine became {abs(changed):.0%} {slower} while it was timed. It may be throttling, or "
                "shared.",
                "Let it cool, close other programs, and profile again.",
            )
        )
    if wide > MUCH_SPREAD:
        warnings.append(
            Warning(
                f"{where}: single calls vary by {wide:.0%}.",
                "Close other programs, set --threads to the cores that are free, or use more --rounds.",
            )
        )
    return warnings
