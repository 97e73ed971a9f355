"""Rates, counts, means and vectors that engines report, as acceptance tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from treeopt.arrays import Float64
from treeopt.engines.importers.importer import ImportedAcceptance
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.proportions import independent_positions, posterior_error

MAX_DRAFTS = 1e15
SUM_ROUNDING = 1e-5
"""The last entry of a vector that sums to 1 within this, the rounding of float32, is the share of nothing accepted."""
SUM_DOUBT = 5e-3
"""Within this, the rounding of printed numbers, it may be that share."""
MAX_GROUPS = 256
"""More requests are summed in this many groups of neighbours, whose errors are as independent."""
RATE_ROUNDING = 0.00051
"""Of rates with three decimals, as engines log them."""
MAX_LENGTH = 256
"""Longest draft that a sweep may have, or that is inferred from a mean and a rate."""
HALVINGS = 60
SHORTER_DRAFTS = "shorter drafts count as rejected"


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Steps of one request that tried a draft token at positions 1, 2, …, and those that accepted it.

    >>> StepCounts.from_lengths({0: 40, 1: 30, 2: 30}, 3)
    StepCounts(reached=(100, 60, 30), accepted=(60, 30, 0))
    """

    reached: tuple[float, ...]
    accepted: tuple[float, ...]

    @classmethod
    def from_lengths(cls, steps: Mapping[int, int], depth: int) -> "StepCounts":
        """Return the counts of steps, all of which drafted `depth` tokens, by the draft tokens that they accepted."""
        tried = min(depth, max(steps, default=0) + 1)  # no step reached the later positions
        survived = tuple(accumulate(steps.get(length, 0) for length in range(tried, -1, -1)))[::-1]
        return cls(survived[:-1], survived[1:])

    @classmethod
    def from_steps(cls, accepted: Sequence[int], drafted: Sequence[int]) -> "StepCounts":
        """Return the counts of steps that may differ in the number of tokens they drafted.

        >>> StepCounts.from_steps([2, 0, 1], [2, 2, 1])
        StepCounts(reached=(3, 1), accepted=(2, 1))
        """
        taken, tried = np.array(accepted, np.int64), np.array(drafted, np.int64)
        positions = range(int(tried.max(initial=0)))
        reached = tuple(int(np.count_nonzero((taken >= position) & (tried > position))) for position in positions)
        return cls(reached, tuple(int(np.count_nonzero(taken > position)) for position in positions))

    @classmethod
    def from_accepted(cls, drafts: float, accepted: Sequence[float]) -> "StepCounts":
        """Return the counts of drafts that had each position accepted, without positions that none reached.

        >>> StepCounts.from_accepted(100, [60, 0, 0])
        StepCounts(reached=(100, 60), accepted=(60, 0))
        """
        reached = (drafts, *accepted[:-1])
        depth = sum(count > 0 for count in reached)
        return cls(reached[:depth], tuple(accepted[:depth]))

    @classmethod
    def from_rates(cls, rates: Sequence[float], drafts: int) -> "StepCounts":
        """Return the counts of rounded rates, each the share of all drafts that accepted a position.

        Raises InvalidValueError for rates outside 0 to 1.

        >>> StepCounts.from_rates([0.667, 0.333, 0.0, 0.0], 3)
        StepCounts(reached=(3, 2, 1), accepted=(2, 1, 0))
        """
        _check_range(rates)
        return cls.from_accepted(drafts, [round(rate * drafts) for rate in rates])


def pool_steps(
    counts: Sequence[StepCounts],
    kind: str,
    *,
    by_request: bool = True,
    shorter_drafts: bool = False,
) -> ImportedAcceptance:
    """Return the chain acceptance of all counts together, without positions that no step reached.

    Args:
        counts: those of requests, or of other groups of steps, whose differences give the standard errors.
        kind: the kind of file.
        by_request: whether they are those of requests. Positions of a single request are alike, others are independent.
        shorter_drafts: whether steps count as if they had drafted more tokens than they did, which the kind then contains.

    Raises InvalidValueError if no step drafted anything.
    """
    reached = _sum_groups([request.reached for request in counts])
    accepted = _sum_groups([request.accepted for request in counts])
    depth = int(np.count_nonzero(reached.sum(axis=0)))  # a position is reached through those before it
    if depth == 0:
        raise InvalidValueError("steps: expected at least one that drafted. Got none: has it drafted yet?")
    reached, accepted = reached[:, :depth], accepted[:, :depth]
    sums = None if len(reached) == 1 else SequenceSums(reached, accepted[:, :, None])
    table = _sequence_table(reached[0], accepted[0], by_request) if sums is None else sums.table()
    kind = f"{kind}; {SHORTER_DRAFTS}" if shorter_drafts else kind
    return ImportedAcceptance(
        table=table,
        kind=kind,
        prompts=len(counts) if by_request else None,
        positions=max(1, round(reached[:, 0].sum())),
        sequences=sums,
    )


def pool_lengths(
    histograms: Sequence[Mapping[int, int]],
    kind: str,
    *,
    depth: int | None = None,
    by_request: bool = True,
) -> ImportedAcceptance:
    """Return the acceptance of `pool_steps`, from the steps by accepted draft tokens.

    `depth` is the number of draft tokens, by default the most that a step accepted, at least 1.
    """
    if depth is None:
        depth = max([1, *(max(steps, default=1) for steps in histograms)])
    counts = [StepCounts.from_lengths(steps, depth) for steps in histograms]
    return pool_steps(counts, kind, by_request=by_request)


def acceptance_from_rates(rates: Sequence[float], kind: str) -> ImportedAcceptance:
    """Return the chain's acceptance from the rates at which a step accepts at least 1, 2, … draft tokens.

    p[d, 0] is a rate over the one before it. Positions after a rate of 0 were never reached and are left out.
    Raises InvalidValueError as `check_rates` does.

    >>> acceptance_from_rates([0.8, 0.4], "rates").table.p.tolist()
    [[0.8], [0.5]]
    """
    check_rates(rates)
    pairs = zip(rates, [1.0, *rates[:-1]], strict=True)
    return acceptance_from_conditional([rate / reached for rate, reached in pairs if reached > 0], kind)


def acceptance_from_conditional(p: Sequence[float], kind: str) -> ImportedAcceptance:
    """Return the chain's acceptance from that of each position, given that the one before it was accepted.

    Raises InvalidValueError for rates outside 0 to 1.
    """
    _check_range(p, "conditional")
    return ImportedAcceptance(table=AcceptanceTable([[value] for value in p]), kind=kind)


def acceptance_from_counts(
    drafts: float, accepted: Sequence[float], kind: str, *, shorter_drafts: bool = False
) -> ImportedAcceptance:
    """Return the chain's acceptance from the number of drafts, and how many of them had each position accepted.

    Its standard errors assume independent positions; `shorter_drafts` as in `pool_steps`.
    Raises InvalidValueError without drafts, and for a count above the one before it.

    >>> acceptance_from_counts(100, [80, 40], "counts").table.standard_error.round(3).tolist()
    [[0.04], [0.055]]
    """
    if not 0 < drafts <= MAX_DRAFTS:
        raise InvalidValueError(f"drafts: expected at least one, at most {MAX_DRAFTS:g}. Got {drafts:g}.")
    most = max(accepted, default=0)
    if most > drafts:
        raise InvalidValueError(f"accepted: expected at most {drafts:g} of a position, the drafts. Got {most:g}.")
    check_rates([count / drafts for count in accepted], "accepted")
    return pool_steps(
        [StepCounts.from_accepted(drafts, accepted)], kind, by_request=False, shorter_drafts=shorter_drafts
    )


def _sequence_table(reached: Float64, accepted: Float64, by_request: bool) -> AcceptanceTable:
    """Return the chain's table of one sequence, or of independent positions; raises InvalidValueError for p above 1."""
    p, counts = (accepted / reached)[:, None], reached[:, None]
    positions = independent_positions(p, counts, 1) if by_request else counts
    with np.errstate(invalid="ignore"):  # the error of a p above 1, which the table refuses
        return AcceptanceTable(p, counts=reached, standard_error=posterior_error(p, positions))


def acceptance_from_mean(
    mean_tokens: float, length: int, kind: str, *, prompts: int | None = None, positions: int | None = None
) -> ImportedAcceptance:
    """Return the chain of `length` draft tokens, all accepted with the same p, that has a mean of tokens per step.

    p solves mean = 1 + p + p² + … + p^length. The kind contains this assumption.

    >>> acceptance_from_mean(1.75, 2, "log").table.p.round(6).tolist()
    [[0.5], [0.5]]
    """
    p = [solve_constant_rate(mean_tokens - 1, length)] * length
    acceptance = acceptance_from_conditional(p, f"{kind}; mean only, all {length} positions taken for equal")
    return replace(acceptance, prompts=prompts, positions=positions)


def acceptance_from_totals(
    steps: float, drafted: float, accepted: float, kind: str, *, prompts: int | None = None
) -> ImportedAcceptance:
    """Return the chain of as many tokens as a step drafted on average, all accepted with the same p.

    Raises InvalidValueError for less than one step, and more accepted than drafted tokens.
    """
    if not (steps >= 1 and accepted <= drafted <= MAX_LENGTH * steps):
        raise InvalidValueError(
            f"steps: expected at least one, of at most {MAX_LENGTH} draft tokens, and no more accepted than drafted "
            f"tokens. Got {steps:g} steps, {drafted:g} drafted and {accepted:g} accepted tokens."
        )
    length = max(1, round(drafted / steps))
    return acceptance_from_mean(1 + accepted / steps, length, kind, prompts=prompts, positions=round(steps))


def solve_constant_rate(accepted_tokens: float, length: int) -> float:
    """Return the p from 0 to 1 for which p + p² + … + p^length is nearest to a mean number of accepted tokens."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if sum(middle**power for power in range(1, length + 1)) < accepted_tokens:
            low = middle
        else:
            high = middle
    return high


def acceptance_from_vector(values: Sequence[float]) -> ImportedAcceptance:
    """Return the acceptance by rank, the same at every depth, of a vector such as Sequoia's (Chen et al., 2024).

    A leading 0 is Sequoia's unused entry of the root. The last entry is the share of nothing accepted if all sum to 1,
    and a rank if they do not. If rounding may be the difference, it stays a rank, and the kind contains that.
    Raises InvalidValueError for a vector without ranks, and as AcceptanceTable does.
    """
    ranks = list(values[1:] if values[:1] in ([0], [0.0]) else values)
    missing = 1 - sum(ranks)
    kind = "acceptance vector"
    if len(ranks) > 1 and missing <= SUM_DOUBT:
        if -SUM_DOUBT <= missing <= SUM_ROUNDING:
            ranks.pop()
            kind += "; last entry, nothing accepted, left out"
        else:
            kind += "; last entry kept as a rank, may be nothing accepted"
    return ImportedAcceptance(table=AcceptanceTable(ranks), kind=kind)


def check_rates(rates: Sequence[float], name: str = "rates") -> None:
    """Raise InvalidValueError without rates, for rates outside 0 to 1, and for a rate above the one before it."""
    if not rates:
        raise InvalidValueError(f"{name}: expected at least one, each from 0 to 1 of all drafts. Got none.")
    _check_range(rates, name)
    for position, (before, after) in enumerate(pairwise(rates), start=1):
        if after > before:
            raise InvalidValueError(
                f"{name}: expected never to rise, each counted over all drafts. Got {after:g} after {before:g} at "
                f"position {position}: conditional ones go below the key conditional."
            )


def _check_range(rates: Sequence[float], name: str = "rates") -> None:
    for position, rate in enumerate(rates):
        if not 0 <= rate <= 1:
            hint = ": divide percentages by 100." if 1 < rate <= 100 else ". Is it another file?"
            raise InvalidValueError(f"{name}: expected shares from 0 to 1. Got {rate:g} at position {position}{hint}")


def _sum_groups(rows: Sequence[Sequence[float]]) -> Float64:
    """Return a row per request, or per group of neighbours, with zeros after the shorter ones."""
    groups = min(len(rows), MAX_GROUPS)
    sums = np.zeros((groups, max(map(len, rows), default=0)))
    for index, row in enumerate(rows):
        sums[index * groups // len(rows), : len(row)] += row
    return sums
