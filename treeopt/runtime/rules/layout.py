"""Trees as the rules read them: lists for Python loops, and batches of trees with siblings grouped for vectorised tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64, Integers
from treeopt.trees import TokenTree

CACHED_LAYOUTS = 64
"""Batches of trees whose layout is kept: a few numbers per node."""


class HostTree:
    """A tree as lists of Python numbers, which Python loops read faster than arrays."""

    def __init__(self, tree: TokenTree) -> None:
        self.parents: list[int] = tree.parents.tolist()
        self.depth: list[int] = tree.depth.tolist()
        ends = accumulate(tree.child_counts.tolist(), initial=1)
        self.children = [range(first, stop) for first, stop in pairwise(ends)]

    def path(self, node: int) -> tuple[int, ...]:
        path = [node]
        while path[-1] != 0:
            path.append(self.parents[path[-1]])
        return tuple(path[::-1])

    @cached_property
    def leaves_first(self) -> list[int]:
        """Every node after its descendants, siblings in rank order."""
        order, pending = [], [0]
        while pending:  # a node before its children, last child first: the postorder reversed
            order.append(pending.pop())
            pending.extend(self.children[order[-1]])
        return order[::-1]


host_tree = lru_cache(maxsize=4 * CACHED_LAYOUTS)(HostTree)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingGroups:
    """Parents with their children, sorted by number of children, so that the children of one rank are tested together."""

    parents: Tensor
    """int64 (m,)."""
    children: Tensor
    """int64 (c,), rank after rank; within a rank in the order of the parents."""
    counts: tuple[int, ...]
    """Number of children of each rank."""


class BatchLayout:
    """The nodes of a batch of trees; `by_level` tests levels one after the other, instead of all groups at once."""

    def __init__(self, trees: Sequence[TokenTree], by_level: bool, device: torch.device) -> None:
        self._device = device
        self.starts = list(accumulate((tree.nodes for tree in trees), initial=0))
        """The first node of each tree, and the number of all nodes."""
        self.host_trees = [host_tree(tree) for tree in trees]
        counts = np.concatenate([tree.child_counts for tree in trees])
        first = np.concatenate([tree.first_child + start for tree, start in zip(trees, self.starts, strict=False)])
        parents = np.flatnonzero(counts)
        depth = np.concatenate([tree.depth for tree in trees])[parents] if by_level else np.zeros_like(parents)
        order = np.lexsort((-counts[parents], depth))
        parents = parents[order]
        self.internal: Int64 = np.stack([parents, first[parents], counts[parents]], axis=1).astype(np.int64)
        """int64 (m, 3): each parent, its first child, and its number of children, in the order of `groups`."""
        self.rows: dict[int, int] = {parent: row for row, parent in enumerate(parents.tolist())}
        """The row of each parent in `internal`."""
        self._levels = np.unique(depth[order], return_index=True)[1].tolist()

    @cached_property
    def parents(self) -> Tensor:
        """int64 (m,): the parents in the order of `groups`, on the device."""
        return torch.from_numpy(self.internal[:, 0].copy()).to(self._device)

    @cached_property
    def roots(self) -> Tensor:
        """int64 (B,), on the device."""
        return torch.tensor(self.starts[:-1], device=self._device)

    @cached_property
    def groups(self) -> list[SiblingGroups]:
        """Sibling groups, tested one after the other."""
        edges = [*self._levels, len(self.internal)]
        return [group_siblings(self.internal[start:stop], self._device) for start, stop in pairwise(edges)]


def group_siblings(internal: Integers, device: torch.device) -> SiblingGroups:
    """Return the groups of parents, given each parent, its first child and its number of children, largest first.

    >>> groups = group_siblings(np.array([[0, 1, 2], [2, 3, 1]]), torch.device("cpu"))
    >>> groups.children.tolist(), groups.counts
    ([1, 3, 2], (2, 1))
    """
    parents, first, counts = internal.T
    by_rank = [first[counts > rank] + rank for rank in range(int(counts.max(initial=0)))]
    return SiblingGroups(
        parents=torch.tensor(parents.tolist(), dtype=torch.int64, device=device),
        children=torch.tensor(np.concatenate(by_rank).tolist(), dtype=torch.int64, device=device),
        counts=tuple(map(len, by_rank)),
    )


batch_layout = lru_cache(maxsize=CACHED_LAYOUTS)(BatchLayout)
