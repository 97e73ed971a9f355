"""A static tree filled from one ranking of tokens per depth, whatever the parent (Medusa's heads, block drafters)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.models.finite import Scores
from treeopt.trees import TokenTree


class MarginalTree:
    """The node of depth d and rank r carries the r-th likeliest token at depth d.

    Args:
        name: of the head, for warnings.
        tree: the tree.
        levels: depths that the head predicts.
        tokens: that the head knows.
        device: of the head.

    Raises InvalidValueError for a tree with more levels, or more children of a node than tokens.
    """

    def __init__(self, name: str, tree: TokenTree, *, levels: int, tokens: int, device: torch.device) -> None:
        widest = int(tree.child_counts.max())
        if tree.max_depth > levels:
            raise InvalidValueError(
                f"tree: expected at most {levels} levels, the depth of {name}. Got {tree.max_depth}."
            )
        if widest > tokens:
            raise InvalidValueError(
                f"tree: expected at most {tokens} children of a node, the vocabulary. Got {widest}."
            )
        self.tree = tree
        self.count = max(1, widest)
        """Tokens that are needed at each depth."""
        self._name = name
        places = (tree.depth[1:] - 1) * self.count + tree.rank[1:]
        self._places = torch.from_numpy(places.astype(np.int64)).to(device)
        self._first_nodes = [level.start for level in tree.levels[:-1]]

    def proposals(self, roots: Sequence[int], logits: Tensor, likeliest: Tensor) -> list[Proposal]:
        """Return a filled tree for each root.

        Args:
            roots: tokens of n roots.
            logits: (n, levels), the largest logit at each depth.
            likeliest: int64 (n, levels, count), the likeliest tokens at each depth.
        """
        drafted = likeliest.flatten(1)[:, self._places]
        tokens = torch.cat([drafted.new_tensor(roots)[:, None], drafted], 1)
        return [
            Proposal(self.tree, row, scores=Scores(self._name, scores, self._first_nodes))
            for row, scores in zip(tokens, logits[:, : self.tree.max_depth], strict=True)
        ]
