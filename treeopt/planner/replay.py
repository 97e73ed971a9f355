"""Replay of a draft record with any dynamic tree: an engine's own selection rule, without a model.

A candidate's score is the product of the draft's probabilities along its path.  Below each root the beams are grown by
the engine's rule.  For each depth one number is needed: how many draft nodes have to be picked from the pool until the
node on the target's path is among them.  Scores decrease along every path, so a step with n draft nodes accepts as many
levels as there are such numbers up to n.  A sequence is then decoded by jumping from root to root.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treeopt.arrays import Float32, Int64
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.accepted_ranks import ReplayResult
from treeopt.records.draft_record import DraftRecord

NEVER = np.iinfo(np.int64).max
"""In place of a number of draft nodes, for a node that is not drafted."""


@dataclass(frozen=True, slots=True)
class LevelCandidates:
    """The candidates of one depth below every root, in drafting order."""

    scores: Float32
    """float32 (R, candidates): sums of log-probabilities along the paths."""
    accepted: Int64
    """int64 (R,): the candidate on the target's path; -1 for none."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A draft record, prepared for replay."""

    record: DraftRecord

    def count_steps(self, top_k: int, depth: int, nodes: Int64) -> ReplayResult:
        """Return the steps of all sequences with trees of one top-k and depth, for each number of nodes (sizes,).

        Raises InfeasibleError for a top-k or depth beyond the record's.
        """
        accepted = (self._needed(top_k, depth)[:, :, None] < nodes).sum(axis=0)  # the root is one of the nodes
        record, sizes = self.record, len(nodes)
        root = np.repeat(record.sequence_starts[:-1, None], sizes, axis=1)
        ends = record.sequence_starts[1:, None]
        tokens, steps = np.zeros((2, record.sequences, sizes), np.int64)
        column = np.arange(sizes)
        while (running := root < ends).any():
            committed = 1 + accepted[np.minimum(root, record.roots - 1), column]
            root += np.where(running, committed, 0)
            tokens += np.where(running, committed, 0)
            steps += running
        return ReplayResult(tokens, steps)

    def _needed(self, top_k: int, depth: int) -> Int64:
        """Return int64 (depth, R): draft nodes to pick until the target's node of each depth is among them."""
        record = self.record
        if not 1 <= top_k <= record.top_k or not 1 <= depth <= record.depth:
            raise InfeasibleError(
                f"top_k {top_k}, depth {depth}: expected at most top-k {record.top_k} and depth {record.depth}, which "
                "were recorded. Record more, or ask for less."
            )
        levels = self._levels(top_k)[:depth]
        return np.stack([_pool_position(levels, level) for level in range(depth)])

    def _levels(self, top_k: int) -> list[LevelCandidates]:
        """Return the candidates of every recorded depth for one top-k."""
        if top_k not in self._grown:
            self._grown.clear()  # one top-k at a time: the scores of all would fill the memory
            self._grown[top_k] = _grow(self.record, self._child, top_k)
        return self._grown[top_k]

    @cached_property
    def _grown(self) -> dict[int, list[LevelCandidates]]:
        return {}

    @cached_property
    def _child(self) -> Int64:
        """int64 (E, K): the expanded node of each child; -1 for children that were not expanded."""
        record = self.record
        child = np.full((len(record.parent), record.top_k), -1, np.int64)
        first = np.repeat(record.node_starts[:-1], np.diff(record.node_starts))
        nodes = np.flatnonzero(record.parent >= 0)
        child[first[nodes] + record.parent[nodes], record.rank[nodes]] = nodes
        return child


def _grow(record: DraftRecord, child: Int64, top_k: int) -> list[LevelCandidates]:
    roots = np.arange(record.roots)
    beams, sums = record.node_starts[:-1, None], np.zeros((record.roots, 1), np.float32)
    beam_on_path = np.zeros(record.roots, np.int64)  # -1 for none
    levels = []
    for depth in range(record.depth):
        if np.any(beams < 0):
            raise InvalidValueError(f"record: a node that top-k {top_k} drafts from was not expanded. Record it again.")
        scores = (sums[:, :, None] + record.log_probs[beams, :top_k]).reshape(record.roots, -1)
        rank = record.accepted_ranks[:, depth]
        drafted = (beam_on_path >= 0) & (rank >= 0) & (rank < top_k)
        accepted = np.where(drafted, beam_on_path * top_k + rank, -1)
        levels.append(LevelCandidates(scores, accepted))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]  # ties in drafting order, as engines sort
        beams = child[beams, :top_k].reshape(record.roots, -1)[roots[:, None], best]
        sums = scores[roots[:, None], best]
        match = (best == accepted[:, None]) & drafted[:, None]
        beam_on_path = np.where(match.any(axis=1), match.argmax(axis=1), -1)
    return levels


def _pool_position(levels: list[LevelCandidates], level: int) -> Int64:
    """Return (R,): the position, from 1, of the target's node of one level in the pool; NEVER if it is not drafted.

    The pool is sorted by score and then in drafting order, so that no node precedes its parent.
    """
    scores, accepted = levels[level].scores, levels[level].accepted
    score = scores[np.arange(len(accepted)), np.maximum(accepted, 0)][:, None]
    position = np.ones(len(accepted), np.int64)
    for depth, candidates in enumerate(levels):
        position += (candidates.scores > score).sum(axis=1)
        if depth < level:
            position += (candidates.scores == score).sum(axis=1)
    earlier = np.arange(scores.shape[1]) < accepted[:, None]
    position += ((scores == score) & earlier).sum(axis=1)
    return np.where(accepted >= 0, position, NEVER)
