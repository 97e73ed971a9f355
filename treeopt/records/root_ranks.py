"""The accepted ranks below every position of some texts, for drafters whose child at a place hangs on where the step began.

A head predicts the token three places behind the root from the root alone: the same place of a text has another child
of rank 0 in every step that comes by.  So each position is a root once, with a rank for each depth below it, and along
these any static tree can be decoded again without a model.  Where tokens are given, not sampled, that is no estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Int64
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.accepted_ranks import Replayed, step_tokens, walked_steps
from treeopt.trees.token_tree import TokenTree

Ranks = Sequence[Sequence[Sequence[int]]] | Sequence[Int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RootRanks(ArrayRecord):
    """The rank, at each depth below every root of J texts, of the token that the text went on with.

    It stands among the children of the node that the text went through before; behind the first depth at which it is
    none of them nothing is known.

    Args:
        ranks: of each text a row for each root, which ends at the first `REJECTED`.

    Raises InvalidValueError without texts and for ranks below `REJECTED`.
    """

    ranks: tuple[Int64, ...]
    """int64 (roots, D) of each text, `REJECTED` after a row's end; D is the length of the longest row of all texts."""
    _replays: dict[bytes, Replayed] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __init__(self, ranks: Ranks) -> None:
        texts = [[[int(rank) for rank in row] for row in text] for text in ranks]
        if not texts or any(rank < REJECTED for text in texts for row in text for rank in row):
            raise InvalidValueError("ranks: expected rows of ranks of at least 0 for every text.")
        rows = [[_accepted(row) for row in text] for text in texts]
        depths = max((len(row) for text in rows for row in text), default=0)
        object.__setattr__(self, "ranks", tuple(_array(text, depths) for text in rows))
        object.__setattr__(self, "_replays", {})

    @property
    def rows(self) -> list[list[list[int]]]:
        """The ranks of every text and root up to where the text left the drafted children, as files hold them."""
        return [[_accepted(row) for row in text.tolist()] for text in self.ranks]

    def replay(self, tree: TokenTree) -> Replayed:
        """Return what steps with a tree come to, each text begun with a step and ended before a step may be cut off."""
        key = tree.parents.tobytes()
        if key not in self._replays:
            walked = [
                walked_steps(step_tokens(tree, each, by_depth=True), len(each) - tree.max_depth) for each in self.ranks
            ]
            self._replays[key] = Replayed(*np.array(walked, np.int64).T)
        return self._replays[key]

    def table(self, depths: int, branching: int) -> AcceptanceTable:
        """Return the table of the same ranks, every position taken as a root once; what was never reached is 0."""
        reached, accepted = np.zeros(depths), np.zeros((depths, branching))
        for text in self.ranks:
            going = np.ones(len(text), np.bool_)
            for depth in range(min(depths, *text.shape)):
                going = going[: len(text) - depth]  # below the last roots the text ends
                rank = text[: len(going), depth]
                reached[depth] += going.sum()
                accepted[depth] += (rank[going, None] == np.arange(branching)).sum(axis=0)
                going = going & (rank != REJECTED) & (rank < branching)
        return AcceptanceTable(accepted / np.maximum(reached, 1.0)[:, None])


def read_root_ranks(fields: Fields, name: str) -> RootRanks:
    """Return the ranks that a list of `{roots: [[0, 1], [], …]}` holds, one item a text; raises FormatError."""
    texts = []
    for text in fields.mappings(name):
        texts.append(text.integer_rows("roots"))
        text.end()
    return fields.build(name, RootRanks, texts)


def written_root_ranks(ranks: RootRanks) -> list[dict[str, Any]]:
    """Return the list that `read_root_ranks` reads."""
    return [{"roots": rows} for rows in ranks.rows]


def _array(rows: list[list[int]], depths: int) -> Int64:
    array = np.full((len(rows), depths), REJECTED, np.int64)
    for place, row in enumerate(rows):
        array[place, : len(row)] = row
    array.flags.writeable = False
    return array


def _accepted(row: list[int]) -> list[int]:
    """Return the ranks before the first depth at which no child is the text's token."""
    return row[: row.index(REJECTED)] if REJECTED in row else row
