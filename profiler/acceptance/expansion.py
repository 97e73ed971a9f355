"""The nodes that dynamic trees of every top-k up to K would feed below a position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from treeopt.arrays import Bool, Float32, Int64
from treeopt.profiler.settings import RecordSize
from treeopt.records.draft_record import NOT_DRAFTED
from treeopt.runtime.drafters.draft_model import top_children
from treeopt.runtime.models.finite import all_finite, not_finite_error
from treeopt.runtime.models.model import LanguageModel, SequenceInput
from treeopt.runtime.models.nodes import PassNodes

ROOTS_PER_PASS = 64
"""More roots need more memory for masks and logits."""


class Children(NamedTuple):
    """The top tokens after each of m nodes, in falling order."""

    log_probs: Float32
    """float32 (m, k)."""
    tokens: Int64
    """int64 (m, k)."""


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """The nodes fed below one root, level by level, the root first."""

    parent: Int64
    """int64 (E,): -1 for the root."""
    rank: Int64
    """int64 (E,): among the children of the parent."""
    log_probs: Float32
    """float32 (E, K): of the likeliest tokens after each node, in descending order."""
    tokens: Int64
    """int64 (E, K): these tokens."""

    def outcome(self, following: Sequence[int], depth: int) -> Int64:
        """Return int64 (depth,): the ranks of the tokens that follow, -1 from the first that the draft lacks."""
        ranks = np.full(depth, NOT_DRAFTED)
        node = np.zeros(1, np.int64)
        for level, token in enumerate(following[:depth]):
            rank = np.flatnonzero(self.tokens[node] == token)  # empty if the node was not fed
            if len(rank) == 0:
                break
            ranks[level] = rank[0]
            node = np.flatnonzero((self.parent == node) & (self.rank == rank))
        return ranks


class Expander:
    """Expands below the positions of sequences.

    Args:
        draft: the draft model.
        size: K and the depth.
    """

    def __init__(self, draft: LanguageModel, size: RecordSize) -> None:
        self._draft = draft
        self._top_k, self._depth = size.top_k, size.depth
        k = np.arange(1, size.top_k + 1)[:, None, None]
        beam, rank = np.arange(size.top_k)[:, None], np.arange(size.top_k)
        self._outside: Bool = (beam >= k) | (rank >= k)
        """bool (K, K, K): for each top-k, the beams and ranks that its trees lack."""
        self._has_beam: Bool = ~self._outside[:, :, 0]
        """bool (K, K): for each top-k, its beams."""

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], roots: int) -> list[Expansion]:
        """Return the nodes fed below each of the last `roots` tokens of a sequence.

        Raises TreeoptError naming the draft model if its logits are not finite.
        """
        device, first = self._draft.device, len(tokens) - roots
        widest = self._top_k * (self._top_k + 1) // 2
        (self._cache,) = self._draft.new_caches(len(tokens) + (self._depth - 1) * widest, 1)
        self._draft.prefill(torch.tensor(tokens[:first], dtype=torch.int64, device=device), self._cache)
        children = [
            self._commit(tokens[start : start + ROOTS_PER_PASS]) for start in range(first, len(tokens), ROOTS_PER_PASS)
        ]
        log_probs, child_tokens = (np.concatenate(rows) for rows in zip(*children, strict=True))
        expansions = []
        for root in reversed(range(roots)):  # nodes overwrite the cache after their root
            self._cache.length = first + root + 1
            expansions.append(self._expand_root(Children(log_probs[root : root + 1], child_tokens[root : root + 1])))
        return expansions[::-1]

    def _commit(self, tokens: Sequence[int]) -> Children:
        count = len(tokens)
        children = self._feed(np.array(tokens), PassNodes.chain(count))
        self._cache.length += count
        return children

    def _feed(self, tokens: Int64, nodes: PassNodes) -> Children:
        ids = torch.from_numpy(tokens).to(self._draft.device)
        logits = self._draft.forward([SequenceInput(self._cache, ids, nodes)]).logits
        log_probs, top = (values.cpu().numpy() for values in top_children(logits, self._top_k))
        if not all_finite(log_probs[:, 0].tolist()):  # a distribution that is not finite is NaN everywhere
            raise not_finite_error(self._draft.name, "draft model")
        return Children(log_probs, top)

    def _expand_root(self, children: Children) -> Expansion:
        """Return the nodes fed below a root with children (1, K)."""
        parent, rank, scores = np.full(1, -1), np.zeros(1, np.int64), np.zeros(1, np.float32)
        log_probs, tokens = children
        beams = np.zeros((self._top_k, 1), np.int64)
        visible = np.ones((1, 0), np.bool_)  # the root itself is committed
        level_start = 0
        for depth in range(self._depth - 1):
            # candidates (K, beams, K): a row contains the scores that the trees of one top-k compare
            candidates = scores[beams][:, :, None] + log_probs[beams]
            candidates[self._outside[:, : beams.shape[1]]] = -np.inf
            chosen = (-candidates).reshape(self._top_k, -1).argsort(axis=-1, kind="stable")[:, : self._top_k]
            codes = np.take_along_axis(beams, chosen // self._top_k, axis=1) * self._top_k + chosen % self._top_k
            new, inverse = np.unique(codes[self._has_beam], return_inverse=True)
            new_parent, new_rank = new // self._top_k, new % self._top_k
            beams = np.zeros_like(codes)
            beams[self._has_beam] = len(parent) + inverse
            fed = visible.shape[1]
            # a child attends to what its parent attends to, and to itself
            visible = np.hstack([visible[new_parent - level_start], np.eye(len(new), dtype=np.bool_)])
            level_start = len(parent)
            nodes = PassNodes(visible=visible, depth=np.full(len(new), depth), start=fed)
            new_children = self._feed(tokens[new_parent, new_rank], nodes)
            parent, rank = np.append(parent, new_parent), np.append(rank, new_rank)
            scores = np.append(scores, scores[new_parent] + log_probs[new_parent, new_rank])
            log_probs = np.vstack([log_probs, new_children.log_probs])
            tokens = np.vstack([tokens, new_children.tokens])
        return Expansion(parent, rank, log_probs, tokens)
