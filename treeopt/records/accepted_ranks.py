"""The accepted rank at every position of some texts, along which any static tree can be decoded again without a model.

    tokens of a step = tokens that the replayed steps committed / steps

A table of acceptance leaves two things out.  Steps begin where others ended, mostly at a miss, and there the text is
harder than elsewhere; and a path that went well goes on well.  A replay has both, because it walks the measured text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from treeopt.arguments import items, whole_numbers
from treeopt.array_record import ArrayRecord
from treeopt.arrays import Int64
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.acceptance_counts import REJECTED, AcceptanceCounts, conditional_counts
from treeopt.trees.token_tree import TokenTree


class Replayed(NamedTuple):
    """Decoding the texts again with one tree, text by text."""

    tokens: Int64
    """int64 (J,): tokens that whole steps committed."""
    steps: Int64
    """int64 (J,)."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AcceptedRanks(ArrayRecord):
    """The rank that the rule accepted at every position of J texts, `REJECTED` where it accepted no child.

    Whether a child is accepted does not depend on how many come after it, so that the ranks of many children tell what
    fewer would have come to.

    Raises InvalidValueError without texts, and for ranks that are no ranks.
    """

    ranks: tuple[Int64, ...]
    _replays: dict[bytes, Replayed] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __init__(self, ranks: Sequence[Sequence[int] | Int64]) -> None:
        arrays = tuple(whole_numbers("ranks", each) for each in items("ranks", ranks))
        if not arrays or any(each.ndim != 1 or each.min(initial=REJECTED) < REJECTED for each in arrays):
            raise InvalidValueError(f"ranks: expected a list of ranks of at least {REJECTED} for every text.")
        for each in arrays:
            each.flags.writeable = False
        object.__setattr__(self, "ranks", arrays)
        object.__setattr__(self, "_replays", {})

    def replay(self, tree: TokenTree) -> Replayed:
        """Return what steps with a tree come to, each text begun with a step and ended before a step may be cut off."""
        key = tree.parents.tobytes()
        if key not in self._replays:
            each_text = zip(self.step_tokens(tree), self.ranks, strict=True)
            walked = [walked_steps(tokens, len(ranks) - tree.max_depth) for tokens, ranks in each_text]
            self._replays[key] = Replayed(*np.array(walked, np.int64).T)
        return self._replays[key]

    def step_tokens(self, tree: TokenTree) -> tuple[Int64, ...]:
        """Return (positions,) for every text: the tokens that a step beginning at each position commits."""
        joined = np.concatenate([part for each in self.ranks for part in (each, [REJECTED])])  # where paths end
        tokens = step_tokens(tree, joined, by_depth=False)
        first = np.cumsum([0] + [1 + len(each) for each in self.ranks])
        return tuple(tokens[at : at + len(each)] for at, each in zip(first, self.ranks, strict=False))

    @property
    def positions(self) -> int:
        """Of all texts together."""
        return sum(len(each) for each in self.ranks)

    def first(self, positions: int) -> "AcceptedRanks":
        """Return those of so many positions of every text, of all where it has fewer."""
        return AcceptedRanks([each[:positions] for each in self.ranks])

    def counts(self, depths: int, branching: int) -> list[AcceptanceCounts]:
        """Return the sums of every text, each position taken as a root once, in shapes (D,) and (D, B)."""
        hits = ((each[:, None] == np.arange(branching)).astype(np.float64) for each in self.ranks)
        return [conditional_counts(hit, ranks, depths) for hit, ranks in zip(hits, self.ranks, strict=True)]

    def table(self, depths: int, branching: int) -> AcceptanceTable:
        """Return the table of the same ranks, every position taken as a root once; what was never reached is 0."""
        counts = self.counts(depths, branching)
        reached = sum((each.reached for each in counts), np.zeros(depths))
        accepted = sum((each.accepted for each in counts), np.zeros((depths, branching)))
        return AcceptanceTable(accepted / np.maximum(reached, 1.0)[:, None])


def step_tokens(tree: TokenTree, ranks: Int64, *, by_depth: bool) -> Int64:
    """Return (positions,): tokens that a step beginning at each position commits, the one after its path included.

    Args:
        tree: of at most as many levels as ranks have depths.
        ranks: int64 (positions,), or (positions, D) where they are told by depth below each position.
        by_depth: which of the two.
    """
    counts, first_child = tree.child_counts, tree.first_child
    node = np.zeros(len(ranks), np.int64)
    tokens = np.ones(len(ranks), np.int64)
    going = np.arange(len(ranks))
    for depth in range(min(tree.max_depth, ranks.shape[1]) if by_depth else tree.max_depth):
        going = going[going + depth < len(ranks)]
        rank = ranks[going, depth] if by_depth else ranks[going + depth]
        accepted = (rank != REJECTED) & (rank < counts[node[going]])
        going, rank = going[accepted], rank[accepted]
        node[going] = first_child[node[going]] + rank
        tokens[going] += 1
    return tokens


def walked_steps(step_tokens: Int64, end: int) -> tuple[int, int]:
    """Return the tokens and the number of steps, one after the other, that begin before `end`."""
    lengths: list[int] = step_tokens.tolist()
    position = steps = 0
    while position < end:
        position += lengths[position]
        steps += 1
    return position, steps
