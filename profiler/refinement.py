"""Refining a profile until its plan is certain: time goes to the least certain measurement until the time is over."""

from collections.abc import Callable, Mapping, Sequence

from treeopt.planner.certainty import Certainty
from treeopt.planner.certainty import certainty as plan_certainty
from treeopt.planner.model import Confidence
from treeopt.profiler.acceptance.incremental import IncrementalAcceptance
from treeopt.profiler.budget import Budget, Deadline
from treeopt.profiler.latency.passes import TimedPoint
from treeopt.profiler.latency.point import PointTimer
from treeopt.profiler.settings import MAX_SAMPLES
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.records.timing_quality import MIN_SAMPLES

CERTAIN = 0.9
"""Probability that the choice is within 1 % of the fastest at which measuring ends."""
SLICES = 40
"""Of a budget; after each slice the plan is updated."""
MISSING_SHARE = 0.5
"""Fraction of the time spent up to which acceptance comes first while sequences are missing; later, the benefit decides."""
PLANNING_SHARE = 0.25
"""Largest ratio of planning time to measuring time."""

Planned = tuple[TimedPoint, Sampling]
"""An operating point that is planned: the timed one, and the sampling of the acceptance."""


class ProfileRefiner:
    """Refines the latencies and the acceptance of a profile.

    Args:
        budget: what the time is taken from.
        timers: time each operating point; empty if latencies were imported.
        acceptance: counts acceptance; None if it was imported.
        make_profile: returns the profile measured so far.
        samplings: of the acceptance.
        tick: called after every slice with the smallest probability.
    """

    def __init__(
        self,
        budget: Budget,
        timers: Mapping[TimedPoint, PointTimer],
        acceptance: IncrementalAcceptance | None,
        make_profile: Callable[[], Profile],
        samplings: Sequence[Sampling],
        tick: Callable[[float | None], object],
    ) -> None:
        self._budget, self._timers, self._acceptance = budget, timers, acceptance
        self._make_profile, self._tick = make_profile, tick
        self._pending: list[Planned] = [
            (point, sampling) for point in timers for sampling in samplings if sampling.greedy == point.sampling.greedy
        ]
        self._certainties: dict[Planned, Certainty] = {}
        self._planning_s = 0.0

    def run(self, deadline: Deadline) -> Certainty | None:
        """Measure until every plan is certain or the deadline passes; return the certainty of the least certain plan."""
        while self._pending:
            planned = min(self._pending, key=self._probability)
            certainty = self._update_plan(planned)
            part = self._choose_part(planned, certainty)
            if part is None:
                self._pending.remove(planned)
            elif deadline.over():
                break
            else:
                self._measure(part, planned, certainty, deadline)
        for timer in self._timers.values():
            timer.close()
        return min(self._certainties.values(), key=lambda certainty: certainty.confidence.probability, default=None)

    def _probability(self, planned: Planned) -> float:
        """Return the last probability of a plan; those not planned yet come first."""
        return self._certainties[planned].confidence.probability if planned in self._certainties else -1.0

    def _update_plan(self, planned: Planned) -> Certainty:
        point, sampling = planned
        start_s = self._budget.left_s
        with self._budget.spending("planning"):
            certainty = plan_certainty(
                self._make_profile(),
                temperature=sampling.temperature,
                context_tokens=point.context_tokens,
                batch_size=point.batch_size,
            )
        self._planning_s = start_s - self._budget.left_s
        self._certainties[planned] = certainty
        self._tick(min(map(self._probability, self._pending)))
        return certainty

    def _choose_part(self, planned: Planned, certainty: Certainty) -> str | None:
        """Return what to measure next; None if the plan is certain, or further measurements add nothing."""
        timer = self._timers[planned[0]]
        if (disturbed_part := timer.disturbed_part) is not None:
            return disturbed_part
        samples = {part: timer.samples(part, certainty) for part in timer.parts}
        fewest = min(samples, key=lambda part: samples[part])
        if samples[fewest] < MIN_SAMPLES:
            return fewest
        missing = self._acceptance is not None and self._acceptance.missing > 0
        if missing and self._acceptance_share < MISSING_SHARE:
            return "acceptance"
        if certainty.confidence.probability >= CERTAIN and not missing:
            return None
        parts = [part for part in timer.parts if samples[part] < MAX_SAMPLES]
        if self._acceptance is not None and not self._acceptance.exhausted:
            parts.append("acceptance")
        return max(parts, key=lambda part: self._benefit(part, certainty.confidence), default=None)

    @property
    def _acceptance_share(self) -> float:
        """The fraction of the time spent so far that counting acceptance has taken."""
        spent_s = self._budget.spent_s
        return spent_s.get("acceptance", 0.0) / max(sum(spent_s.values()), 1e-9)

    def _benefit(self, part: str, confidence: Confidence) -> tuple[float, float]:
        """Return the gain in probability per additional second of a part; ties go to the part with less time so far.

        Errors shrink with the square root of the time, so the benefit is the gain divided by the time spent.
        """
        points = 1 if part == "acceptance" else len(self._timers)
        spent_s = self._budget.spent_s.get(part, 0.0) / points + self._budget.seconds / SLICES
        gain = confidence.if_exact.get(part, 0.0) - confidence.probability
        return max(0.0, gain) / spent_s, -spent_s

    def _measure(self, part: str, planned: Planned, certainty: Certainty, deadline: Deadline) -> None:
        """Measure a part for a slice of the time, or only until it has the samples that a plan needs."""
        timer = self._timers[planned[0]]
        for other in self._timers.values():
            if part == "acceptance" or other is not timer:
                other.close()
        seconds = max(self._budget.seconds / SLICES, self._planning_s / PLANNING_SHARE)
        slice_end = self._budget.within(min(seconds, deadline.left_s))
        with self._budget.spending(part):
            if part == "acceptance":
                assert self._acceptance is not None
                self._acceptance.add(slice_end, at_most=self._acceptance.missing or None)
            else:
                too_few = timer.samples(part, certainty) < MIN_SAMPLES
                timer.refine(part, certainty, slice_end, MIN_SAMPLES if too_few else MAX_SAMPLES)
