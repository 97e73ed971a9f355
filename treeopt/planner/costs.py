"""What a step costs: seconds to verify, to draft a level, and to do the rest, at every count.

    step_s(T) = sum over levels of draft_s[internal nodes of the level] + verify_s[nodes of T] + overhead_s
                + branching_s where T branches

Nobody has to pay more for a smaller pass than for a larger one, because a pass may be padded: both curves are replaced
by the least seconds at that count or any larger one.  What a step's overhead grows by with each level and each node
(`treeopt.planner.overheads`) is part of the curves too.  Plain decoding, the tree of the root alone, is verify_s[1]; of
several texts it is a whole step, overhead included, and is not padded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float64, Int32, Int64, Integers
from treeopt.errors import InfeasibleError
from treeopt.planner.condition import Condition
from treeopt.planner.curves import Curve, Knots, mixed, padding
from treeopt.planner.overheads import Overheads, constant, fitted
from treeopt.planner.smoothing import pooled, pooling
from treeopt.records.engine import WholeSteps
from treeopt.records.latency import LatencyTable, Timing
from treeopt.trees import TokenTree

Reading = Callable[[tuple[Timing, ...]], Float64]
"""From timings to seconds, one per timing in the last axis: their medians, or draws of what the medians may be."""
EXTRAPOLATED = "times: extrapolated to 0 seconds or fewer. Ask for something nearer to what was measured."
SecondsAt = Callable[[Integers], Float64]
"""From counts to seconds at each."""


class StepParts(NamedTuple):
    """What steps are made of, seconds (…, trees)."""

    draft: Float64
    verify: Float64
    overhead: Float64

    @property
    def step_s(self) -> Float64:
        """Seconds of the whole steps."""
        return self.draft + self.verify + self.overhead


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepCosts(ArrayRecord):
    """The curves of one condition and rule; any leading axes hold draws of them."""

    verify: Curve
    """A pass over n nodes, padded where that is faster."""
    draft: Curve
    """Drafting one level of w internal nodes; free where one pass drafts every level."""
    overhead_s: Float64
    """(…,): the rest of a step; what of it grows with levels and nodes is part of the curves."""
    branching_s: Float64 = field(default_factory=lambda: np.zeros(()))
    """(…,): what a step takes more where the tree branches."""
    whole_steps: bool = False
    """Whether an engine's whole steps stand for passes."""

    def __post_init__(self) -> None:
        freeze(self)

    @cached_property
    def verify_s(self) -> Float64:
        """(…, N + 1): seconds at every count; entry 0 is 0."""
        return self.verify.at(np.arange(self.max_nodes + 1))

    @cached_property
    def draft_s(self) -> Float64:
        """(…, W + 1): seconds at every width; entry 0 is 0."""
        return self.draft.at(np.arange(self.max_draft_width + 1))

    @property
    def verify_tokens(self) -> Int64:
        """(N + 1,): the count that a pass over n nodes is padded to."""
        return self.verify.padded

    @cached_property
    def plain_s(self) -> Float64:
        """(…, 1): a step of plain decoding."""
        return self.verify.at(np.array([1]))

    @property
    def max_nodes(self) -> int:
        """The largest pass."""
        return self.verify.max_tokens

    @property
    def max_draft_width(self) -> int:
        """The widest level that can be drafted."""
        return self.draft.max_tokens

    def step_s(self, nodes: Integers, draft_widths: Integers) -> Float64:
        """Return (…, trees): seconds of a step with each tree.

        Args:
            nodes: (trees,) nodes of each.
            draft_widths: (trees, levels) internal nodes of each at each depth, 0 behind the last.

        Raises InfeasibleError for counts beyond the curves.
        """
        return self.parts(nodes, draft_widths).step_s

    def parts(self, nodes: Integers, draft_widths: Integers) -> StepParts:
        """Return what the same steps are made of; raises likewise."""
        self._check("nodes", nodes, self.max_nodes)
        self._check("internal nodes of a level", draft_widths, self.max_draft_width)
        branching = nodes - 1 > np.count_nonzero(draft_widths, axis=-1)  # a chain has one node a level
        overhead_s = np.where(nodes > 1, self.overhead_s[..., None], 0.0)
        overhead_s = overhead_s + np.where(branching, self.branching_s[..., None], 0.0)
        draft_s, verify_s = self._read
        return StepParts(draft_s(draft_widths).sum(axis=-1), verify_s(nodes), overhead_s)

    def tree_s(self, tree: TokenTree) -> Float64:
        """Return (…,): seconds of a step with one tree; raises as `step_s` does."""
        return np.asarray(self.step_s(*sizes([tree]))[..., 0])

    def speedup(self, tokens: Float64, step_s: Float64) -> Float64:
        """Return tokens per second over those of plain decoding, (…, trees)."""
        return np.asarray(tokens * (self.plain_s / step_s))

    @cached_property
    def _read(self) -> tuple[SecondsAt, SecondsAt]:
        """How both curves are read: from the seconds at every count, which of draws would fill the memory."""
        if self.plain_s.ndim > 1 or self.overhead_s.ndim > 0:
            return self.draft.at, self.verify.at
        return self.draft_s.__getitem__, self.verify_s.__getitem__

    def _check(self, name: str, counts: Integers, most: int) -> None:
        if counts.size and counts.max() > most:
            raise InfeasibleError(
                f"{name}: times were measured for 1 to {most} tokens. Got {counts.max()}: ask for fewer, or "
                + ("probe with larger --lengths." if self.whole_steps else "profile with a larger --max-tokens.")
            )


def sizes(trees: Sequence[TokenTree]) -> tuple[Integers, Integers]:
    """Return (trees,) nodes and (trees, levels) internal nodes of each at each depth, 0 behind the last."""
    widths = np.zeros((len(trees), max(tree.max_depth for tree in trees)), np.int64)
    for row, tree in zip(widths, trees, strict=True):
        row[: tree.max_depth] = _draft_widths(tree)
    return np.array([tree.nodes for tree in trees]), widths


@lru_cache(maxsize=1024)
def _draft_widths(tree: TokenTree) -> Int32:
    """Return its `draft_widths`; kept, because rivals meet again under every condition."""
    return tree.draft_widths


def step_costs(
    condition: Condition,
    *,
    rule: str,
    max_nodes: int = 0,
    reading: Reading | None = None,
) -> StepCosts:
    """Return the curves of a condition under a rule at every count from 1 to the largest measured.

    Args:
        condition: where.
        rule: verification rule whose overhead counts.
        max_nodes: where larger than what was measured, the curves go on at their last slope, up to there.
        reading: what is read from the timings; by default their medians.  What is padded, the medians decide.

    Raises InfeasibleError where an extrapolated time is not above 0.
    """
    verify = _curve(condition, [each.verify for _, each in condition.parts], reading, max_nodes)
    if _plain_batches(condition):
        verify = _plain_unpadded(verify)
    tables = [each.draft for _, each in condition.parts if each.draft is not None]
    timed = bool(tables) and not _whole(condition)
    draft = _curve(condition, tables, reading, max_nodes) if timed else Curve.free(verify.max_tokens)
    parts = [_overheads(condition, part, rule, reading or _medians, verify, draft) for part in range(len(verify.knots))]
    shares = np.array([share for share, _ in condition.parts])
    rest = Overheads(*(np.tensordot(shares, np.stack(each), axes=1) for each in zip(*parts, strict=True)))
    nodes = np.arange(verify.max_tokens + 1)
    # a mean overhead may be negative, and so may the share of a part in what is extrapolated
    return StepCosts(
        verify=replace(verify, more_s=np.maximum(0.0, rest.per_node_s), times=np.where(nodes > 1, nodes, 0)),
        draft=replace(draft, more_s=rest.per_level_s, times=np.ones_like(draft.padded)),
        overhead_s=np.maximum(0.0, rest.per_step_s),
        branching_s=np.maximum(0.0, rest.branching_s),
        whole_steps=_whole(condition),
    )


def _curve(condition: Condition, tables: list[LatencyTable], reading: Reading | None, max_nodes: int) -> Curve:
    """Return the curve of some tables, one of each part, padded where their medians are less at a larger count."""
    shares = [share for share, _ in condition.parts]
    knots = tuple(
        Knots(share, each.tokens, pooled(each.medians_s, pooling(each)))
        for share, each in zip(shares, tables, strict=True)
    )
    medians_s = mixed(knots, np.arange(1, max(max_nodes, min(each.max_tokens for each in tables)) + 1))
    if medians_s.min() <= 0:
        raise InfeasibleError(EXTRAPOLATED)
    if reading is not None:
        drawn = [pooled(reading(each.timings), pooling(each)) for each in tables]
        knots = tuple(replace(each, seconds=seconds) for each, seconds in zip(knots, drawn, strict=True))
    padded = np.arange(len(medians_s) + 1) if _whole(condition) else padding(medians_s)
    return Curve(knots, padded, np.zeros(knots[0].seconds.shape[:-1]), np.zeros_like(padded))


def _plain_batches(condition: Condition) -> bool:
    """Return whether the first count is a plain step of several texts, whose overhead may exceed what a node more takes."""
    return any(each.batch_size > 1 and each.steps for _, each in condition.parts)


def _plain_unpadded(verify: Curve) -> Curve:
    """Return the curve with the first count as measured, which no padding makes faster."""
    padded = verify.padded.copy()
    padded[1] = 1
    return replace(verify, padded=padded)


def _whole(condition: Condition) -> bool:
    """Return whether whole steps of an engine stand for passes: drafting is in them, and none can be padded."""
    return any(isinstance(each, WholeSteps) for _, each in condition.parts)


def _overheads(condition: Condition, part: int, rule: str, read: Reading, verify: Curve, draft: Curve) -> Overheads:
    """Return what a step takes beside its passes, under one part of a condition; nothing without a draft model."""
    latency = condition.parts[part][1]
    overhead = latency.overhead_of(rule)
    if overhead is None:
        return constant(np.zeros(verify.knots[part].seconds.shape[:-1]))
    timed = tuple(
        each
        for each in latency.steps_of(rule)
        if each.tree.nodes <= verify.max_tokens and each.tree.draft_widths.max(initial=0) <= draft.max_tokens
    )
    if not timed:
        return constant(read((overhead,))[..., 0])
    steps_s = read(tuple(each.steps for each in timed))
    nodes = max(each.tree.nodes for each in timed)
    width = max(int(each.tree.draft_widths.max(initial=1)) for each in timed)
    verify_s = verify.knots[part].at(verify.padded[1 : nodes + 1])
    return fitted(timed, steps_s, verify_s, draft.knots[part].at(draft.padded[1 : width + 1]))


def _medians(timings: tuple[Timing, ...]) -> Float64:
    return np.array([timing.median_s for timing in timings])
