"""From a proposal and the target's logits after it to the step that it comes to."""

import warnings
from collections.abc import Sequence

from treeopt.runtime.decoding.acceptance import Acceptance, Draft
from treeopt.runtime.decoding.proposal_nodes import children_of
from treeopt.runtime.decoding.target_text import TargetText
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import recurring_tree
from treeopt.runtime.models.finite import all_finite, draft_warning, not_finite_error, on_host, usable_nodes
from treeopt.runtime.models.model import Output, Outputs, joined
from treeopt.runtime.rules.verify import Verdict
from treeopt.trees import TokenTree


class StepAcceptance:
    """Accepts paths of proposals, in any text of a decoder.

    Args:
        target: name of the model that verifies.
        acceptance: which nodes are accepted.
    """

    def __init__(self, target: str, acceptance: Acceptance) -> None:
        self._target = target
        self._acceptance = acceptance
        self._warned = False

    def prepare(self, tree: TokenTree) -> None:
        """Make what a tree needs that will come again and again."""
        self._acceptance.prepare(tree)

    def step_of(self, at: TargetText, proposal: Proposal, output: Output, draft: Draft, verdict: Verdict) -> Step:
        """Return the step of a proposal, given what of it was verified and accepted."""
        return self.accepted(at, draft.tokens, verdict, output, cut=len(draft.tokens) < proposal.tree.nodes)

    def verdicts(
        self, texts: Sequence[TargetText], proposals: Sequence[Proposal], outputs: Outputs
    ) -> list[tuple[Draft, Verdict]]:
        """Return what of the proposals of some texts is verified, and which nodes of it are accepted."""
        drafts = [self._finite(proposal) for proposal in proposals]
        nodes, logits = [len(draft.tokens) for draft in drafts], outputs.logits
        if logits.shape[0] > sum(nodes):  # a draft was cut, or side tokens stand behind it
            logits = joined([output.logits[:count] for output, count in zip(outputs, nodes, strict=True)])
        return list(zip(drafts, self._acceptance(drafts, logits, [at.noise for at in texts]), strict=True))

    def accepted(
        self, at: TargetText, tokens: Sequence[int], verdict: Verdict, output: Output, *, cut: bool = False
    ) -> Step:
        """Return the step of a verdict on the tokens drafted in a text."""
        if not verdict.finite:
            at.forget()
            raise not_finite_error(self._target, "target")
        committed = [*(tokens[node] for node in verdict.nodes[1:]), verdict.bonus]
        return Step(verdict.nodes, committed, output.logits, output.states, cut)

    def _finite(self, proposal: Proposal) -> Draft:
        """Return as much of a proposal as was made from distributions that are finite."""
        scores = proposal.scores
        tokens, values = on_host(proposal.tokens, None if scores is None else scores.values)
        if scores is None or all_finite(values):
            children = children_of(proposal.tree)
            return Draft(proposal.tree, children, tokens, proposal.tokens, proposal.probs)
        if not self._warned:
            self._warned = True
            warnings.warn(draft_warning(scores.model), stacklevel=2)
        nodes = usable_nodes(proposal.tree, scores.nodes, values)
        tree = recurring_tree(tuple(proposal.tree.parents[:nodes].tolist()))
        probs = None if proposal.probs is None else proposal.probs[:nodes]
        return Draft(tree, children_of(tree), tokens[:nodes], proposal.tokens[:nodes], probs)
