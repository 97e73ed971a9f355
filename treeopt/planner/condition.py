"""Where a plan holds: a context length and a batch size, measured or mixed from what was measured around them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError
from treeopt.planner.request import Where
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency

ANYWHERE = Where()


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Condition(ShortRepr):
    """One context length and batch size, and the shares of the measured latencies that make its own."""

    context_tokens: int
    batch_size: int
    parts: tuple[tuple[float, StepLatency], ...]
    """Shares add up to 1; they lie between 0 and 1 unless extrapolated."""
    extrapolated: bool
    """Whether it lies outside what was measured."""

    @property
    def max_nodes(self) -> int:
        """The largest verification pass that was measured in every part."""
        return min(latency.verify.max_tokens for _, latency in self.parts)

    def without_steps(self) -> "Condition":
        """Return the same as if no whole steps were known, so that all overhead is the step's and none the passes'."""
        return replace(self, parts=tuple((share, replace(latency, steps=())) for share, latency in self.parts))


def condition(
    profile: Profile,
    temperature: float = 0.0,
    asked: Where = ANYWHERE,
) -> Condition:
    """Return the condition that is asked for of a profile at a temperature, by default the first one measured.

    Between measured context lengths and batch sizes every time is taken on the straight line between its neighbours;
    outside them only with `asked.extrapolate`, on the line through the nearest two, or as the nearest where there is one.
    Raises InfeasibleError naming what was measured.
    """
    latencies = profile.latencies_at(temperature)
    first = next((item for item in latencies if asked.batch_size in (None, item.batch_size)), latencies[0])
    context = first.context_tokens if asked.context_tokens is None else asked.context_tokens
    batch = first.batch_size if asked.batch_size is None else asked.batch_size
    measured = {
        size: {item.context_tokens: item for item in latencies if item.batch_size == size}
        for size in sorted({item.batch_size for item in latencies})
    }
    around = [size for size, contexts in measured.items() if min(contexts) <= context <= max(contexts)]
    inside = bool(around) and around[0] <= batch <= around[-1]
    parts = [
        (share * part, measured[size][length])
        for share, size in shares(batch, around if inside else list(measured))
        for part, length in shares(context, sorted(measured[size]))
    ]
    if not inside and not asked.extrapolate:
        known = ", ".join(f"{item.context_tokens} tokens x {item.batch_size}" for item in latencies)
        raise InfeasibleError(
            f"context {context} tokens x batch {batch} was not measured, nor conditions around it. Measured: {known}. "
            "Profile there, or allow it with extrapolate=True."
        )
    return Condition(context_tokens=context, batch_size=batch, parts=tuple(parts), extrapolated=not inside)


def shares(value: int, measured: Sequence[int]) -> list[tuple[float, int]]:
    """Return the shares of the measured numbers, which rise, that make `value` on a straight line.

    >>> shares(300, [256, 512])
    [(0.828125, 256), (0.171875, 512)]
    >>> shares(256, [256, 512])
    [(1.0, 256)]
    """
    if value in measured or len(measured) == 1:
        return [(1.0, value if value in measured else measured[0])]
    right = min(max(bisect_left(measured, value), 1), len(measured) - 1)
    low, high = measured[right - 1], measured[right]
    share = (value - low) / (high - low)
    return [(1 - share, low), (share, high)]
