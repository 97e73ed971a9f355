"""The Markov head of DSpark (arXiv 2607.05147): draft tokens depend on their parent, and trees are filled level by level.

It adds a product of rank r to the logits of a block: those of a token's children are the logits of their slot plus
W2 W1[token].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.rules.sample_children import ChildIndices, index_children, select_children, top_tokens
from treeopt.trees import TokenTree


@dataclass(frozen=True)
class MarkovHead:
    """The two factors of the bias that a token adds to the logits of the next one."""

    embedding: Tensor
    """(V, r): W1."""
    output: Callable[[Tensor], Tensor]
    """W2: from (n, r) to the target's tokens, (n, V); -inf for tokens that the head does not predict."""

    @property
    def rank(self) -> int:
        return self.embedding.shape[1]

    def bias(self, tokens: Tensor) -> Tensor:
        """Return the bias (..., V) after tokens, int64 (...)."""
        bias: Tensor = self.output(F.embedding(tokens.flatten(), self.embedding)).unflatten(0, tokens.shape)
        return bias


class _Level(NamedTuple):
    """The nodes of one depth that have children, and these children."""

    parents: Tensor
    """int64 (w,): nodes."""
    scores: slice
    """Of the parents among all nodes with children."""
    children: ChildIndices
    nodes: slice
    """The children."""


class MarkovTree:
    """A static tree filled level by level: a node of rank r has the r-th most likely token after its parent's.

    Args:
        name: of the head, for warnings.
        tree: the tree.
        markov: the head.
    """

    def __init__(self, name: str, tree: TokenTree, markov: MarkovHead) -> None:
        self.tree = tree
        self._name, self._markov = name, markov
        counts, device = tree.child_counts, markov.embedding.device
        self._internal = np.flatnonzero(counts).tolist()
        self._levels = []
        first_score = 0
        for level, below in zip(tree.levels[:-1], tree.levels[1:], strict=True):
            parents = level.start + np.flatnonzero(counts[level])
            scores = slice(first_score, first_score + len(parents))
            children = index_children(counts[parents].tolist(), device)
            self._levels.append(_Level(torch.from_numpy(parents).to(device), scores, children, below))
            first_score = scores.stop

    @torch.inference_mode()
    def fill(self, roots: Sequence[int], logits: Tensor) -> list[Proposal]:
        """Return the filled tree below each root; nothing waits for the device.

        Args:
            roots: tokens of n roots.
            logits: (n, levels, V), of the block after each root.
        """
        tokens = torch.empty((len(roots), self.tree.nodes), dtype=torch.int64, device=logits.device)
        tokens[:, 0] = tokens.new_tensor(roots)
        scores = logits.new_empty((len(roots), len(self._internal)))
        for depth, level in enumerate(self._levels):
            biased = logits[:, depth, None] + self._markov.bias(tokens[:, level.parents])
            scores[:, level.scores], likeliest = top_tokens(biased, level.children.max_children)
            tokens[:, level.nodes] = select_children(likeliest, level.children)
        return [
            Proposal(self.tree, row, scores=Scores(self._name, largest, self._internal))
            for row, largest in zip(tokens, scores, strict=True)
        ]
