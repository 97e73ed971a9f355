"""The accepted rank at every position of measured sequences, along which any static tree can be replayed without a model.

    tokens per step = tokens that the replayed steps committed / steps

A replay has two effects that an acceptance table averages out: a step starts where another ended, mostly at a rejection,
where acceptance is lower; and acceptance is correlated along a path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from treeopt.arguments import check_list, to_int_array
from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64, Int64
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.acceptance_counts import REJECTED, AcceptanceCounts, count_acceptance
from treeopt.trees.token_tree import TokenTree


class ReplayResult(NamedTuple):
    """The replay of J sequences with one tree; of dynamic trees, for each of several numbers of nodes."""

    tokens: Int64
    """int64 (J,) or (J, sizes): tokens that complete steps committed."""
    steps: Int64
    """int64, of the same shape."""

    @property
    def tokens_per_step(self) -> Float64:
        """float64 () or (sizes,): over all sequences together."""
        return np.asarray(self.tokens.sum(axis=0) / self.steps.sum(axis=0))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReplayedRanks(ArrayRecord):
    """Ranks of J sequences, along which any static tree can be replayed."""

    ranks: tuple[Int64, ...]
    _replays: dict[bytes, ReplayResult] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __init__(self, ranks: Sequence[Int64]) -> None:
        for sequence in ranks:
            sequence.flags.writeable = False
        object.__setattr__(self, "ranks", tuple(ranks))
        object.__setattr__(self, "_replays", {})

    def step_tokens(self, tree: TokenTree) -> tuple[Int64, ...]:
        """Return (positions,) for every sequence: the tokens that a step from each position commits."""
        raise NotImplementedError

    def replay(self, tree: TokenTree) -> ReplayResult:
        """Replay the tree from each sequence's start, up to the last step that the sequence's end cannot truncate."""
        key = tree.parents.tobytes()
        if key not in self._replays:
            walked = [(tokens, step_starts(tokens, tree.max_depth)) for tokens in self.step_tokens(tree)]
            totals = [(tokens[starts].sum(), len(starts)) for tokens, starts in walked]
            self._replays[key] = ReplayResult(*np.array(totals, np.int64).T)
        return self._replays[key]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AcceptedRanks(ReplayedRanks):
    """The rank that the rule accepted at every position of J sequences, or `REJECTED`.

    Whether a child is accepted does not depend on later siblings, so ranks measured with many children also predict fewer.

    Raises InvalidValueError without sequences, and for ranks below `REJECTED`.
    """

    def __init__(self, ranks: Sequence[Sequence[int] | Int64]) -> None:
        arrays = tuple(to_int_array("ranks", row) for row in check_list("ranks", ranks))
        if not arrays or any(row.ndim != 1 or row.min(initial=REJECTED) < REJECTED for row in arrays):
            raise InvalidValueError(f"ranks: expected a list of ranks of at least {REJECTED} for every sequence.")
        ReplayedRanks.__init__(self, arrays)

    def step_tokens(self, tree: TokenTree) -> tuple[Int64, ...]:
        packed = np.concatenate([part for ranks in self.ranks for part in (ranks, [REJECTED])])  # where paths end
        tokens = _count_step_tokens(tree, packed)
        starts = np.cumsum([0] + [1 + len(ranks) for ranks in self.ranks])
        return tuple(tokens[start : start + len(ranks)] for start, ranks in zip(starts, self.ranks, strict=False))

    @property
    def positions(self) -> int:
        """Positions of all sequences together."""
        return sum(len(ranks) for ranks in self.ranks)

    def first(self, positions: int) -> "AcceptedRanks":
        """Return the ranks of at most the first `positions` positions of every sequence."""
        return AcceptedRanks([ranks[:positions] for ranks in self.ranks])

    def counts(self, depths: int, branching: int) -> list[AcceptanceCounts]:
        """Return the counts of every sequence, of shapes (D,) and (D, B), with each position as a root once."""
        hits = ((ranks[:, None] == np.arange(branching)).astype(np.float64) for ranks in self.ranks)
        return [count_acceptance(hit, ranks, depths) for hit, ranks in zip(hits, self.ranks, strict=True)]

    def table(self, depths: int, branching: int) -> AcceptanceTable:
        """Return the table of these ranks, with each position as a root once; rows never reached are 0."""
        counts = self.counts(depths, branching)
        reached = sum((sequence.reached for sequence in counts), np.zeros(depths))
        accepted = sum((sequence.accepted for sequence in counts), np.zeros((depths, branching)))
        return AcceptanceTable(accepted / np.maximum(reached, 1.0)[:, None])


Ranks = Sequence[Sequence[Sequence[int]]] | Sequence[Int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RootRanks(ReplayedRanks):
    """The rank of the sequence's next token at each depth below every position of J sequences.

    For drafters whose children depend on the root: a head predicts the third token after the root from the root alone, so
    a position has other children in every step that reaches it. Along these ranks any static tree can be replayed. With
    tokens as drafted, not sampled, the replay is exact.

    `ranks` are int64 (roots, D) of each sequence, padded with `REJECTED`; D is the longest row of all sequences.

    Args:
        ranks: for each sequence one row per root, which ends at the first `REJECTED`. A rank counts among the children
            of the previous depth's token.

    Raises InvalidValueError without sequences and for ranks below `REJECTED`.
    """

    def __init__(self, ranks: Ranks) -> None:
        sequences = [[[int(rank) for rank in row] for row in sequence] for sequence in ranks]
        if not sequences or any(rank < REJECTED for sequence in sequences for row in sequence for rank in row):
            raise InvalidValueError("ranks: expected rows of ranks of at least 0 for every sequence.")
        trimmed = [[_trim(row) for row in sequence] for sequence in sequences]
        depths = max((len(row) for sequence in trimmed for row in sequence), default=0)
        ReplayedRanks.__init__(self, [_pad(sequence, depths) for sequence in trimmed])

    @property
    def rows(self) -> list[list[list[int]]]:
        """The ranks of every sequence and root before the first `REJECTED`, as in files."""
        return [[_trim(row) for row in sequence.tolist()] for sequence in self.ranks]

    def step_tokens(self, tree: TokenTree) -> tuple[Int64, ...]:
        return tuple(_count_step_tokens(tree, ranks) for ranks in self.ranks)

    def table(self, depths: int, branching: int, *, parent_ranks: int = 1) -> AcceptanceTable:
        """Return the table of these ranks, with each position as a root once; rows never reached are 0.

        Args:
            depths: D.
            branching: B.
            parent_ranks: R; with more than 1, rows depend on the parent's rank.
        """
        reached, accepted = np.zeros((depths, parent_ranks)), np.zeros((depths, parent_ranks, branching))
        for sequence in self.ranks:
            active, parent = np.ones(len(sequence), np.bool_), np.zeros(len(sequence), np.int64)
            for depth in range(min(depths, *sequence.shape)):
                active, parent = active[: len(sequence) - depth], parent[: len(sequence) - depth]  # then it ends
                rank = sequence[: len(active), depth]
                for row in range(parent_ranks):
                    below = active & (np.minimum(parent, parent_ranks - 1) == row)
                    reached[depth, row] += below.sum()
                    accepted[depth, row] += (rank[below, None] == np.arange(branching)).sum(axis=0)
                active, parent = active & (rank != REJECTED) & (rank < branching), rank
        p = accepted / np.maximum(reached, 1.0)[..., None]
        if parent_ranks == 1:
            p, reached = p[:, 0], reached[:, 0]
        return AcceptanceTable(p, counts=reached)


def read_root_ranks(fields: Fields, name: str) -> RootRanks:
    """Read a list of `{roots: [[0, 1], [], …]}`, one item per sequence; raises FormatError."""
    sequences = []
    for sequence in fields.mappings(name):
        sequences.append(sequence.integer_rows("roots"))
        sequence.end()
    return fields.build(name, RootRanks, sequences)


def serialize_root_ranks(ranks: RootRanks) -> list[dict[str, Any]]:
    """Return the list that `read_root_ranks` reads."""
    return [{"roots": rows} for rows in ranks.rows]


def _count_step_tokens(tree: TokenTree, ranks: Int64) -> Int64:
    """Return (positions,): tokens that a step from each position commits, the bonus token included.

    `ranks` is int64 (positions,), or (positions, D) by depth below each position.
    """
    counts, first_child = tree.child_counts, tree.first_child
    node = np.zeros(len(ranks), np.int64)
    tokens = np.ones(len(ranks), np.int64)
    active = np.arange(len(ranks))
    by_depth = ranks.ndim == 2
    for depth in range(min(tree.max_depth, ranks.shape[1]) if by_depth else tree.max_depth):
        rank = ranks[active, depth] if by_depth else ranks[active + depth]
        accepted = (rank != REJECTED) & (rank < counts[node[active]])
        active, rank = active[accepted], rank[accepted]
        node[active] = first_child[node[active]] + rank
        tokens[active] += 1
    return tokens


def step_starts(step_tokens: Int64, max_depth: int) -> Int64:
    """Return the positions of one sequence at which the steps of a replay start, up to the last that its end cannot truncate.

    Args:
        step_tokens: (positions,), of steps with a tree.
        max_depth: of the tree.
    """
    starts, position, tokens = list[int](), 0, step_tokens.tolist()
    while position < len(tokens) - max_depth:
        starts.append(position)
        position += tokens[position]
    return np.array(starts, np.int64)


def _pad(rows: list[list[int]], depths: int) -> Int64:
    array = np.full((len(rows), depths), REJECTED, np.int64)
    for root, row in enumerate(rows):
        array[root, : len(row)] = row
    return array


def _trim(row: list[int]) -> list[int]:
    return row[: row.index(REJECTED)] if REJECTED in row else row
