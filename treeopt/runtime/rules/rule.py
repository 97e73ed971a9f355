"""What makes a verification rule, and all rules by name."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from treeopt.records.rules import LOSSY_RULES, check_rule
from treeopt.runtime.rules.layout import SiblingGroups
from treeopt.runtime.rules.rejection import sampled_target, sequoia, specinfer
from treeopt.runtime.rules.sample_children import SampleChildren, likeliest, with_replacement, without_replacement
from treeopt.runtime.rules.selection import LeavesFirst, Longest, Selection, TopDown
from treeopt.runtime.rules.traversal import traversal
from treeopt.runtime.rules.typical import typical

AcceptTest = Callable[[SiblingGroups, Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A way to draft and to verify."""

    name: str
    draw: SampleChildren
    """How children are sampled from the draft's distribution."""
    accept_test: AcceptTest
    """accept_test(siblings, tokens, draft, target, acceptance) writes how probable each child is to be accepted, when
    its turn comes, into `acceptance`, and never asks the host for a number.

    siblings: the parents and their children; all of a batch, or one level after the other if `by_level`.
    tokens: int64 (n,), a token per node.
    draft: float64 (m, V), the draft's distribution after each parent, with no entry of 0; it may be written over.
    target: float64 (m, V), the target's distribution after each parent; what is left in it, the residual, is up to a factor the
        distribution of the token after a path that ends at the parent.
    acceptance: float64 (n,), read for the level above and written.
    """
    selection: Selection
    """How the accepted path follows."""
    by_level: bool = False
    """Whether a level is tested with the result of the level above."""
    random_drafts: bool = True
    """Whether children are sampled at random, so that the draft's distribution counts."""

    @property
    def kernel(self) -> Callable[..., None]:
        """The same test as a loop over the host's memory; see `treeopt.runtime.rules.kernels`."""
        from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding does without

        kernel: Callable[..., None] = getattr(kernels, self.name)
        return kernel

    @property
    def lossless(self) -> bool:
        """Whether the text follows the target's distribution."""
        return self.name not in LOSSY_RULES


RULES = {
    rule.name: rule
    for rule in (
        Rule(name="sequoia", draw=without_replacement, accept_test=sequoia, selection=TopDown()),
        Rule(name="specinfer", draw=with_replacement, accept_test=specinfer, selection=TopDown()),
        Rule(name="target", draw=likeliest, accept_test=sampled_target, selection=TopDown(), random_drafts=False),
        Rule(
            name="traversal",
            draw=without_replacement,
            accept_test=traversal,
            selection=LeavesFirst(),
            by_level=True,
        ),
        Rule(
            name="typical", draw=likeliest, accept_test=typical, selection=Longest(), by_level=True, random_drafts=False
        ),
    )
}


def rule_named(name: str, *, lossy: bool = False) -> Rule:
    """Return a rule; InvalidValueError for an unknown one, and for a lossy one that was not allowed."""
    check_rule(name, lossy=lossy)
    return RULES[name]
