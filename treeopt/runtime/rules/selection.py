"""Selects the accepted path of a tested tree, on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np

from treeopt.arrays import Float64
from treeopt.trees import TokenTree


class HostTree:
    """A tree as lists of Python numbers, which Python loops read faster than arrays."""

    def __init__(self, tree: TokenTree) -> None:
        self.parents: list[int] = tree.parents.tolist()
        self.depth: list[int] = tree.depth.tolist()
        ends = accumulate(tree.child_counts.tolist(), initial=1)
        self.children = [range(first, stop) for first, stop in pairwise(ends)]

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root down to `node`."""
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


class Selection(Protocol):
    """Selects the accepted path from acceptance probabilities."""

    def last_node(self, tree: HostTree, acceptance: Sequence[float], u: Sequence[float]) -> int:
        """Return the last node of the accepted path; `u` has a number for each node, uniform on [0, 1)."""

    def reach(self, tree: HostTree, acceptance: Sequence[float]) -> Float64:
        """Return float64 (n,): the probability over u that the accepted path contains each node."""


@dataclass(frozen=True, slots=True)
class TopDown:
    """From the root down, the first accepted child, until no child is accepted."""

    def last_node(self, tree: HostTree, acceptance: Sequence[float], u: Sequence[float]) -> int:
        node: int | None = 0
        last = 0
        while node is not None:
            last = node
            node = next((child for child in tree.children[node] if u[child] < acceptance[child]), None)
        return last

    def reach(self, tree: HostTree, acceptance: Sequence[float]) -> Float64:
        reach = np.ones(len(acceptance))
        for node, children in enumerate(tree.children):
            remaining = reach[node]
            for child in children:
                reach[child] = remaining * acceptance[child]
                remaining -= reach[child]
        return reach


@dataclass(frozen=True, slots=True)
class LeavesFirst:
    """From the leaves up, the first accepted node; descendants are tested first."""

    def last_node(self, tree: HostTree, acceptance: Sequence[float], u: Sequence[float]) -> int:
        return next(node for node in tree.leaves_first if u[node] < acceptance[node])

    def reach(self, tree: HostTree, acceptance: Sequence[float]) -> Float64:
        reach = np.zeros(len(acceptance))
        remaining = 1.0
        for node in tree.leaves_first:
            ends_here = remaining * acceptance[node]
            remaining -= ends_here
            reach[node] += ends_here
            if node:
                reach[tree.parents[node]] += reach[node]
        return reach


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest path of likelihood above 0, in a tie the most likely; deterministic."""

    def last_node(self, tree: HostTree, acceptance: Sequence[float], u: Sequence[float]) -> int:  # noqa: ARG002
        accepted = (node for node, likelihood in enumerate(acceptance) if likelihood > 0)
        return max(accepted, key=lambda node: (tree.depth[node], acceptance[node]))

    def reach(self, tree: HostTree, acceptance: Sequence[float]) -> Float64:
        reach = np.zeros(len(acceptance))
        reach[list(tree.path(self.last_node(tree, acceptance, ())))] = 1.0
        return reach
