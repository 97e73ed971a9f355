"""What dynamic trees of every top-k up to K would feed below a position, found side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from treeopt.arrays import Bool, Float32, Int64
from treeopt.profiler.settings import RecordSize
from treeopt.records.draft_record import NOT_DRAFTED
from treeopt.runtime.drafters.draft_model import feed
from treeopt.runtime.drafters.drafted_nodes import Children
from treeopt.runtime.models.finite import not_finite_error
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.nodes import PassNodes

ROOTS_AT_ONCE = 64
"""Roots that one pass feeds; their masks and logits take memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """The nodes fed below one root, level by level, the root first."""

    parent: Int64
    """int64 (E,): -1 for the root."""
    rank: Int64
    """int64 (E,): among the parent's children."""
    log_probs: Float32
    """float32 (E, K): of the likeliest tokens after each, falling."""
    tokens: Int64
    """int64 (E, K): these tokens."""

    def outcome(self, following: Sequence[int], depth: int) -> Int64:
        """Return int64 (depth,): the ranks along which a text goes on, -1 from where the draft does not follow it."""
        ranks = np.full(depth, NOT_DRAFTED)
        node = np.zeros(1, np.int64)
        for level, token in enumerate(following[:depth]):
            rank = np.flatnonzero(self.tokens[node] == token)  # none where the node was not fed
            if len(rank) == 0:
                break
            ranks[level] = rank[0]
            node = np.flatnonzero((self.parent == node) & (self.rank == rank))
        return ranks


class Expander:
    """Expands below the positions of one text after the other.

    Args:
        draft: the draft model.
        size: K and the depth.
    """

    def __init__(self, draft: LanguageModel, size: RecordSize) -> None:
        self._draft = draft
        self._top_k, self._depth = size.top_k, size.depth
        k = np.arange(1, size.top_k + 1)[:, None, None]
        place, rank = np.arange(size.top_k)[:, None], np.arange(size.top_k)
        self._outside: Bool = (place >= k) | (rank >= k)
        """bool (K, K, K): for each top-k, the beams and ranks that its trees have not."""
        self._taken: Bool = ~self._outside[:, :, 0]
        """bool (K, K): for each top-k, its beams."""

    @torch.inference_mode()
    def expand(self, text: Sequence[int], roots: int) -> list[Expansion]:
        """Return what is fed below each of the last `roots` tokens of a text.

        The text is fed once.  The roots follow from the last to the first, since nodes are written over what stands in
        the cache behind their root.

        Raises TreeoptError naming the draft model where its logits are not finite.
        """
        device, first = self._draft.device, len(text) - roots
        widest = self._top_k * (self._top_k + 1) // 2
        (self._cache,) = self._draft.new_caches(len(text) + (self._depth - 1) * widest, 1)
        self._draft.prefill(torch.tensor(text[:first], dtype=torch.int64, device=device), self._cache)
        children = [self._feed_text(text[at : at + ROOTS_AT_ONCE]) for at in range(first, len(text), ROOTS_AT_ONCE)]
        log_probs, tokens = (np.concatenate(parts) for parts in zip(*children, strict=True))
        found = []
        for root in reversed(range(roots)):
            self._cache.length = first + root + 1
            found.append(self._below(Children(log_probs[root : root + 1], tokens[root : root + 1])))
        return found[::-1]

    def _feed_text(self, tokens: Sequence[int]) -> Children:
        """Commit some tokens and return the children of each."""
        count = len(tokens)
        children = self._feed(np.array(tokens), PassNodes.chain(count))
        self._cache.length += count
        return children

    def _feed(self, tokens: Int64, nodes: PassNodes) -> Children:
        children = feed(self._draft, self._cache, tokens, nodes, children=self._top_k)
        if not children.finite:
            raise not_finite_error(self._draft.name, "draft model")
        return children

    def _below(self, children: Children) -> Expansion:
        """Return what is fed below a root whose children are given, (1, K)."""
        parent, rank, scores = np.full(1, -1), np.zeros(1, np.int64), np.zeros(1, np.float32)
        log_probs, tokens = children
        beams = np.zeros((self._top_k, 1), np.int64)
        visible = np.ones((1, 0), np.bool_)  # the root itself is committed
        level_start = 0
        for depth in range(self._depth - 1):
            # candidates (K, beams, K): a row holds the scores that the trees of one top-k compare
            candidates = scores[beams][:, :, None] + log_probs[beams]
            candidates[self._outside[:, : beams.shape[1]]] = -np.inf
            chosen = falling(candidates.reshape(self._top_k, -1))[:, : self._top_k]
            codes = np.take_along_axis(beams, chosen // self._top_k, axis=1) * self._top_k + chosen % self._top_k
            new, place = np.unique(codes[self._taken], return_inverse=True)
            above, ranks = new // self._top_k, new % self._top_k
            beams = np.zeros_like(codes)
            beams[self._taken] = len(parent) + place
            fed = visible.shape[1]
            visible = visible_below(visible, above - level_start)
            level_start = len(parent)
            below = self._feed(
                tokens[above, ranks], PassNodes(visible=visible, depth=np.full(len(new), depth), start=fed)
            )
            parent, rank = np.append(parent, above), np.append(rank, ranks)
            scores = np.append(scores, scores[above] + log_probs[above, ranks])
            log_probs, tokens = np.vstack([log_probs, below.log_probs]), np.vstack([tokens, below.tokens])
        return Expansion(parent, rank, log_probs, tokens)


def visible_below(visible: Bool, parents: Int64) -> Bool:
    """Return which nodes, fed before or now, each child may attend to: what its parent may, and itself.

    Args:
        visible: bool (rows, columns), of the pass before, whose nodes are the last columns.
        parents: int64 (m,), the row of each child's parent.
    """
    return np.hstack([visible[parents], np.eye(len(parents), dtype=np.bool_)])


def falling(scores: Float32) -> Int64:
    """Return the indices that sort the last axis in falling order; equal scores stay in the order they have."""
    return (-scores).argsort(axis=-1, kind="stable")
