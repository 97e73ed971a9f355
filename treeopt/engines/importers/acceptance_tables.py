"""From what engines report to an acceptance table: rates, counts and vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.proportions import independent_positions, posterior_error

MAX_DRAFTS = 1e15
SUM_ROUNDING = 1e-5
"""A vector whose entries sum to 1 within this, the rounding of 32-bit numbers, ends in the share of nothing accepted."""
SUM_DOUBT = 5e-3
"""Within this, the rounding of printed numbers, it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """Acceptance by rank, and how its last entry was read."""

    table: AcceptanceTable
    remark: str
    """Empty where nothing had to be decided."""


def table_of_rates(rates: Sequence[float]) -> AcceptanceTable:
    """Return the chain's table of the rates at which a step accepts at least 1, 2, … draft tokens.

    p[d, 0] is a rate over the one before it; positions behind a rate of 0 were never reached and are left out.
    Raises InvalidValueError for rates outside 0 to 1 and for one above the one before it.

    >>> table_of_rates([0.8, 0.4]).p.tolist()
    [[0.8], [0.5]]
    """
    _check_rates(rates)
    before = [1.0, *rates[:-1]]
    return AcceptanceTable([[rate / reached] for rate, reached in zip(rates, before, strict=True) if reached > 0])


def table_of_conditional(p: Sequence[float]) -> AcceptanceTable:
    """Return the chain's table of acceptance at each position, given that the one before it was accepted."""
    return AcceptanceTable([[value] for value in p])


def table_of_counts(drafts: float, accepted: Sequence[float]) -> AcceptanceTable:
    """Return the chain's table of how many drafts there were and how many had each position accepted.

    With counts and standard errors, as if positions were independent.
    Raises InvalidValueError where nothing was drafted, and for a count above the one before it.

    >>> table_of_counts(100, [80, 40]).standard_error.round(3).tolist()
    [[0.04], [0.055]]
    """
    if not 0 < drafts <= MAX_DRAFTS:
        raise InvalidValueError(f"drafts: expected at least one, at most {MAX_DRAFTS:g}. Got {drafts:g}.")
    _check_rates([count / drafts for count in accepted], "accepted")
    pairs = [(before, count) for before, count in zip([drafts, *accepted[:-1]], accepted, strict=True) if before > 0]
    return table_of_reached([before for before, _ in pairs], [count for _, count in pairs])


def table_of_reached(
    reached: Sequence[float] | Float64, accepted: Sequence[float] | Float64, *, one_sequence: bool = False
) -> AcceptanceTable:
    """Return the chain's table of how many drafts reached each position and how many of these accepted it.

    With counts and standard errors, as if positions were independent, unless they are of one sequence, in which they are
    alike; every position must be reached.

    >>> table_of_reached([100, 60], [80, 15]).p.tolist()
    [[0.8], [0.25]]
    """
    counts = np.array(reached, np.float64)
    p = np.array(accepted, np.float64)[:, None] / counts[:, None]
    positions = independent_positions(p, counts[:, None], 1) if one_sequence else counts[:, None]
    return AcceptanceTable(p, counts=counts, standard_error=posterior_error(p, positions))


def vector_of_ranks(values: Sequence[float]) -> Vector:
    """Return the row that holds at every depth, of a vector such as Sequoia's (Chen et al., 2024).

    A leading 0 is its unused entry for the root. The last is the share of nothing accepted where all sum to 1, and a
    rank where they do not.  Where rounding may be the difference nobody can tell: it is kept as a rank.
    Raises InvalidValueError where nothing is left, and as AcceptanceTable does.
    """
    ranks = list(values[1:] if values[:1] in ([0], [0.0]) else values)
    missing = 1 - sum(ranks)
    if len(ranks) < 2 or missing > SUM_DOUBT:
        return Vector(table=AcceptanceTable(ranks), remark="")
    if -SUM_DOUBT <= missing <= SUM_ROUNDING:
        return Vector(table=AcceptanceTable(ranks[:-1]), remark="last entry, nothing accepted, left out")
    return Vector(table=AcceptanceTable(ranks), remark="last entry kept as a rank, may be nothing accepted")


def _check_rates(rates: Sequence[float], name: str = "rates") -> None:
    if not rates:
        raise InvalidValueError(f"{name}: expected at least one, each from 0 to 1 of all drafts. Got none.")
    for position, rate in enumerate(rates):
        if not 0 <= rate <= 1:
            hint = "divide percentages by 100" if 1 < rate <= 100 else "is it another file?"
            raise InvalidValueError(
                f"{name}: expected shares from 0 to 1 of all drafts. Got {rate:g} at position {position}: {hint}."
            )
    for position, (before, after) in enumerate(pairwise(rates), start=1):
        if after > before:
            raise InvalidValueError(
                f"{name}: expected never to rise, each counted over all drafts. Got {after:g} after {before:g} at "
                f"position {position}: conditional ones go below the key conditional."
            )
