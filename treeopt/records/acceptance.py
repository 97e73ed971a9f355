"""The acceptance table: how often the k-th child at depth d is the accepted one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treeopt.arguments import instance, numbers, whole
from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Floats
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.record_form import rounded
from treeopt.records.proportions import beta_interval, independent_positions, posterior_error
from treeopt.tabular import MOST_ROWS, Row, Tabular, heading_html, heat_html
from treeopt.trees.token_tree import TokenTree

Numbers = Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]] | Floats

ROUNDING = 1e-9
"""Rows may exceed 1 by this much, the rounding of a sum of written probabilities."""
SUMS_ROUNDING = 2e-5
"""Relative error that ratios of sums written with six digits can have: twice 5e-6, and as much again to be safe."""
NORMAL_95 = 1.959964
"""Half-width of a 95 % interval in standard errors."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AcceptanceTable(ArrayRecord, Tabular):
    """P[d-1, k]: probability that the child of rank k at depth d is accepted, given that its parent was reached.

    Where it also depends on the parent's rank j it is P[d-1, j, k]: parents of rank R - 1 and beyond share the last
    row.  The root counts as rank 0, so at depth 1 only row 0 is ever asked for.

    Args:
        p: float (B,), the same at every depth, (D, B), one row per depth, or (D, R, B), one row per depth and rank of
            the parent; rows sum to at most 1.
        counts: float, the shape of p without its last axis, (1,) for one row, or None: positions that reached each
            row when the table was measured.
        standard_error: float, the shape of p, or None: of each measured probability, as `posterior_error` has it.

    Raises InvalidValueError naming the first entry that is not a probability, or the row that sums to more than 1.

    >>> AcceptanceTable([0.7, 0.1]).expected_tokens(TokenTree([-1, 0, 0, 1]))
    2.29
    """

    p: Float64
    counts: Float64 | None
    standard_error: Float64 | None

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

    @classmethod
    def from_fields(cls, fields: Fields) -> "AcceptanceTable":
        """Return the table of a file's `p`, with `counts` and `standard_error` where it has them; raises FormatError."""
        p = fields.nested_numbers("p")
        known = {name: fields.nested_numbers(name) for name in ("counts", "standard_error") if name in fields}
        return fields.build("p", cls, p, **known)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that it stands as; probabilities need more digits, to keep sums of 1 at 1."""
        known = {"counts": self.counts, "standard_error": self.standard_error}
        rest = {name: rounded(values) for name, values in known.items() if values is not None}
        return {"p": rounded(self.p, digits=10)} | rest

    @property
    def position_invariant(self) -> bool:
        """Whether one row holds for every depth."""
        return self.p.ndim == 1

    @property
    def branching(self) -> int:
        """B: children per node that were measured."""
        return int(self.p.shape[-1])

    @property
    def parent_ranks(self) -> int:
        """R: ranks of the parent that have rows of their own; 1 when its rank does not matter."""
        return int(self.p.shape[1]) if self.p.ndim == 3 else 1

    @property
    def max_depth(self) -> int | None:
        """D: depths that were measured; None when one row holds for all."""
        return None if self.position_invariant else len(self.p)

    def rows(self, depth: int) -> Float64:
        """Return the rows of depth 1 … `depth` as float64 (depth, R, B), read-only; R is `parent_ranks`.

        Raises InfeasibleError when fewer depths were measured.
        """
        depth = whole("depth", depth, 0)
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

        A rank that was never measured counts as never accepted.
        Raises InfeasibleError when the tree is deeper than the table.
        """
        instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
        rows = np.zeros((tree.max_depth + 1, self.parent_ranks, max(self.branching, int(tree.rank.max()) + 1)))
        rows[1:, :, : self.branching] = self.rows(tree.max_depth)
        parent_rank = np.minimum(tree.rank[tree.parents], self.parent_ranks - 1)  # of the root: of any node, not used
        accepted = rows[tree.depth, parent_rank, tree.rank]
        reach = np.ones(tree.nodes)
        for level in tree.levels[1:]:
            reach[level] = reach[tree.parents[level]] * accepted[level]
        return reach

    def expected_tokens(self, tree: TokenTree) -> float:
        """Return F(T), the tokens that a step yields on average (Chen et al., 2024, Proposition 3.4)."""
        return float(self.reach(tree).sum())

    def to_records(self) -> list[Row]:
        """Return a row for every entry; None stands for any depth, for any rank of the parent, and for what is not known."""
        deep = self.p.reshape(-1, self.parent_ranks, self.branching)
        unknown = np.full(deep.shape, np.nan)
        low, high = (each.reshape(deep.shape).tolist() for each in self.interval() or (unknown, unknown))
        counts = (unknown[..., 0] if self.counts is None else self.counts.reshape(deep.shape[:2])).tolist()
        return [
            {
                "depth": None if self.position_invariant else depth + 1,
                "parent_rank": parent if self.parent_ranks > 1 else None,
                "rank": rank,
                "p": float(deep[depth, parent, rank]),
                "p_low": _known(low[depth][parent][rank]),
                "p_high": _known(high[depth][parent][rank]),
                "positions": _known(counts[depth][parent]),
            }
            for depth, parent, rank in np.ndindex(deep.shape)
        ]

    def _repr_html_(self) -> str:
        deep = self.p.reshape(-1, self.parent_ranks, self.branching)[:MOST_ROWS, 0, :MOST_ROWS]
        names = ["any"] if self.position_invariant else [str(depth + 1) for depth in range(len(deep))]
        below = ", below parents of rank 0" if self.parent_ranks > 1 else ""
        heat = heat_html("depth / rank", range(deep.shape[1]), dict(zip(names, deep.tolist(), strict=True)))
        return heading_html(f"{self!r}{below}") + heat

    def interval(self) -> tuple[Float64, Float64] | None:
        """Return the ends of the 95 % interval of every entry, or None when no error was measured."""
        return None if self.standard_error is None else beta_interval(self.p, self.standard_error, self.branching)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextSums(ArrayRecord):
    """Sums of acceptance over each of J measured texts, from which errors keep their correlation between depths.

    A text that the draft follows well it follows well at every depth: the entries of a table do not err independently.

    Args:
        reached: float (J, D), positions of each text that reached each depth.
        accepted: float (J, D, B), how much of that each rank accepted.

    Raises InvalidValueError for fewer than two texts, a depth that no position reached, numbers that are negative or
    not finite, and ranks that together accept more than was reached.

    >>> sums = TextSums([[10.0], [30.0]], [[[9.0]], [[15.0]]])
    >>> sums.table().p.tolist(), sums.table().standard_error.round(3).tolist()
    ([[0.6]], [[0.15]])
    """

    reached: Float64
    accepted: Float64

    def __init__(self, reached: Numbers, accepted: Numbers) -> None:
        shape = _numbers("accepted", accepted).shape
        if len(shape) != 3 or shape[0] < 2 or 0 in shape:
            raise InvalidValueError(f"accepted: expected shape (J, D, B) with J at least 2, all others 1. Got {shape}.")
        object.__setattr__(self, "accepted", _numbers("accepted", accepted, shape))
        object.__setattr__(self, "reached", _numbers("reached", reached, shape[:2]))
        self._check()

    @classmethod
    def from_fields(cls, fields: Fields) -> "TextSums":
        """Return the sums of a file's `reached` and `accepted`; raises FormatError."""
        return fields.build("accepted", cls, fields.rows("reached"), fields.lists_of_rows("accepted"))

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that they stand as."""
        return {"reached": rounded(self.reached), "accepted": rounded(self.accepted)}

    def _check(self) -> None:
        with np.errstate(over="ignore"):  # infinite sums are refused below
            rows, total = self.accepted.sum(axis=2), self.reached.sum(axis=0)
        too_much = np.argwhere(rows > self.reached * (1 + SUMS_ROUNDING))
        if len(too_much):
            text, depth = too_much[0].tolist()
            raise InvalidValueError(
                f"accepted[{text}, {depth}]: expected to sum to at most what was reached, "
                f"{self.reached[text, depth]:g}. Got {rows[text, depth]:g}."
            )
        if not np.all((total > 0) & np.isfinite(total)):
            depth = int(np.argmin((total > 0) & np.isfinite(total)))
            raise InvalidValueError(
                f"reached: expected positions at every depth. Depth {depth + 1} has {total[depth]:g}: leave it out."
            )

    @property
    def p(self) -> Float64:
        """float64 (D, B): acceptance over all texts together, a ratio of sums."""
        p = self.accepted.sum(axis=0) / self.reached.sum(axis=0)[:, None]
        return np.asarray(p / np.maximum(1.0, p.sum(axis=-1, keepdims=True)))  # above 1 is rounding

    def deviations(self) -> Float64:
        """Return float64 (J, D, B): what each text contributes to the error of `p`.

        `p + sum over j of z[j] * deviations[j]`, z standard normal, has the estimated covariance of `p`: that of a
        ratio estimator with texts as clusters, because neighbouring positions of one text are alike (Cochran, 1977,
        section 6.3).
        """
        texts = len(self.reached)
        residual = self.accepted - self.p * self.reached[:, :, None]
        return np.asarray(residual / self.reached.sum(axis=0)[:, None] * np.sqrt(texts / (texts - 1)))

    def least_error(self) -> Float64:
        """Return float64 (D, B): the error of `p` if positions were as independent as can be.

        Sequences that all agree deviate from nothing, yet do not make `p` certain.
        """
        p, positions = self.p, self.reached.sum(axis=0)[:, None]
        return posterior_error(p, independent_positions(p, positions, len(self.reached)), p.shape[-1])

    def table(self) -> AcceptanceTable:
        """Return the table of all texts together, with its counts and standard errors."""
        error = np.sqrt((self.deviations() ** 2).sum(axis=0))
        counts = self.reached.sum(axis=0)
        return AcceptanceTable(self.p, counts=counts, standard_error=np.maximum(error, self.least_error()))


def _probabilities(p: object) -> Float64:
    table = numbers("p", p)
    if table.ndim not in (1, 2, 3) or table.size == 0:
        raise InvalidValueError(
            f"p: expected shape (B,), (D, B) or (D, R, B) with at least one entry. Got {table.shape}."
        )
    bad = np.argwhere(~((table >= 0) & (table <= 1 + ROUNDING)))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InvalidValueError(f"p{list(where)}: expected a probability from 0 to 1. Got {table[where]}.")
    sums = table.sum(axis=-1, keepdims=True)
    if sums.max() > 1 + ROUNDING:
        row = ", ".join(map(str, np.argwhere(sums == sums.max())[0, : max(1, table.ndim - 1)]))
        raise InvalidValueError(
            "p: expected each row to sum to at most 1 (siblings exclude each other). "
            f"Row {row} sums to {sums.max():.6g}."
        )
    # half the rounding is left alone, as ten written digits make it: a file is loaded as it is, and loads once saved
    table = np.minimum(table / np.where(sums > 1 + ROUNDING / 2, sums, 1.0), 1.0)
    table.flags.writeable = False
    return table


def _known(value: float) -> float | None:
    """Return a number, None where it is not known."""
    return None if np.isnan(value) else value


def _like(name: str, values: object, shape: tuple[int, ...]) -> Float64 | None:
    return None if values is None else _numbers(name, values, shape)


def _numbers(name: str, values: object, shape: tuple[int, ...] | None = None) -> Float64:
    """Return a read-only copy of finite numbers of at least 0, in a shape if one is given."""
    where = "" if shape is None else f" in shape {shape}"
    array = numbers(name, values, where)
    if shape not in (None, array.shape) or not np.all(array >= 0) or not np.all(np.isfinite(array)):
        raise InvalidValueError(f"{name}: expected finite numbers of at least 0{where}. Got {array.shape}.")
    array.flags.writeable = False
    return array
