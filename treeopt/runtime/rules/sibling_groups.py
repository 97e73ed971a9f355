"""The nodes of a tree that have children, laid out so that all of them try a child of one rank at once."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingGroups:
    """Parents with their children, those with the most children first."""

    parents: Tensor
    """int64 (m,)."""
    children: Tensor
    """int64 (c,), rank after rank; those of one rank are the children of the first so many parents."""
    counts: tuple[int, ...]
    """Children of each rank."""


def sibling_groups(tree: TokenTree, device: torch.device, nodes: slice = slice(0, None)) -> SiblingGroups:
    """Return the sibling groups of a tree, or those whose parents lie in a slice of its nodes.

    >>> found = sibling_groups(TokenTree([-1, 0, 0, 2]), torch.device("cpu"))
    >>> found.children.tolist(), found.counts
    ([1, 3, 2], (2, 1))
    """
    counts = tree.child_counts[nodes]
    parents = nodes.start + np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    first, most = tree.first_child[parents], tree.child_counts[parents]
    by_rank = [first[most > rank] + rank for rank in range(int(counts.max(initial=0)))]
    return SiblingGroups(
        parents=torch.tensor(parents.tolist(), dtype=torch.int64, device=device),
        children=torch.tensor([int(child) for each in by_rank for child in each], dtype=torch.int64, device=device),
        counts=tuple(map(len, by_rank)),
    )
