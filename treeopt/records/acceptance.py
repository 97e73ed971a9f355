"""The acceptance table: the probability that the child of rank k at depth d is accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treeopt.arguments import check_instance, check_integer, to_float_array
from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Floats
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.serialization import in_file, rounded
from treeopt.records.proportions import beta_interval, independent_positions, posterior_error
from treeopt.tabular import MAX_ROWS, Row, Tabular, heading_html, heat_html
from treeopt.trees.token_tree import TokenTree

Numbers = Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]] | Floats

ROUNDING = 1e-9
"""Tolerance of a row's sum: probabilities in files are rounded."""
SUMS_ROUNDING = 2e-5
"""Relative tolerance of a ratio of sums that have six digits: twice 5e-6, doubled to be safe."""
NORMAL_95 = 1.959964
"""Half-width of a 95 % interval in standard errors."""


_NUMBERS = in_file(read=Fields.nested_numbers, write=rounded)


def _serialize_probabilities(p: Float64) -> list[Any]:
    return rounded(p, digits=10)  # with fewer digits, rows that sum to 1 would not any more


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AcceptanceTable(ArrayRecord, Tabular):
    """P[d-1, k]: probability that the child of rank k at depth d is accepted, given that its parent was reached.

    A table that depends on the parent's rank j has P[d-1, j, k]; parents of rank R - 1 and above share the last row.
    The root counts as rank 0, so depth 1 uses row 0 only.

    Args:
        p: float (B,), the same at every depth; (D, B), one row per depth; or (D, R, B), one row per depth and parent
            rank. Rows sum to at most 1.
        counts: float, the shape of p without its last axis, (1,) for one row: positions that reached each row.
        standard_error: float, the shape of p.

    Raises InvalidValueError naming the first entry that is not a probability, or the row that sums to more than 1.

    >>> AcceptanceTable([0.7, 0.1]).expected_tokens(TokenTree([-1, 0, 0, 1]))
    2.29
    """

    p: Float64 = field(metadata=in_file(read=Fields.nested_numbers, write=_serialize_probabilities))
    counts: Float64 | None = field(metadata=_NUMBERS)
    standard_error: Float64 | None = field(metadata=_NUMBERS)

    def __init__(
        self,
        p: Numbers,
        *,
        counts: Numbers | None = None,
        standard_error: Numbers | None = None,
    ) -> None:
        table = _probabilities(p)
        object.__setattr__(self, "p", table)
        object.__setattr__(self, "counts", _like("counts", counts, table.shape[:-1] or (1,)))
        object.__setattr__(self, "standard_error", _like("standard_error", standard_error, table.shape))

    @property
    def position_invariant(self) -> bool:
        """Whether one row applies at every depth."""
        return self.p.ndim == 1

    @property
    def branching(self) -> int:
        """B: measured children per node."""
        return int(self.p.shape[-1])

    @property
    def parent_ranks(self) -> int:
        """R: parent ranks with separate rows; 1 if acceptance does not depend on the parent's rank."""
        return int(self.p.shape[1]) if self.p.ndim == 3 else 1

    @property
    def max_depth(self) -> int | None:
        """D: measured depths; None if one row applies at every depth."""
        return None if self.position_invariant else len(self.p)

    def rows(self, depth: int) -> Float64:
        """Return the rows of depths 1 to `depth` as read-only float64 (depth, R, B).

        Raises InfeasibleError if fewer depths were measured.
        """
        depth = check_integer("depth", depth, 0)
        if self.position_invariant:
            return np.broadcast_to(self.p, (depth, 1, self.branching))
        if depth > len(self.p):
            raise InfeasibleError(
                f"max_depth: the acceptance table was measured to depth {len(self.p)}. Got {depth}: "
                f"ask for at most {len(self.p)}, or measure deeper.",
                field="max_depth",
            )
        return self.p.reshape(len(self.p), self.parent_ranks, self.branching)[:depth]

    def reach(self, tree: TokenTree) -> Float64:
        """Return float64 (n,): the probability that a step accepts each node; 1 for the root.

        Ranks that were not measured have probability 0.
        Raises InfeasibleError if the tree is deeper than the table.
        """
        check_instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
        rows = np.zeros((tree.max_depth + 1, self.parent_ranks, max(self.branching, int(tree.rank.max()) + 1)))
        rows[1:, :, : self.branching] = self.rows(tree.max_depth)
        parent_rank = np.minimum(tree.rank[tree.parents], self.parent_ranks - 1)  # the root's entry is not used
        accepted = rows[tree.depth, parent_rank, tree.rank]
        reach = np.ones(tree.nodes)
        for level in tree.levels[1:]:
            reach[level] = reach[tree.parents[level]] * accepted[level]
        return reach

    def expected_tokens(self, tree: TokenTree) -> float:
        """Return F(T), the expected tokens per step (Chen et al., 2024, Proposition 3.4)."""
        return float(self.reach(tree).sum())

    def to_records(self) -> list[Row]:
        """Return one row per entry; None means any depth, any parent rank, or an unknown value."""
        table = self.p.reshape(-1, self.parent_ranks, self.branching)
        unknown = np.full(table.shape, np.nan)
        low, high = (ends.reshape(table.shape).tolist() for ends in self.interval() or (unknown, unknown))
        counts = (unknown[..., 0] if self.counts is None else self.counts.reshape(table.shape[:2])).tolist()
        return [
            {
                "depth": None if self.position_invariant else depth + 1,
                "parent_rank": parent if self.parent_ranks > 1 else None,
                "rank": rank,
                "p": float(table[depth, parent, rank]),
                "p_low": _none_if_nan(low[depth][parent][rank]),
                "p_high": _none_if_nan(high[depth][parent][rank]),
                "positions": _none_if_nan(counts[depth][parent]),
            }
            for depth, parent, rank in np.ndindex(table.shape)
        ]

    def _repr_html_(self) -> str:
        table = self.p.reshape(-1, self.parent_ranks, self.branching)[:MAX_ROWS, 0, :MAX_ROWS]
        depths = ["any"] if self.position_invariant else [str(depth + 1) for depth in range(len(table))]
        parents = ", below parents of rank 0" if self.parent_ranks > 1 else ""
        heat = heat_html("depth / rank", range(table.shape[1]), dict(zip(depths, table.tolist(), strict=True)))
        return heading_html(f"{self!r}{parents}") + heat

    def interval(self) -> tuple[Float64, Float64] | None:
        """Return both ends of the 95 % interval of every entry; None without standard errors."""
        return None if self.standard_error is None else beta_interval(self.p, self.standard_error, self.branching)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SequenceSums(ArrayRecord):
    """Sums of acceptance over each of J measured sequences.

    The errors of a table's entries are correlated: a sequence with high acceptance at one depth has it at every depth.

    Args:
        reached: float (J, D), positions of each sequence that reached each depth.
        accepted: float (J, D, B), expected acceptances of each rank among these positions.

    Raises InvalidValueError for fewer than two sequences, a depth that no position reached, numbers that are negative or
    not finite, and ranks whose sum exceeds `reached`.

    >>> sums = SequenceSums([[10.0], [30.0]], [[[9.0]], [[15.0]]])
    >>> sums.table().p.tolist(), sums.table().standard_error.round(3).tolist()
    ([[0.6]], [[0.15]])
    """

    reached: Float64 = field(
        metadata=in_file(read=lambda fields, name: fields.nested_numbers(name, depth=2), write=rounded)
    )
    accepted: Float64 = field(
        metadata=in_file(read=lambda fields, name: fields.nested_numbers(name, depth=3), write=rounded)
    )

    def __init__(self, reached: Numbers, accepted: Numbers) -> None:
        shape = _numbers("accepted", accepted).shape
        if len(shape) != 3 or shape[0] < 2 or 0 in shape:
            raise InvalidValueError(
                f"accepted: expected shape (J, D, B) with J at least 2, all others 1. Got {shape}.", field="accepted"
            )
        object.__setattr__(self, "accepted", _numbers("accepted", accepted, shape))
        object.__setattr__(self, "reached", _numbers("reached", reached, shape[:2]))
        self._check()

    def _check(self) -> None:
        with np.errstate(over="ignore"):  # infinite sums raise below
            rows, total = self.accepted.sum(axis=2), self.reached.sum(axis=0)
        too_much = np.argwhere(rows > self.reached * (1 + SUMS_ROUNDING))
        if len(too_much):
            sequence, depth = too_much[0].tolist()
            raise InvalidValueError(
                f"accepted[{sequence}, {depth}]: expected to sum to at most what was reached, "
                f"{self.reached[sequence, depth]:g}. Got {rows[sequence, depth]:g}.",
                field="accepted",
            )
        if not np.all((total > 0) & np.isfinite(total)):
            depth = int(np.argmin((total > 0) & np.isfinite(total)))
            raise InvalidValueError(
                f"reached: expected positions at every depth. Depth {depth + 1} has {total[depth]:g}: leave it out."
            )

    @property
    def prompts(self) -> int:
        """Sequences with a position."""
        return int(np.count_nonzero(self.reached[:, 0]))

    @property
    def positions(self) -> int:
        """Positions of all sequences together."""
        return int(self.reached[:, 0].sum())

    @property
    def p(self) -> Float64:
        """float64 (D, B): acceptance over all sequences, a ratio of sums."""
        p = self.accepted.sum(axis=0) / self.reached.sum(axis=0)[:, None]
        return np.asarray(p / np.maximum(1.0, p.sum(axis=-1, keepdims=True)))  # sums above 1 are rounding errors

    def deviations(self) -> Float64:
        """Return float64 (J, D, B): the contribution of each sequence to the error of `p`.

        With z standard normal, `p + sum over j of z[j] * deviations[j]` has the estimated covariance of `p`: that of a
        ratio estimator with sequences as clusters, because neighbouring positions are correlated (Cochran, 1977, section 6.3).
        """
        sequences = len(self.reached)
        residual = self.accepted - self.p * self.reached[:, :, None]
        return np.asarray(residual / self.reached.sum(axis=0)[:, None] * np.sqrt(sequences / (sequences - 1)))

    def min_error(self) -> Float64:
        """Return float64 (D, B): a lower bound of the error of `p`, for sequences that agree by chance."""
        p, positions = self.p, self.reached.sum(axis=0)[:, None]
        return posterior_error(p, independent_positions(p, positions, len(self.reached)), p.shape[-1])

    def table(self) -> AcceptanceTable:
        error = np.sqrt((self.deviations() ** 2).sum(axis=0))
        counts = self.reached.sum(axis=0)
        return AcceptanceTable(self.p, counts=counts, standard_error=np.maximum(error, self.min_error()))


def _probabilities(p: object) -> Float64:
    table = to_float_array("p", p)
    if table.ndim not in (1, 2, 3) or table.size == 0:
        raise InvalidValueError(
            f"p: expected shape (B,), (D, B) or (D, R, B) with at least one entry. Got {table.shape}."
        )
    bad = np.argwhere(~((table >= 0) & (table <= 1 + ROUNDING)))
    if len(bad):
        index = tuple(bad[0].tolist())
        raise InvalidValueError(f"p{list(index)}: expected a probability from 0 to 1. Got {table[index]}.")
    sums = table.sum(axis=-1, keepdims=True)
    if sums.max() > 1 + ROUNDING:
        row = ", ".join(map(str, np.argwhere(sums == sums.max())[0, : max(1, table.ndim - 1)]))
        raise InvalidValueError(
            "p: expected each row to sum to at most 1 (siblings exclude each other). "
            f"Row {row} sums to {sums.max():.6g}."
        )
    # Sums within half the tolerance, such as ten-digit rounding causes, stay: a saved table loads unchanged.
    table = np.minimum(table / np.where(sums > 1 + ROUNDING / 2, sums, 1.0), 1.0)
    table.flags.writeable = False
    return table


def _none_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else value


def _like(name: str, values: object, shape: tuple[int, ...]) -> Float64 | None:
    return None if values is None else _numbers(name, values, shape)


def _numbers(name: str, values: object, shape: tuple[int, ...] | None = None) -> Float64:
    in_shape = "" if shape is None else f" in shape {shape}"
    array = to_float_array(name, values, in_shape)
    if shape not in (None, array.shape) or not np.all(array >= 0) or not np.all(np.isfinite(array)):
        raise InvalidValueError(
            f"{name}: expected finite numbers of at least 0{in_shape}. Got {array.shape}.", field=name
        )
    array.flags.writeable = False
    return array
