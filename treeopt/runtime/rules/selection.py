"""Which path of a tested tree is accepted: walks on the host, over numbers that the device gave away at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from treeopt.arrays import Float64
from treeopt.trees import TokenTree


class Walk:
    """A tree as lists of Python numbers, which a loop reads faster than arrays."""

    def __init__(self, tree: TokenTree) -> None:
        self.parents: list[int] = tree.parents.tolist()
        self.depth: list[int] = tree.depth.tolist()
        self.children = [tree.children(node) for node in range(tree.nodes)]
        self.leaves_first = list(self._below(0))
        """Every node after all that is below it, siblings in rank order."""

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root down to one."""
        path = [node]
        while path[-1] != 0:
            path.append(self.parents[path[-1]])
        return tuple(path[::-1])

    def _below(self, node: int) -> list[int]:
        order, pending = [], [node]
        while pending:  # a node before its children, last child first: the wanted order backwards
            order.append(pending.pop())
            pending.extend(self.children[order[-1]])
        return order[::-1]


class Selection(Protocol):
    """How tested nodes make an accepted path."""

    def last_node(self, walk: Walk, acceptance: Sequence[float], u: Sequence[float]) -> int:
        """Return the last node of the accepted path; `u` is uniform on [0, 1), a number per node."""

    def reach(self, walk: Walk, acceptance: Sequence[float]) -> Float64:
        """Return float64 (n,): the probability that the accepted path holds each node, over u."""


@dataclass(frozen=True, slots=True)
class TopDown:
    """From the root down: the first child that is accepted, as long as there is one."""

    def last_node(self, walk: Walk, acceptance: Sequence[float], u: Sequence[float]) -> int:
        node: int | None = 0
        last = 0
        while node is not None:
            last = node
            node = next((child for child in walk.children[node] if u[child] < acceptance[child]), None)
        return last

    def reach(self, walk: Walk, acceptance: Sequence[float]) -> Float64:
        reach = np.ones(len(acceptance))
        for node, children in enumerate(walk.children):
            left = reach[node]
            for child in children:
                reach[child] = left * acceptance[child]
                left -= reach[child]
        return reach


@dataclass(frozen=True, slots=True)
class LeavesFirst:
    """From the leaves up: the first node that is accepted, all below it tested before it."""

    def last_node(self, walk: Walk, acceptance: Sequence[float], u: Sequence[float]) -> int:
        return next(node for node in walk.leaves_first if u[node] < acceptance[node])

    def reach(self, walk: Walk, acceptance: Sequence[float]) -> Float64:
        reach = np.zeros(len(acceptance))
        left = 1.0
        for node in walk.leaves_first:
            ends_here = left * acceptance[node]
            left -= ends_here
            reach[node] += ends_here
            if node:
                reach[walk.parents[node]] += reach[node]
        return reach


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest path whose likelihood is not 0, in a tie the likeliest; there is no chance in it."""

    def last_node(self, walk: Walk, acceptance: Sequence[float], u: Sequence[float]) -> int:  # noqa: ARG002
        kept = (node for node, likelihood in enumerate(acceptance) if likelihood > 0)
        return max(kept, key=lambda node: (walk.depth[node], acceptance[node]))

    def reach(self, walk: Walk, acceptance: Sequence[float]) -> Float64:
        reach = np.zeros(len(acceptance))
        reach[list(walk.path(self.last_node(walk, acceptance, ())))] = 1.0
        return reach
