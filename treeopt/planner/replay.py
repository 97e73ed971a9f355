"""What a draft record says of every dynamic tree: the engine's own selection rule, replayed without a model.

A candidate's score is the product of the draft's probabilities along its path.  Below each root the beams are grown as
the rule grows them, and one number per depth is kept: how many draft nodes have to be picked from the pool until the
node that the text went through is among them.  Scores fall along every path, so a step with n draft nodes accepts as
many levels as there are such numbers up to n.  A text is then decoded by jumping from root to root.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import Float32, Float64, Int64
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.draft_record import DraftRecord
from treeopt.trees.dynamic_tree import DynamicTree

NEVER = np.iinfo(np.int64).max
"""Draft nodes that a node needs which the rule never drafts."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedTexts:
    """The steps of every text, for each of some numbers of nodes."""

    tokens: Int64
    """int64 (J, sizes): tokens committed, of each text."""
    steps: Int64
    """int64 (J, sizes)."""

    @property
    def tokens_per_step(self) -> Float64:
        """float64 (sizes,): over all texts together."""
        return np.asarray(self.tokens.sum(axis=0) / self.steps.sum(axis=0))


@dataclass(frozen=True, slots=True)
class Levels:
    """The candidates of one depth below every root, in the order in which they are drafted."""

    scores: Float32
    """float32 (R, candidates): sums of log-probabilities along the paths."""
    taken: Int64
    """int64 (R,): the candidate that the text went through; -1 for none."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A draft record, made ready to be asked about dynamic trees."""

    record: DraftRecord

    def texts(self, top_k: int, depth: int, nodes: Int64) -> ReplayedTexts:
        """Return the steps of all texts with trees of one top-k and depth, for each number of nodes (sizes,).

        Raises InfeasibleError for a top-k or depth beyond the record's.
        """
        needed = self._needed(top_k, depth)
        accepted = (needed[:, :, None] < nodes).sum(axis=0)  # the root is one of the nodes
        record, sizes = self.record, len(nodes)
        root = np.repeat(record.text_starts[:-1, None], sizes, axis=1)
        ends = record.text_starts[1:, None]
        tokens, steps = np.zeros((2, record.texts, sizes), np.int64)
        column = np.arange(sizes)
        while (running := root < ends).any():
            committed = 1 + accepted[np.minimum(root, record.roots - 1), column]
            root += np.where(running, committed, 0)
            tokens += np.where(running, committed, 0)
            steps += running
        return ReplayedTexts(tokens, steps)

    def tokens_per_step(self, tree: DynamicTree) -> float:
        """Return the tokens that a step with a dynamic tree commits on average, the root's own included."""
        return float(self.texts(tree.top_k, tree.depth, np.array([tree.nodes])).tokens_per_step[0])

    def _needed(self, top_k: int, depth: int) -> Int64:
        """Return int64 (depth, R): draft nodes to pick until the text's node of each depth is among them."""
        record = self.record
        if not 1 <= top_k <= record.top_k or not 1 <= depth <= record.depth:
            raise InfeasibleError(
                f"top_k {top_k}, depth {depth}: expected at most top-k {record.top_k} and depth {record.depth}, which "
                "were recorded. Record more, or ask for less."
            )
        levels = self._levels(top_k)[:depth]
        return np.stack([_picked_before(levels, level) for level in range(depth)])

    def _levels(self, top_k: int) -> list[Levels]:
        """Return the candidates of every recorded depth, beams grown with one top-k."""
        if top_k not in self._grown:
            self._grown.clear()  # one top-k at a time: the scores of all would fill the memory
            self._grown[top_k] = _grow(self.record, self._child, top_k)
        return self._grown[top_k]

    @cached_property
    def _grown(self) -> dict[int, list[Levels]]:
        return {}

    @cached_property
    def _child(self) -> Int64:
        """int64 (E, K): the expanded node that each child is; -1 for those that were not expanded."""
        record = self.record
        child = np.full((len(record.parent), record.top_k), -1, np.int64)
        first = np.repeat(record.node_starts[:-1], np.diff(record.node_starts))
        below = np.flatnonzero(record.parent >= 0)
        child[first[below] + record.parent[below], record.rank[below]] = below
        return child


def _grow(record: DraftRecord, child: Int64, top_k: int) -> list[Levels]:
    roots = np.arange(record.roots)
    beams, sums = record.node_starts[:-1, None], np.zeros((record.roots, 1), np.float32)
    through = np.zeros(record.roots, np.int64)  # the beam that the text went through; -1 for none
    levels = []
    for depth in range(record.depth):
        if np.any(beams < 0):
            raise InvalidValueError(f"record: a node that top-k {top_k} drafts from was not expanded. Record it anew.")
        scores = (sums[:, :, None] + record.log_probs[beams, :top_k]).reshape(record.roots, -1)
        rank = record.outcome[:, depth]
        drafted = (through >= 0) & (rank >= 0) & (rank < top_k)
        taken = np.where(drafted, through * top_k + rank, -1)
        levels.append(Levels(scores, taken))
        # stable: of equal scores the one drafted first, as an engine's sort over the same order gives
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        beams = child[beams, :top_k].reshape(record.roots, -1)[roots[:, None], best]
        sums = scores[roots[:, None], best]
        match = (best == taken[:, None]) & drafted[:, None]
        through = np.where(match.any(axis=1), match.argmax(axis=1), -1)
    return levels


def _picked_before(levels: list[Levels], level: int) -> Int64:
    """Return (R,): the place, from 1, of the text's node of one level in the pool's order; NEVER where it is not there.

    The pool is sorted by score, and among equal scores in the order of drafting, so that no node precedes its parent.
    """
    taken = levels[level].taken
    own = levels[level].scores[np.arange(len(taken)), np.maximum(taken, 0)][:, None]
    before = np.ones(len(taken), np.int64)
    for other, each in enumerate(levels):
        before += (each.scores > own).sum(axis=1)
        if other < level:
            before += (each.scores == own).sum(axis=1)
    earlier = np.arange(levels[level].scores.shape[1]) < taken[:, None]
    before += ((levels[level].scores == own) & earlier).sum(axis=1)
    return np.where(taken >= 0, before, NEVER)
