"""Measuring until a plan is certain: time goes where the plan is least certain, until it is certain or the time is spent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from treeopt.planner.certainty import Certainty
from treeopt.profiler.acceptance.in_slices import SlicedAcceptance
from treeopt.profiler.budget import Budget, Slice
from treeopt.profiler.latency.condition import Times
from treeopt.profiler.latency.curve import MOST_SAMPLES
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.records.steadiness import FEWEST_SAMPLES

CERTAIN = 0.9
"""Probability that the choice is within 1 % of the fastest, with which measuring ends."""
SLICES = 40
"""Into which a budget is cut: after each the plan is made again."""
PLANS_PER_SLICE = 0.25
"""Most seconds that planning may take for each second of measuring."""


class CertaintyOf(Protocol):
    """Plans one condition of a profile: the planner's, which the caller gives."""

    def __call__(self, profile: Profile, *, temperature: float, context_tokens: int, batch_size: int) -> Certainty:
        """Return how certain the plan is."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A condition that is planned for."""

    sampling: Sampling
    timed: TimedCondition


class UntilCertain:
    """Refines the times and the acceptance of a profile.

    Args:
        budget: what the time is taken from.
        times: what times each condition; none where times were imported.
        acceptance: what counts acceptance; None where it was imported.
        profile: returns the profile of what was measured so far.
        certainty: plans it.
        samplings: that acceptance is counted for.
        tick: called after every slice with the smallest probability so far.
    """

    def __init__(
        self,
        budget: Budget,
        times: Mapping[TimedCondition, Times],
        acceptance: SlicedAcceptance | None,
        profile: Callable[[], Profile],
        certainty: CertaintyOf,
        samplings: Sequence[Sampling],
        tick: Callable[[float | None], object] = lambda _: None,
    ) -> None:
        self._budget, self._times, self._acceptance = budget, times, acceptance
        self._profile, self._certainty, self._tick = profile, certainty, tick
        self._open = {
            _Planned(sampling, condition): None
            for condition in times
            for sampling in samplings
            if sampling.greedy == condition.sampling.greedy
        }
        self._found: dict[_Planned, Certainty] = {}
        self._planning_s = 0.0
        self._timed: TimedCondition | None = None  # whose caches are open

    def run(self, time: Slice) -> Certainty | None:
        """Measure until every condition is planned with certainty, or the time is over; return the least certain plan."""
        while self._open:
            planned = min(self._open, key=self._probability)
            certainty = self._plan(planned)
            part = self._next_part(planned, certainty)
            if part is None:
                del self._open[planned]
            elif time.over():
                break
            else:
                self._measure(part, planned, certainty, time)
        self._close()
        return min(self._found.values(), key=lambda each: each.probability, default=None)

    def _probability(self, planned: _Planned) -> float:
        """Return the last probability of a condition; those not planned yet come first."""
        return self._found[planned].probability if planned in self._found else -1.0

    def _plan(self, planned: _Planned) -> Certainty:
        start_s = self._budget.left_s
        with self._budget.spending("planning"):
            found = self._certainty(
                self._profile(),
                temperature=planned.sampling.temperature,
                context_tokens=planned.timed.context_tokens,
                batch_size=planned.timed.batch_size,
            )
        self._planning_s = start_s - self._budget.left_s
        self._found[planned] = found
        self._tick(min(map(self._probability, self._open)))
        return found

    def _next_part(self, planned: _Planned, certainty: Certainty) -> str | None:
        """Return what to measure next; None where the plan is certain, or more of anything tells nothing new."""
        times = self._times[planned.timed]
        samples = {part: times.samples(part, certainty) for part in times.parts}
        fewest = min(samples, key=lambda part: samples[part])
        if samples[fewest] < FEWEST_SAMPLES:
            return fewest
        if self._acceptance is not None and self._acceptance.missing:
            return "acceptance"
        if certainty.probability >= CERTAIN:
            return None
        left = [part for part in times.parts if samples[part] < MOST_SAMPLES]
        if self._acceptance is not None and not self._acceptance.exhausted:
            left.append("acceptance")
        return max(left, key=lambda part: self._benefit(part, certainty), default=None)

    def _benefit(self, part: str, certainty: Certainty) -> tuple[float, float]:
        """Return what a second more of a part raises the probability by; in a tie that counts which had less time.

        Errors shrink with the square root of the time, so that the benefit is the gain divided by the time spent.
        """
        conditions = 1 if part == "acceptance" else len(self._times)
        spent_s = self._budget.spent_s.get(part, 0.0) / conditions + self._budget.seconds / SLICES
        return max(0.0, certainty.gains.get(part, 0.0)) / spent_s, -spent_s

    def _measure(self, part: str, planned: _Planned, certainty: Certainty, time: Slice) -> None:
        """Measure a part for a slice of the time, or only until it has the samples that a plan needs."""
        if part == "acceptance" or planned.timed != self._timed:
            self._close()
        seconds = max(self._budget.seconds / SLICES, self._planning_s / PLANS_PER_SLICE)
        slice_s = self._budget.slice(min(seconds, time.left_s))
        with self._budget.spending(part):
            if part == "acceptance":
                assert self._acceptance is not None
                self._acceptance.add(slice_s, most=self._acceptance.missing or None)
            else:
                self._timed = planned.timed
                times = self._times[planned.timed]
                few = times.samples(part, certainty) < FEWEST_SAMPLES
                times.refine(part, certainty, slice_s, FEWEST_SAMPLES if few else MOST_SAMPLES)

    def _close(self) -> None:
        """Free the caches of the condition that was timed last."""
        if self._timed is not None:
            self._times[self._timed].close()
            self._timed = None
