"""Seconds of a step: verification, drafting and host overhead.

    step_s(T) = draft_s(T) + verify_s[nodes of T] + overhead_s + branching_s if T branches

    draft_s(T) = sum over levels of draft_s[internal nodes of the level]    drafted level by level (draft model, EAGLE)
               = draft_s[levels of T]                                       one pass drafts all levels (Medusa, blocks)
               = 0                                                          nothing is drafted, or whole steps were timed

A smaller pass never takes longer than a larger one, because it can be padded: both curves are replaced by the least
seconds at that count or any larger one.  Overhead per level and per node (`treeopt.planner.overheads`) is part of the
curves.  Plain decoding, the tree of the root alone, takes verify_s[1]; for several sequences that is a whole step,
overhead included, and it is not padded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float64, Int32, Integers
from treeopt.errors import InfeasibleError
from treeopt.planner.curves import Curve, interpolate, padding
from treeopt.planner.overheads import Overheads, mean_overhead, step_overheads
from treeopt.planner.resampling import OBSERVED, Estimator
from treeopt.planner.smoothing import find_noisy_runs, pool
from treeopt.records.latency import LatencyTable
from treeopt.records.operating_point import OperatingPoint
from treeopt.trees import TokenTree

EXTRAPOLATED = "times: extrapolated to 0 seconds or fewer. Ask for fewer nodes, or a point nearer to the measured ones."
SecondsAt = Callable[[Integers], Float64]
"""From counts to the seconds at each."""


class StepBreakdown(NamedTuple):
    """Seconds of the parts of steps, each (…, trees)."""

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
    """A pass over n nodes, padded if that is faster."""
    draft: Curve
    """Drafting one level of w internal nodes, or w levels if `per_block`; 0 if whole steps were timed."""
    overhead_s: Float64
    """(…,): constant host overhead; overhead per level and per node is part of the curves."""
    branching_s: Float64 = field(default_factory=lambda: np.zeros(()))
    """(…,): additional overhead if the tree branches."""
    per_block: bool = False
    """Whether one pass drafts all levels."""
    whole_steps: bool = False
    """Whether an engine's whole steps take the place of passes."""

    def __post_init__(self) -> None:
        freeze(self)

    @cached_property
    def verify_s(self) -> Float64:
        """(…, N + 1): seconds at every count; entry 0 is 0."""
        return self.verify.at(np.arange(self.max_nodes + 1))

    @cached_property
    def draft_s(self) -> Float64:
        """(…, W + 1): seconds at every width, or number of levels if `per_block`; entry 0 is 0."""
        return self.draft.at(np.arange(self.draft.max_tokens + 1))

    @cached_property
    def level_s(self) -> Float64:
        """(…, W + 1): seconds of a level of each width; 0 if `per_block`."""
        return np.zeros(self.max_draft_width + 1) if self.per_block else self.draft_s

    def chain_s(self, levels: Integers) -> Float64:
        """Return (…, levels): seconds of drafting a chain, a lower bound for all trees of as many levels."""
        if self.per_block:
            return self.draft.at(np.minimum(levels, self.max_levels))
        return np.asarray(levels * self.draft_s[..., 1, None])

    @cached_property
    def plain_s(self) -> Float64:
        """(…, 1): seconds of a step of plain decoding."""
        return self.verify.at(np.array([1]))

    @property
    def max_nodes(self) -> int:
        """Tokens of the largest verification pass."""
        return self.verify.max_tokens

    @property
    def max_draft_width(self) -> int:
        return self.max_nodes if self.per_block else self.draft.max_tokens

    @property
    def max_levels(self) -> int:
        return self.draft.max_tokens if self.per_block else self.max_nodes

    @property
    def longest_chain(self) -> int:
        """Draft tokens of the longest chain whose pass and levels lie within the curves."""
        return min(self.max_nodes - 1, self.max_levels)

    def step_s(self, nodes: Integers, draft_widths: Integers) -> Float64:
        """Return (…, trees): seconds of a step with each tree.

        Args:
            nodes: (trees,) nodes of each.
            draft_widths: (trees, levels) internal nodes at each depth, 0 after the last.

        Raises InfeasibleError for counts beyond the curves.
        """
        return self.breakdown(nodes, draft_widths).step_s

    def breakdown(self, nodes: Integers, draft_widths: Integers) -> StepBreakdown:
        """Return the parts of the same steps; raises likewise."""
        self._check("nodes", nodes, self.max_nodes)
        self._check("internal nodes of a level", draft_widths, self.max_draft_width)
        levels = np.count_nonzero(draft_widths, axis=-1)
        self._check("levels", levels, self.max_levels)
        branching = nodes - 1 > levels  # a chain has one node per level
        overhead_s = np.where(nodes > 1, self.overhead_s[..., None], 0.0)
        overhead_s = overhead_s + np.where(branching, self.branching_s[..., None], 0.0)
        draft_s, verify_s = self._readers
        return StepBreakdown(
            draft=draft_s(levels) if self.per_block else draft_s(draft_widths).sum(axis=-1),
            verify=verify_s(nodes),
            overhead=overhead_s,
        )

    def tree_s(self, tree: TokenTree) -> Float64:
        """Return (…,): seconds of a step with one tree; raises as `step_s` does."""
        return np.asarray(self.step_s(*sizes([tree]))[..., 0])

    def speedup(self, tokens: Float64, step_s: Float64) -> Float64:
        """Return (…, trees): tokens per second relative to plain decoding."""
        return np.asarray(tokens * (self.plain_s / step_s))

    @cached_property
    def _readers(self) -> tuple[SecondsAt, SecondsAt]:
        """How both curves are read: single curves by index, draws at breakpoints, as all counts would fill the memory."""
        if self.plain_s.ndim > 1 or self.overhead_s.ndim > 0:
            return self.draft.at, self.verify.at
        return self.draft_s.__getitem__, self.verify_s.__getitem__

    def _check(self, name: str, counts: Integers, limit: int) -> None:
        if counts.size and counts.max() > limit:
            raise InfeasibleError(
                f"{name}: times were measured for 1 to {limit} tokens. Got {counts.max()}: ask for fewer, or "
                + ("probe with larger --lengths." if self.whole_steps else "profile with a larger --max-tokens."),
                field=name,
            )


def sizes(trees: Sequence[TokenTree]) -> tuple[Integers, Integers]:
    """Return (trees,) nodes and (trees, levels) internal nodes at each depth, 0 after the last."""
    widths = np.zeros((len(trees), max(tree.max_depth for tree in trees)), np.int64)
    for row, tree in zip(widths, trees, strict=True):
        row[: tree.max_depth] = _draft_widths(tree)
    return np.array([tree.nodes for tree in trees]), widths


@lru_cache(maxsize=1024)
def _draft_widths(tree: TokenTree) -> Int32:
    return tree.draft_widths  # cached, because operating points share most of their trees


def step_costs(
    point: OperatingPoint, *, rule: str, max_nodes: int = 0, estimator: Estimator = OBSERVED, passes_only: bool = False
) -> StepCosts:
    """Return the curves of an operating point under a rule, from 1 token to the largest measured pass.

    Args:
        point: whose latencies are interpolated.
        rule: verification rule whose overhead counts.
        max_nodes: if larger than what was measured, the curves continue at their last slope up to it.
        estimator: turns timings into seconds; padding always follows from the observed medians.
        passes_only: leave out overhead per level and per node.

    Raises InfeasibleError if an extrapolated time is not above 0.
    """
    verify, verify_passes = _interpolate_curve(
        point, [latency.verify for latency in point.latencies], estimator, max_nodes
    )
    if not passes_only and any(latency.batch_size > 1 and latency.steps for latency in point.latencies):
        verify = _without_plain_padding(verify)
    draft_tables = [latency.draft for latency in point.latencies if latency.draft is not None]
    per_block = any(latency.per_block for latency in point.latencies)  # profiles are checked: then all latencies are
    draft, draft_passes = Curve.free(verify.max_tokens), list[Curve]()
    if draft_tables and not point.whole_steps:
        draft, draft_passes = _interpolate_curve(point, draft_tables, estimator, 0 if per_block else max_nodes)
    if draft_passes and not passes_only:
        passes = zip(point.latencies, verify_passes, draft_passes, strict=True)
        by_latency = [step_overheads(*latency_passes, rule, estimator) for latency_passes in passes]
    else:
        by_latency = [mean_overhead(latency, rule, estimator) for latency in point.latencies]
    overheads = Overheads(*(point.interpolate(values) for values in zip(*by_latency, strict=True)))
    nodes, levels = np.arange(verify.max_tokens + 1), np.arange(draft.max_tokens + 1)
    # a mean overhead may be negative, and so may a weight of extrapolation
    return StepCosts(
        verify=replace(
            verify, overhead_s=np.maximum(0.0, overheads.per_node_s), overhead_units=np.where(nodes > 1, nodes, 0)
        ),
        draft=replace(
            draft, overhead_s=overheads.per_level_s, overhead_units=levels if per_block else np.ones_like(levels)
        ),
        overhead_s=np.maximum(0.0, overheads.per_step_s),
        branching_s=np.maximum(0.0, overheads.branching_s),
        per_block=per_block,
        whole_steps=point.whole_steps,
    )


def _interpolate_curve(
    point: OperatingPoint, tables: list[LatencyTable], estimator: Estimator, max_nodes: int
) -> tuple[Curve, list[Curve]]:
    """Return the curve of an operating point, and that of each latency with the same padding."""

    def interpolated_s(seconds: list[Float64], counts: Integers) -> Float64:
        return point.interpolate(
            [interpolate(table.tokens, values, counts) for table, values in zip(tables, seconds, strict=True)]
        )

    max_tokens = max(max_nodes, min(table.max_tokens for table in tables))
    runs = [find_noisy_runs(table) for table in tables]
    observed = [pool(table.medians_s, table_runs) for table, table_runs in zip(tables, runs, strict=True)]
    medians_s = interpolated_s(observed, np.arange(1, max_tokens + 1))
    if medians_s.min() <= 0:
        raise InfeasibleError(EXTRAPOLATED)
    padded = np.arange(max_tokens + 1) if point.whole_steps else padding(medians_s)
    seconds = [
        pool(estimator.medians_s(table.timings), table_runs) for table, table_runs in zip(tables, runs, strict=True)
    ]
    breakpoints = np.unique(np.concatenate([table.tokens for table in tables]))
    by_latency = [
        Curve.without_overhead(table.tokens, values, padded) for table, values in zip(tables, seconds, strict=True)
    ]
    return Curve.without_overhead(breakpoints, interpolated_s(seconds, breakpoints), padded), by_latency


def _without_plain_padding(verify: Curve) -> Curve:
    """Return the curve with one token as measured: for batches that is a whole step of plain decoding."""
    padded = verify.padded.copy()
    padded[1] = 1
    return replace(verify, padded=padded)
