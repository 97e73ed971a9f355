"""What a step costs: seconds to verify, to draft a level, and to do the rest, at every count.

    step_s(T) = sum over levels of draft_s[internal nodes of the level] + verify_s[nodes of T] + overhead_s
                + branching_s where T branches

Nobody has to pay more for a smaller pass than for a larger one, because a pass may be padded: both curves are replaced
by the least seconds at that count or any larger one.  What a step's overhead grows by with each level and each node
(`treeopt.planner.overheads`) is part of the curves too.  Plain decoding, the tree of the root alone, is verify_s[1].
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from treeopt.array_record import ArrayRecord, freeze
from treeopt.errors import InfeasibleError
from treeopt.latency import LatencyTable, Timing
from treeopt.planner.condition import Condition
from treeopt.planner.overheads import Overheads, constant, fitted
from treeopt.planner.smoothing import pooling
from treeopt.profile import StepLatency
from treeopt.trees import TokenTree

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]
LEAST_S = 1e-9
"""Draws of an extrapolated time may fall to 0 or below; they are taken to be this long."""
Reading = Callable[[tuple[Timing, ...]], FloatArray]
"""From timings to seconds, one per timing in the last axis: their medians, or draws of what the medians may be."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class StepCosts(ArrayRecord):
    """The curves of one condition and rule; any leading axes hold draws of them."""

    verify_s: FloatArray
    """(…, N + 1): a pass over n nodes, padded where that is faster; entry 0 is 0."""
    verify_tokens: npt.NDArray[np.int64]
    """(N + 1,): the count that such a pass is padded to."""
    draft_s: FloatArray
    """(…, W + 1): drafting one level of w internal nodes; entry 0 is 0.  All are where one pass drafts every level."""
    overhead_s: FloatArray
    """(…,): the rest of a step; what of it grows with levels and nodes is part of the curves."""
    branching_s: FloatArray = field(default_factory=lambda: np.zeros(()))
    """(…,): what a step takes more where the tree branches."""

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def max_nodes(self) -> int:
        """The largest pass."""
        return int(self.verify_s.shape[-1]) - 1

    @property
    def max_draft_width(self) -> int:
        """The widest level that can be drafted."""
        return int(self.draft_s.shape[-1]) - 1

    def step_s(self, nodes: IntArray, draft_widths: IntArray) -> FloatArray:
        """Return (…, trees): seconds of a step with each tree.

        Args:
            nodes: (trees,) nodes of each.
            draft_widths: (trees, levels) internal nodes of each at each depth, 0 behind the last.

        Raises InfeasibleError for counts beyond the curves.
        """
        self._check("nodes", nodes, self.max_nodes)
        self._check("internal nodes of a level", draft_widths, self.max_draft_width)
        branching = nodes - 1 > np.count_nonzero(draft_widths, axis=-1)  # a chain has one node a level
        overhead_s = np.where(nodes > 1, self.overhead_s[..., None], 0.0)
        overhead_s = overhead_s + np.where(branching, self.branching_s[..., None], 0.0)
        return np.asarray(self.draft_s[..., draft_widths].sum(axis=-1) + self.verify_s[..., nodes] + overhead_s)

    def tree_s(self, tree: TokenTree) -> FloatArray:
        """Return (…,): seconds of a step with one tree; raises as `step_s` does."""
        return np.asarray(self.step_s(np.array([tree.nodes]), tree.draft_widths[None, :])[..., 0])

    def speedup(self, tokens: FloatArray, step_s: FloatArray) -> FloatArray:
        """Return tokens per second over those of plain decoding, (…, trees)."""
        return np.asarray(tokens * (self.verify_s[..., 1:2] / step_s))

    def _check(self, name: str, counts: IntArray, most: int) -> None:
        if counts.size and counts.max() > most:
            raise InfeasibleError(
                f"{name}: times were measured for 1 to {most} tokens. Got {counts.max()}: ask for fewer, or profile "
                "with a larger --max-tokens."
            )


def step_costs(
    condition: Condition,
    *,
    rule: str,
    max_nodes: int = 0,
    reading: Reading | None = None,
    drafted_at_once: Timing | None = None,
) -> StepCosts:
    """Return the curves of a condition under a rule at every count from 1 to the largest measured.

    Args:
        condition: where.
        rule: verification rule whose overhead counts.
        max_nodes: where larger than what was measured, the curves go on at their last slope, up to there.
        reading: what is read from the timings; by default their medians.  What is padded, the medians decide.
        drafted_at_once: seconds of the one pass that drafts all levels, if that is how the drafter works.  Levels are
            free then, and what was timed of a draft model's levels does not count.

    Raises InfeasibleError where an extrapolated time is not above 0.
    """
    if drafted_at_once is not None:
        without_levels = replace(
            condition, parts=tuple((share, replace(latency, steps=())) for share, latency in condition.parts)
        )
        costs = step_costs(without_levels, rule=rule, max_nodes=max_nodes, reading=reading)
        return replace(
            costs,
            draft_s=np.zeros(costs.max_nodes + 1),
            overhead_s=costs.overhead_s + (reading or _medians)((drafted_at_once,))[..., 0],
        )
    measured = [latency for _, latency in condition.parts]
    shares = np.array([share for share, _ in condition.parts])
    read = reading or _medians

    def curve(tables: list[LatencyTable]) -> tuple[list[FloatArray], npt.NDArray[np.int64]]:
        most = max(max_nodes, min(table.max_tokens for table in tables))
        medians_s = _mixed(shares, [_curve(table, _medians, most) for table in tables])
        if medians_s.min() <= 0:
            raise InfeasibleError(
                "times: extrapolated to 0 seconds or fewer. Ask for something nearer to what was measured."
            )
        tokens = _padded(medians_s)
        return [_curve(table, read, most)[..., tokens[1:] - 1] for table in tables], tokens

    verify, verify_tokens = curve([latency.verify for latency in measured])
    draft, _ = curve([latency.draft for latency in measured])
    overheads = [
        _overheads(latency, rule, read, verify_s, draft_s)
        for latency, verify_s, draft_s in zip(measured, verify, draft, strict=True)
    ]
    rest = Overheads(*(_mixed(shares, list(each)) for each in zip(*overheads, strict=True)))
    nodes = np.arange(2, verify[0].shape[-1] + 1)
    verify_s = _mixed(shares, verify)
    verify_s[..., 1:] += np.maximum(0.0, rest.per_node_s)[..., None] * nodes
    return StepCosts(
        verify_s=_from_nothing(verify_s),
        verify_tokens=verify_tokens,
        draft_s=_from_nothing(_mixed(shares, draft) + rest.per_level_s[..., None]),
        overhead_s=np.maximum(0.0, rest.per_step_s),
        branching_s=np.maximum(0.0, rest.branching_s),
    )


def _overheads(latency: StepLatency, rule: str, read: Reading, verify_s: FloatArray, draft_s: FloatArray) -> Overheads:
    """Return what a step takes beside its passes; verify_s (…, N) and draft_s (…, W) from 1 token on."""
    timed = tuple(
        each
        for each in latency.steps_of(rule)
        if each.tree.nodes <= verify_s.shape[-1] and each.tree.draft_widths.max(initial=0) <= draft_s.shape[-1]
    )
    if not timed:
        return constant(read((latency.overhead_of(rule),))[..., 0])
    return fitted(timed, read(tuple(each.steps for each in timed)), verify_s, draft_s)


def _from_nothing(seconds: FloatArray) -> FloatArray:
    """Return (…, counts + 1): the same behind 0 seconds for no tokens."""
    nothing = np.zeros((*seconds.shape[:-1], 1))
    return np.concatenate([nothing, np.maximum(seconds, LEAST_S)], axis=-1)


def _medians(timings: tuple[Timing, ...]) -> FloatArray:
    return np.array([timing.median_s for timing in timings])


def _curve(table: LatencyTable, read: Reading, most: int) -> FloatArray:
    """Return (…, most): seconds at 1 … `most` tokens, straight between the measured and at the last slope beyond."""
    seconds = read(table.timings) @ pooling(table)  # symmetric
    if len(table.tokens) == 1:
        return np.broadcast_to(seconds, (*seconds.shape[:-1], most))
    asked = np.arange(1, most + 1)
    right = np.clip(np.searchsorted(table.tokens, asked), 1, len(table.tokens) - 1)
    share = (asked - table.tokens[right - 1]) / (table.tokens[right] - table.tokens[right - 1])
    return np.asarray((1 - share) * seconds[..., right - 1] + share * seconds[..., right])


def _mixed(shares: FloatArray, curves: list[FloatArray]) -> FloatArray:
    return np.asarray(np.tensordot(shares, np.stack(curves), axes=1)) if len(curves) > 1 else curves[0].copy()


def _padded(seconds: FloatArray) -> npt.NDArray[np.int64]:
    """Return (counts + 1,): at which count or larger a pass takes least; in a tie the smallest; entry 0 is 0."""
    tokens = np.arange(len(seconds) + 1)
    for count in range(len(seconds) - 1, 0, -1):
        if seconds[tokens[count + 1] - 1] < seconds[count - 1]:
            tokens[count] = tokens[count + 1]
    return tokens
