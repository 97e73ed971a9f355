"""What a step costs: seconds to verify, to draft a level, and to do the rest, at every count.

    step_s(T) = draft_s(T) + verify_s[nodes of T] + overhead_s + branching_s where T branches

    draft_s(T) = sum over levels of draft_s[internal nodes of the level]    drafted level by level (draft model, EAGLE)
               = draft_s[levels of T]                                       one pass drafts all levels (Medusa, blocks)
               = 0                                                          nothing is drafted, or whole steps were timed

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
from treeopt.planner.curves import Curve, interpolate, padding
from treeopt.planner.overheads import Overheads, constant, fitted
from treeopt.planner.resampling import OBSERVED, Estimator
from treeopt.planner.smoothing import pooled, pooling
from treeopt.records.latency import LatencyTable
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.step_latency import StepLatency
from treeopt.trees import TokenTree

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
    """The curves of one operating point and rule; any leading axes hold draws of them."""

    verify: Curve
    """A pass over n nodes, padded where that is faster."""
    draft: Curve
    """Drafting one level of w internal nodes, or all of w levels where `per_block`; free of an engine's whole steps."""
    overhead_s: Float64
    """(…,): the rest of a step; what of it grows with levels and nodes is part of the curves."""
    branching_s: Float64 = field(default_factory=lambda: np.zeros(()))
    """(…,): what a step takes more where the tree branches."""
    per_block: bool = False
    """Whether one pass drafts all levels."""
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
        """(…, W + 1): seconds at every width, or number of levels where `per_block`; entry 0 is 0."""
        return self.draft.at(np.arange(self.draft.max_tokens + 1))

    @cached_property
    def level_s(self) -> Float64:
        """(…, W + 1): what a level of each width costs beside the other levels; nothing where `per_block`."""
        return np.zeros(self.max_draft_width + 1) if self.per_block else self.draft_s

    def chain_s(self, levels: Integers) -> Float64:
        """Return (…, levels): seconds of drafting chains of so many levels, the least of trees as deep."""
        if self.per_block:
            return self.draft.at(np.minimum(levels, self.max_levels))
        return np.asarray(levels * self.draft_s[..., 1, None])

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
        return self.max_nodes if self.per_block else self.draft.max_tokens

    @property
    def max_levels(self) -> int:
        """The most levels that can be drafted."""
        return self.draft.max_tokens if self.per_block else self.max_nodes

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
        levels = np.count_nonzero(draft_widths, axis=-1)
        self._check("levels", levels, self.max_levels)
        branching = nodes - 1 > levels  # a chain has one node a level
        overhead_s = np.where(nodes > 1, self.overhead_s[..., None], 0.0)
        overhead_s = overhead_s + np.where(branching, self.branching_s[..., None], 0.0)
        draft_s, verify_s = self._read
        drafting_s = draft_s(levels) if self.per_block else draft_s(draft_widths).sum(axis=-1)
        return StepParts(drafting_s, verify_s(nodes), overhead_s)

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
                + ("probe with larger --lengths." if self.whole_steps else "profile with a larger --max-tokens."),
                field=name,
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
    point: OperatingPoint, *, rule: str, max_nodes: int = 0, estimator: Estimator = OBSERVED, passes_only: bool = False
) -> StepCosts:
    """Return the curves of an operating point under a rule, at every count from 1 to the largest measured.

    Args:
        point: whose latencies are interpolated.
        rule: verification rule whose overhead counts.
        max_nodes: if larger than what was measured, the curves continue at their last slope up to there.
        estimator: turns timings into seconds; observed medians decide about padding.
        passes_only: leave out what a step's overhead grows by with levels and nodes.

    Raises InfeasibleError if an extrapolated time is not above 0.
    """
    verify, verify_passes = _curve(point, [latency.verify for latency in point.latencies], estimator, max_nodes)
    if not passes_only and any(latency.batch_size > 1 and latency.steps for latency in point.latencies):
        verify = _unpad_plain(verify)
    tables = [latency.draft for latency in point.latencies if latency.draft is not None]
    per_block = any(latency.per_block for latency in point.latencies)  # then all of them, as profiles are checked
    draft, draft_passes = Curve.free(verify.max_tokens), list[_Passes]()
    if tables and not point.whole_steps:
        draft, draft_passes = _curve(point, tables, estimator, 0 if per_block else max_nodes)
    if draft_passes and not passes_only:
        parts = zip(point.latencies, verify_passes, draft_passes, strict=True)
        overheads = [_overheads(*each, rule, estimator) for each in parts]
    else:
        overheads = [_mean_overhead(latency, rule, estimator) for latency in point.latencies]
    rest = Overheads(*(point.interpolate(each) for each in zip(*overheads, strict=True)))
    nodes, levels = np.arange(verify.max_tokens + 1), np.arange(draft.max_tokens + 1)
    # a mean overhead may be negative, and so may the weight of a latency that is extrapolated from
    return StepCosts(
        verify=replace(verify, more_s=np.maximum(0.0, rest.per_node_s), times=np.where(nodes > 1, nodes, 0)),
        draft=replace(draft, more_s=rest.per_level_s, times=levels if per_block else np.ones_like(levels)),
        overhead_s=np.maximum(0.0, rest.per_step_s),
        branching_s=np.maximum(0.0, rest.branching_s),
        per_block=per_block,
        whole_steps=point.whole_steps,
    )


class _Passes(NamedTuple):
    """The passes of one latency, padded as the curve of its operating point is."""

    tokens: Int64
    seconds: Float64
    padded: Int64

    def at(self, counts: Integers) -> Float64:
        """Return (…, counts): seconds at each."""
        return interpolate(self.tokens, self.seconds, self.padded[counts])


def _curve(
    point: OperatingPoint, tables: list[LatencyTable], estimator: Estimator, max_nodes: int
) -> tuple[Curve, list[_Passes]]:
    """Return the curve interpolated between some tables, and the passes of each table.

    A pass is padded if the observed medians are lower at a larger count.
    """

    def between(seconds: list[Float64], counts: Integers) -> Float64:
        return point.interpolate(
            [interpolate(table.tokens, each, counts) for table, each in zip(tables, seconds, strict=True)]
        )

    most = max(max_nodes, min(table.max_tokens for table in tables))
    observed = [pooled(table.medians_s, pooling(table)) for table in tables]
    medians_s = between(observed, np.arange(1, most + 1))
    if medians_s.min() <= 0:
        raise InfeasibleError(EXTRAPOLATED)
    padded = np.arange(most + 1) if point.whole_steps else padding(medians_s)
    seconds = [pooled(estimator.medians_s(table.timings), pooling(table)) for table in tables]
    grid = np.unique(np.concatenate([table.tokens for table in tables]))
    curve = Curve(grid, between(seconds, grid), padded, np.zeros(seconds[0].shape[:-1]), np.zeros_like(padded))
    return curve, [_Passes(table.tokens, each, padded) for table, each in zip(tables, seconds, strict=True)]


def _unpad_plain(verify: Curve) -> Curve:
    """Return the curve with the first count as measured: a plain step of a batch, overhead included, is not padded."""
    padded = verify.padded.copy()
    padded[1] = 1
    return replace(verify, padded=padded)


def _overheads(latency: StepLatency, verify: _Passes, draft: _Passes, rule: str, estimator: Estimator) -> Overheads:
    """Return what the steps of one latency take beyond their passes."""
    timed = tuple(
        each
        for each in latency.steps_of(rule)
        if each.tree.nodes < len(verify.padded) and _drafted(latency, each.tree).max(initial=0) < len(draft.padded)
    )
    if not timed:
        return _mean_overhead(latency, rule, estimator)
    steps_s = estimator.medians_s(tuple(each.steps for each in timed))
    passes_s = [
        verify.at(np.array([each.tree.nodes]))[..., 0] + draft.at(_drafted(latency, each.tree)).sum(axis=-1)
        for each in timed
    ]
    return fitted(timed, steps_s - np.stack(passes_s, axis=-1))


def _drafted(latency: StepLatency, tree: TokenTree) -> Int64:
    """Return the counts at which the draft curve is read for a tree: each level's width, or once the number of levels."""
    return np.array([tree.max_depth]) if latency.per_block else tree.draft_widths.astype(np.int64)


def _mean_overhead(latency: StepLatency, rule: str, estimator: Estimator) -> Overheads:
    """Return the mean overhead of a rule's steps; 0 without a draft model."""
    overhead = latency.overhead_of(rule)
    return constant(np.zeros(()) if overhead is None else estimator.medians_s((overhead,))[..., 0])
