"""Dynamic trees: in every step the tree grows from the probabilities of a draft model, or of a head on the target."""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.draft_model import (
    DraftModel,
    DraftSequence,
    NodeDrafter,
    check_drafted,
    node_logits,
    root_logits,
    top_children,
)
from treeopt.runtime.drafters.drafter import CACHED_PASSES, Proposal, intern_tree
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.nodes import NOT_FED, PassNodes
from treeopt.trees import TokenTree
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting


class Frontier(NamedTuple):
    """The nodes of one sequence that the next pass feeds."""

    sequence: int
    """Index in the batch."""
    tokens: Tensor
    """int64 (m,)."""
    nodes: PassNodes


class ExpandedTree(NamedTuple):
    """The tree that is verified in one sequence."""

    tree: TokenTree
    tokens: Tensor
    """int64 (n,), the root's first."""
    feed_indices: list[int]
    """Of every node in this step, NOT_FED if it was not fed."""
    finite: bool
    """Whether all distributions are finite; otherwise the tree is the root alone."""


ExpansionPolicy = DynamicTree | SpecExecSetting
"""The nodes that each pass feeds: the best of the level above, or the best of all until none can improve the tree."""


class TreeExpansion:
    """The candidate nodes of a step in several sequences, and the selection of those that are fed.

    `DynamicTree` feeds the best children of the nodes fed last.

    `SpecExecSetting` feeds the best nodes of all that were not fed.  A score never rises along a path.  So a node
    outside the best `budget` - 1 never returns, nor do its descendants, and a node that is no better than the worst of
    a full set need not be fed.  The best node that was not fed cannot be displaced: every pass fixes at least one node
    of the final set, and `budget` - 1 passes find all (Svirschevski et al., 2024, section 4).
    """

    def __init__(self, policy: ExpansionPolicy, sequences: int) -> None:
        from treeopt.runtime.drafters import expansion_kernels as kernels  # numba is slow to import

        self._kernels, self.sequences, self._policy = kernels, sequences, policy
        self.children = policy.children
        self._min_log_prob = policy.least_log_prob if isinstance(policy, SpecExecSetting) else -inf
        self._nodes = kernels.allocate_nodes(
            sequences, 1 + policy.children * policy.max_fed, policy.max_fed, policy.max_nodes - 1
        )
        self._trees = np.empty((sequences, 3, policy.max_nodes), np.int64)
        self._tokens = torch.from_numpy(self._trees[:, kernels.DRAFTED]).unbind()
        self.begin([0] * sequences)

    def compile(self) -> None:
        """Compile the kernels before the first step; call this on an expansion of no sequences."""
        self.begin([])
        self.add(torch.empty(0, self.children), torch.empty((0, self.children), dtype=torch.int64))
        self.feed_next()
        self.trees()

    def begin(self, roots: Sequence[int]) -> None:
        """Begin a step, given the root of each sequence; the first pass feeds them."""
        self._kernels.begin(self._nodes, np.array(roots, np.int64))
        self._passes_left = self._policy.longest_draft - 1

    def add(self, log_probs: Tensor, tokens: Tensor) -> None:
        """Add the top children of the nodes fed last, float32 and int64 (m, k), sequences concatenated.

        A tree stops growing when a distribution is not finite.
        """
        self._kernels.add_children(self._nodes, log_probs.cpu().numpy(), tokens.cpu().numpy(), self._min_log_prob)

    def feed_next(self) -> list[Frontier]:
        """Return the nodes that the next pass feeds, for every sequence with any; empty after the last pass."""
        if not self._passes_left:
            return []
        self._passes_left -= 1
        if isinstance(self._policy, SpecExecSetting):
            self._kernels.feed_best(self._nodes, self.children, self._policy.batch)
        else:
            self._kernels.feed_beams(self._nodes, self.children)
        counts = self._nodes.counts[:, : self._kernels.LAST_FED + 1].tolist()
        most_fed = max((fed for fed, _ in counts), default=0)
        parents = self._nodes.fed[:, self._kernels.PARENT_INDEX, :most_fed].tolist()
        tokens = self._nodes.fed[:, self._kernels.TOKEN]
        return [
            Frontier(
                sequence,
                torch.from_numpy(tokens[sequence, fed - new : fed]),
                intern_pass(tuple(parents[sequence][:fed]), new),
            )
            for sequence, (fed, new) in enumerate(counts)
            if new
        ]

    def trees(self) -> list[ExpandedTree]:
        """Return the tree of the best nodes of each sequence; the next step overwrites its tokens."""
        self._kernels.write_trees(self._nodes, self.children, self._trees)
        budget, trees = self._nodes.best.shape[1], []
        for (parents, _, indices), tokens, (_, _, best, finite) in zip(
            self._trees.tolist(), self._tokens, self._nodes.counts.tolist(), strict=True
        ):
            if best < budget:
                parents, tokens, indices = parents[: best + 1], tokens[: best + 1], indices[: best + 1]
            trees.append(ExpandedTree(intern_tree(tuple(parents)), tokens, indices, finite == 1))
        return trees


class ExpandingDrafter(NodeDrafter):
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
        model: DraftModel,
        policy: ExpansionPolicy,
        *,
        capacity: int,
        cuda_graphs: bool | None = None,
    ) -> None:
        check_drafted("policy", model, children=policy.children, levels=policy.longest_draft)
        if isinstance(model, EagleHead) and isinstance(policy, SpecExecSetting):
            raise InvalidValueError(
                f"policy: expected a dynamic tree, because {model.name} feeds only children of the nodes fed last. Got "
                "SpecExec's: give a draft model."
            )
        self.policy, self.max_tokens = policy, policy.max_nodes
        most_pending = policy.longest_draft + 1  # rows of the pass that reads what the last step accepted
        max_fed = max(policy.max_fed, most_pending)
        super().__init__(model, capacity=capacity, max_fed=max_fed, cuda_graphs=cuda_graphs)
        self._expansion = TreeExpansion(policy, 0)
        self._expansion.compile()

    def _fill(self, drafts: Sequence[DraftSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        if self._expansion.sequences != len(drafts):
            self._expansion = TreeExpansion(self.policy, len(drafts))
        expansion = self._expansion
        expansion.begin([draft.root for draft in drafts])
        expansion.add(*top_children(root_logits(self._runner, drafts), expansion.children))
        while frontiers := expansion.feed_next():
            logits = node_logits(
                self._runner,
                [drafts[frontier.sequence] for frontier in frontiers],
                [frontier.tokens.to(self.model.device) for frontier in frontiers],
                [frontier.nodes for frontier in frontiers],
            )
            expansion.add(*top_children(logits, expansion.children))
        proposals = []
        for draft, expanded in zip(drafts, expansion.trees(), strict=True):
            draft.feed_indices = expanded.feed_indices
            scores = None if expanded.finite else Scores.missing(self.model.name)
            proposals.append(Proposal(expanded.tree, expanded.tokens, scores=scores))
        return proposals


@lru_cache(maxsize=CACHED_PASSES)
def intern_pass(parents: tuple[int, ...], count: int) -> PassNodes:
    """Return the attention metadata of the last `count` fed nodes, the same object for recent arguments.

    `parents` has the feed index of the parent of every node fed in this step; NOT_FED for the root.
    """
    start, depths, visible = len(parents) - count, [], bytearray()
    for node in range(start, len(parents)):
        row, ancestor, depth = bytearray(len(parents)), node, -1
        while ancestor != NOT_FED:
            row[ancestor] = True
            ancestor, depth = parents[ancestor], depth + 1
        visible += row
        depths.append(depth)
    mask = np.frombuffer(bytes(visible), np.bool_).reshape(count, len(parents))
    return PassNodes(visible=mask, depth=np.array(depths), start=start)
