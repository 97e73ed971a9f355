"""More than one condition: what to run at which batch size and context length, and where to switch.

Every measured condition is planned by itself.  Between measured conditions times lie on straight lines, so there the
fastest of the trees chosen at the measured ones is found without measuring more, and so is the point where it changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from treeopt.planner.model import Candidate, StepModel, step_model
from treeopt.planner.planning import Plan, plan
from treeopt.profile import MeasuredAcceptance, Profile

CLOSE = 1e-9
"""Speeds that differ by no more than this share are equal; then the simpler way to decode wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A range of batch sizes and context lengths, both ends included, in which one way to decode is the fastest."""

    rule: str
    temperature: float
    batch_sizes: tuple[int, int]
    context_tokens: tuple[int, int]
    choice: Candidate
    """The way to decode, with its prediction at the start of the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What to run where; a new segment begins at every switching point."""

    plans: tuple[Plan, ...]
    """One for every measured rule and temperature, batch size and context length, in this order."""
    over_contexts: tuple[Segment, ...]
    """At every measured batch size, over context lengths."""
    over_batch_sizes: tuple[Segment, ...]
    """At every context length measured at more than one batch size, over batch sizes."""


def schedule(
    profile: Profile,
    max_nodes: int = 512,
    *,
    max_depth: int | None = None,
    level_widths: int | Sequence[int] | None = None,
    rule: str | None = None,
    temperature: float | None = None,
    raw: bool = False,
) -> Schedule:
    """Return what to run at every condition that a profile covers.

    Args:
        profile: what was measured.
        max_nodes: largest number of nodes, root included.
        max_depth: most levels below the root.
        level_widths: most nodes at each depth.
        rule: only this one; by default all that were measured.
        temperature: only this one; by default all that were measured.
        raw: take the acceptance as measured.

    Raises as `plan` does.
    """
    profile.acceptance(rule=rule, temperature=temperature)  # refuse now what was not measured
    plans: list[Plan] = []
    contexts: list[Segment] = []
    batches: list[Segment] = []
    for acceptance in profile.acceptances_of(rule=rule, temperature=temperature):
        of_acceptance = [
            plan(
                profile,
                max_nodes,
                max_depth=max_depth,
                level_widths=level_widths,
                rule=acceptance.rule,
                temperature=acceptance.temperature,
                context_tokens=context,
                batch_size=batch,
                raw=raw,
            )
            for batch, context in sorted({(item.batch_size, item.context_tokens) for item in profile.latencies})
        ]
        switches = _Switches(profile, acceptance, raw, [each.choice for each in of_acceptance])
        plans += of_acceptance
        contexts += switches.over_contexts()
        batches += switches.over_batch_sizes()
    return Schedule(plans=tuple(plans), over_contexts=tuple(contexts), over_batch_sizes=tuple(batches))


class _Switches:
    """The fastest of some ways to decode, anywhere between the measured conditions."""

    def __init__(
        self, profile: Profile, acceptance: MeasuredAcceptance, raw: bool, rivals: Sequence[Candidate]
    ) -> None:
        self._profile, self._acceptance, self._raw = profile, acceptance, raw
        by_tree = {candidate.tree: candidate for candidate in rivals}
        self._rivals = sorted(by_tree.values(), key=lambda candidate: candidate.tree.nodes)
        self._conditions = sorted({(item.batch_size, item.context_tokens) for item in profile.latencies})

    def over_contexts(self) -> list[Segment]:
        """Return the segments over context lengths, at every measured batch size."""
        segments = []
        for batch in sorted({batch for batch, _ in self._conditions}):
            measured = [context for size, context in self._conditions if size == batch]
            ranges = self._ranges(measured, lambda context, batch=batch: self._model(batch, context))  # type: ignore[misc]
            segments += [self._segment((batch, batch), ends, choice) for ends, choice in ranges]
        return segments

    def over_batch_sizes(self) -> list[Segment]:
        """Return the segments over batch sizes, at every context length measured at more than one."""
        segments = []
        for context in sorted({context for _, context in self._conditions}):
            measured = [batch for batch, length in self._conditions if length == context]
            if len(measured) > 1:
                ranges = self._ranges(measured, lambda batch, context=context: self._model(batch, context))  # type: ignore[misc]
                segments += [self._segment(ends, (context, context), choice) for ends, choice in ranges]
        return segments

    def _ranges(
        self, measured: Sequence[int], model_at: Callable[[int], StepModel]
    ) -> list[tuple[tuple[int, int], Candidate]]:
        """Return the ranges along one axis with the fastest in each, predicted at the range's start."""
        winners = {value: self._fastest(model_at(value)) for value in measured}
        starts = {measured[0]}
        pending = list(pairwise(measured))
        while pending:
            low, high = pending.pop()
            if winners[low] == winners[high]:
                continue
            if high - low == 1:
                starts.add(high)
                continue
            middle = (low + high) // 2
            winners[middle] = self._fastest(model_at(middle))
            pending += [(low, middle), (middle, high)]
        ordered = sorted(starts)
        ends = [*(start - 1 for start in ordered[1:]), measured[-1]]
        return [
            (
                (start, end),
                model_at(start).predict(self._rivals[winners[start]].kind, self._rivals[winners[start]].tree),
            )
            for start, end in zip(ordered, ends, strict=True)
        ]

    def _fastest(self, model: StepModel) -> int:
        """Return which rival is fastest, in a tie the smallest; those too large for what was measured are left out."""
        best, winner = 0.0, 0
        for number, rival in enumerate(self._rivals):
            widest = rival.tree.draft_widths.max(initial=0)
            if rival.tree.nodes > model.costs.max_nodes or widest > model.costs.max_draft_width:
                continue
            if (speedup := model.speedup(rival.tree)) > best * (1 + CLOSE):
                best, winner = speedup, number
        return winner

    def _model(self, batch: int, context: int) -> StepModel:
        return step_model(
            self._profile,
            rule=self._acceptance.rule,
            temperature=self._acceptance.temperature,
            context_tokens=context,
            batch_size=batch,
            raw=self._raw,
        )

    def _segment(self, batches: tuple[int, int], contexts: tuple[int, int], choice: Candidate) -> Segment:
        return Segment(
            rule=self._acceptance.rule,
            temperature=self._acceptance.temperature,
            batch_sizes=batches,
            context_tokens=contexts,
            choice=choice,
        )
