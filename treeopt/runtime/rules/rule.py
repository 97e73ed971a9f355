"""The verification rules by name."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from treeopt.records.rules import check_rule
from treeopt.runtime.rules.accept_tests import sampled_target, sequoia, specinfer, traversal, typical
from treeopt.runtime.rules.layout import SiblingGroups
from treeopt.runtime.rules.sample_children import (
    SampleChildren,
    sample_with_replacement,
    sample_without_replacement,
    take_likeliest,
)
from treeopt.runtime.rules.selection import LeavesFirst, Longest, Selection, TopDown

AcceptTest = Callable[[SiblingGroups, Tensor, Tensor, Tensor, Tensor], None]


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
    """Selects the accepted path."""
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
