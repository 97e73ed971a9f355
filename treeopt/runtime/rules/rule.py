"""The verification rules by name, and how each selects the accepted path of a tested tree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from treeopt.arrays import Float64
from treeopt.records.rules import check_rule
from treeopt.runtime.rules.accept_tests import sampled_target, sequoia, specinfer, traversal, typical
from treeopt.runtime.rules.layout import HostTree, SiblingGroups
from treeopt.runtime.rules.sample_children import (
    SampleChildren,
    sample_with_replacement,
    sample_without_replacement,
    take_likeliest,
)

AcceptTest = Callable[[SiblingGroups, Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class TopDown:
    """From the root down, the first accepted child, until no child is accepted."""

    def last_node(self, tree: HostTree, acceptance: Sequence[float], u: Sequence[float]) -> int:
        """Return the last node of the accepted path; `u` has a number for each node, uniform on [0, 1)."""
        node: int | None = 0
        last = 0
        while node is not None:
            last = node
            node = next((child for child in tree.children[node] if u[child] < acceptance[child]), None)
        return last

    def reach(self, tree: HostTree, acceptance: Sequence[float]) -> Float64:
        """Return float64 (n,): the probability over u that the accepted path contains each node."""
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


Selection = TopDown | LeavesFirst | Longest
"""How the accepted path follows from acceptance probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How drafts are sampled, tested and accepted."""

    name: str
    draw: SampleChildren
    """Samples children from the draft's distribution."""
    accept_test: AcceptTest
    """accept_test(siblings, tokens, draft, target, acceptance) writes the probability that each child is accepted when
    it is tested into `acceptance`, without waiting for the device.

    siblings: parents and their children; all of a batch, or one level after the other if `by_level`.
    tokens: int64 (n,), a token for each node.
    draft: float64 (m, V), the draft's distribution after each parent, without zeros; it may be overwritten.
    target: float64 (m, V), the target's distribution after each parent; overwritten by the residual, which is, up to a
        factor, the distribution of the bonus token after a path that ends at the parent.
    acceptance: float64 (n,), read for the level above and written.
    """
    selection: Selection
    by_level: bool = False
    """Whether the test of a level needs the result of the level above."""

    @property
    def random_drafts(self) -> bool:
        """Whether children are sampled, so that the draft's distribution matters."""
        return self.draw is not take_likeliest

    @property
    def kernel(self) -> Callable[..., None]:
        """The same test as a numba kernel, with the arguments of `treeopt.runtime.rules.kernels`."""
        from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding needs none

        kernel: Callable[..., None] = getattr(kernels, self.name)
        return kernel


RULES = {
    rule.name: rule
    for rule in (
        Rule(name="sequoia", draw=sample_without_replacement, accept_test=sequoia, selection=TopDown()),
        Rule(name="specinfer", draw=sample_with_replacement, accept_test=specinfer, selection=TopDown()),
        Rule(name="target", draw=take_likeliest, accept_test=sampled_target, selection=TopDown()),
        Rule(
            name="traversal",
            draw=sample_without_replacement,
            accept_test=traversal,
            selection=LeavesFirst(),
            by_level=True,
        ),
        Rule(name="typical", draw=take_likeliest, accept_test=typical, selection=Longest(), by_level=True),
    )
}


def get_rule(name: str, *, lossy: bool = False) -> Rule:
    """Return a rule; raises InvalidValueError for an unknown one, and for a lossy one unless allowed."""
    check_rule(name, lossy=lossy)
    return RULES[name]
