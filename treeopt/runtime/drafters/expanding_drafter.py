"""Dynamic trees: in every step the tree grows from the probabilities of a draft model, or of a head on the target."""

from collections.abc import Sequence
from functools import partial

import torch

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.draft_model import (
    DraftHead,
    DraftSequence,
    draft_states,
    new_draft_sequences,
    node_logits,
    root_logits,
    top_children,
)
from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.drafters.expansion import ExpandedTree, ExpansionPolicy, TreeExpansion
from treeopt.runtime.drafters.heads import check_children
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import ForwardModel
from treeopt.runtime.models.runner import Runner, make_graph_pool


class ExpandingDrafter(SequenceDrafter[DraftSequence]):
    """Grows trees where the draft is confident (EAGLE-2: Li et al., 2024; SpecExec: Svirschevski et al., 2024).

    Args:
        model: a draft model that shares the target's vocabulary, or a head on the target; its probabilities are those of
            temperature 1, whatever the target's.
        policy: EAGLE-2's dynamic trees, or SpecExec's.
        capacity: longest sequence; beyond what the model takes, nothing is drafted.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises InvalidValueError for more children than the model predicts tokens, and trees deeper than the longest sequence,
    OutOfMemoryError for a cache that does not fit into memory.
    """

    def __init__(
        self,
        model: ForwardModel,
        policy: ExpansionPolicy,
        *,
        capacity: int,
        cuda_graphs: bool | None = None,
    ) -> None:
        longest, tokens = model.config.max_positions, model.config.vocabulary
        check_children("policy", policy.children, model.name, model.tokens if isinstance(model, DraftHead) else tokens)
        if policy.longest_draft > longest:
            raise InvalidValueError(
                f"policy: expected at most {longest} levels, the longest sequence that {model.name} takes. "
                f"Got {policy.longest_draft}."
            )
        self.policy, self.requested_states, self.max_tokens = policy, draft_states(model), policy.max_nodes
        self._model = model
        self._runner = Runner(model, max_nodes=policy.max_fed, pool=make_graph_pool(model.device, cuda_graphs))
        super().__init__(partial(new_draft_sequences, model, min(capacity, longest), policy.max_fed))
        self._expansion = TreeExpansion(policy, 0)
        self._expansion.compile()

    def _fill(self, drafts: Sequence[DraftSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots; the root alone if a distribution is not finite."""
        trees = self._expand(drafts)
        for draft, expanded in zip(drafts, trees, strict=True):
            draft.feed_indices = expanded.feed_indices
        return [
            Proposal(
                expanded.tree, expanded.tokens, scores=None if expanded.finite else Scores.missing(self._model.name)
            )
            for expanded in trees
        ]

    def _expand(self, drafts: Sequence[DraftSequence]) -> list[ExpandedTree]:
        """Grow the tree of each sequence, with one pass for the whole batch at a time."""
        if self._expansion.sequences != len(drafts):
            self._expansion = TreeExpansion(self.policy, len(drafts))
        expansion = self._expansion
        expansion.begin([draft.root for draft in drafts])
        expansion.add(*top_children(root_logits(self._runner, drafts), expansion.children))
        while frontiers := expansion.feed_next():
            logits = node_logits(
                self._runner,
                [drafts[frontier.sequence] for frontier in frontiers],
                [frontier.tokens.to(self._model.device) for frontier in frontiers],
                [frontier.nodes for frontier in frontiers],
            )
            expansion.add(*top_children(logits, expansion.children))
        return expansion.trees()
