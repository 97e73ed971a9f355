"""The acceptance table: how often the k-th child at depth d is the accepted one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.trees import TokenTree

FloatArray = npt.NDArray[np.float64]

ROUNDING = 1e-9
"""Rows may exceed 1 by this much, the rounding of a sum of written probabilities."""
NORMAL_95 = 1.959964
"""Half-width of a 95 % interval in standard errors."""


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceTable:
    """P[d-1, k]: probability that the child of rank k at depth d is accepted, given that its parent was reached.

    Args:
        p: float (B,), the same at every depth, or (D, B), one row per depth; rows sum to at most 1.
        counts: float (D,) or None: positions that reached each depth when the table was measured.
        standard_error: float, the shape of p, or None: of each measured probability.

    Raises InvalidValueError naming the first entry that is not a probability, or the row that sums to more than 1.

    >>> AcceptanceTable([0.7, 0.1]).expected_tokens(TokenTree([-1, 0, 0, 1]))
    2.29
    """

    p: FloatArray
    counts: FloatArray | None
    standard_error: FloatArray | None

    def __init__(
        self,
        p: Sequence[float] | Sequence[Sequence[float]] | npt.NDArray[np.floating],
        *,
        counts: Sequence[float] | npt.NDArray[np.floating] | None = None,
        standard_error: Sequence[Sequence[float]] | npt.NDArray[np.floating] | None = None,
    ) -> None:
        table = _probabilities(p)
        object.__setattr__(self, "p", table)
        object.__setattr__(self, "counts", _like("counts", counts, table.shape[:-1] or (1,)))
        object.__setattr__(self, "standard_error", _like("standard_error", standard_error, table.shape))

    @property
    def position_invariant(self) -> bool:
        """Whether one row holds for every depth."""
        return self.p.ndim == 1

    @property
    def branching(self) -> int:
        """B: children per node that were measured."""
        return int(self.p.shape[-1])

    @property
    def max_depth(self) -> int | None:
        """D: depths that were measured; None when one row holds for all."""
        return None if self.position_invariant else len(self.p)

    def rows(self, depth: int) -> FloatArray:
        """Return the rows of depth 1 … `depth` as float64 (depth, B).

        Raises InfeasibleError when fewer depths were measured.
        """
        if self.position_invariant:
            return np.broadcast_to(self.p, (depth, self.branching))
        if depth > len(self.p):
            raise InfeasibleError(
                f"max_depth: the acceptance table was measured to depth {len(self.p)}. Got {depth}: "
                f"ask for at most {len(self.p)}, or measure deeper."
            )
        return self.p[:depth]

    def reach(self, tree: TokenTree) -> FloatArray:
        """Return float64 (n,): the probability that a step accepts each node; 1 for the root.

        A rank that was never measured counts as never accepted.
        Raises InfeasibleError when the tree is deeper than the table.
        """
        rows = np.zeros((tree.max_depth + 1, max(self.branching, int(tree.rank.max()) + 1)))
        rows[1:, : self.branching] = self.rows(tree.max_depth)
        accepted = rows[tree.depth, tree.rank]
        reach = np.ones(tree.nodes)
        for level in tree.levels[1:]:
            reach[level] = reach[tree.parents[level]] * accepted[level]
        return reach

    def expected_tokens(self, tree: TokenTree) -> float:
        """Return F(T), the tokens that a step yields on average (Chen et al., 2024, Proposition 3.4)."""
        return float(self.reach(tree).sum())

    def interval(self) -> tuple[FloatArray, FloatArray] | None:
        """Return the ends of the 95 % interval of every entry, or None when no error was measured."""
        if self.standard_error is None:
            return None
        half = NORMAL_95 * self.standard_error
        return np.clip(self.p - half, 0, 1), np.clip(self.p + half, 0, 1)


def _probabilities(p: object) -> FloatArray:
    try:
        table = np.array(p, np.float64)
    except (TypeError, ValueError):
        raise InvalidValueError("p: expected numbers, as many in every row.") from None
    if table.ndim not in (1, 2) or table.size == 0:
        raise InvalidValueError(f"p: expected shape (B,) or (D, B) with at least one entry. Got {table.shape}.")
    bad = np.argwhere(~((table >= 0) & (table <= 1 + ROUNDING)))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InvalidValueError(f"p{list(where)}: expected a probability from 0 to 1. Got {table[where]}.")
    sums = np.atleast_1d(table.sum(axis=-1))
    if sums.max() > 1 + ROUNDING:
        row = int(sums.argmax())
        raise InvalidValueError(
            f"p: expected each row to sum to at most 1 (siblings exclude each other). Row {row} sums to {sums[row]:.6g}."
        )
    table /= np.maximum(1.0, table.sum(axis=-1, keepdims=True))  # takes the rounding back, so that it cannot add up
    table.flags.writeable = False
    return table


def _like(name: str, values: object, shape: tuple[int, ...]) -> FloatArray | None:
    if values is None:
        return None
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise InvalidValueError(f"{name}: expected numbers in shape {shape}.") from None
    if array.shape != shape or not np.all(array >= 0) or not np.all(np.isfinite(array)):
        raise InvalidValueError(f"{name}: expected finite numbers of at least 0 in shape {shape}. Got {array.shape}.")
    array.flags.writeable = False
    return array
