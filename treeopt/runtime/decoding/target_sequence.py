"""One sequence as the target sees it: its KV cache, the attention metadata of its proposals, and its random numbers."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from treeopt.arrays import Bool
from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.drafter import Proposal, SideTokens, Step
from treeopt.runtime.models.model import HiddenStates, LanguageModel, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree

CACHED_MASKS = 16
"""Trees whose attention masks are kept."""

whole_tree = lru_cache(maxsize=CACHED_MASKS)(PassNodes.whole)


class TargetSequence:
    """The target's state for one sequence; `begin` reuses it for the next sequence."""

    def __init__(self, target: LanguageModel, cache: Any, requested_states: RequestedStates) -> None:
        self.target = target
        self.cache = cache
        self.generator = torch.Generator(target.device)
        self.tokens: list[int] = []
        """Tokens before the last step, prompt included."""
        self.step_tokens: list[int] = []
        """Tokens that the last step committed."""
        self._requested_states = requested_states
        self._last_nodes: PassNodes | None = None
        self._last_tree: TokenTree | None = None
        self._last_visible: Bool | None = None

    def begin(self, tokens: Sequence[int], seed: int) -> HiddenStates | None:
        """Prefill all tokens but the last, which is the root, and return the hidden states that the drafter reads."""
        self.generator = torch.Generator(self.target.device).manual_seed(seed)
        self.cache.clear()
        self.tokens, self.step_tokens = list(tokens), []
        prefix = torch.tensor(tokens[:-1], dtype=torch.int64, device=self.target.device)
        return self.target.prefill(prefix, self.cache, self._requested_states)

    def feed(self, proposal: Proposal) -> SequenceInput:
        """Return the tree's tokens and the side tokens as input of one pass."""
        tokens, side = proposal.tokens, proposal.side
        if side is not None:
            tokens = torch.cat([tokens, side.tokens])
        return SequenceInput(self.cache, tokens.to(self.target.device), self._pass_nodes(proposal.tree, side))

    def commit(self, step: Step) -> None:
        """Keep the accepted path in the cache."""
        self.cache.commit(step.path)
        self.tokens += self.step_tokens
        self.step_tokens = step.tokens

    def reset(self) -> None:
        """Drop the sequence and zero its cache, after a pass that was not finite."""
        self.cache.clear()
        self.cache.zero_nodes()

    def _pass_nodes(self, tree: TokenTree, side: SideTokens | None) -> PassNodes:
        """Return the attention metadata of a proposal; the same object if tree and side mask are those of the last step.

        Raises InvalidValueError for tokens deeper than the target's trained length.
        """
        visible = None if side is None else side.visible
        if self._last_nodes is not None and self._last_tree is tree and self._last_visible is visible:
            return self._last_nodes
        nodes = whole_tree(tree) if side is None else tree_with_side_tokens(tree, side)
        deepest, longest = max(nodes.depth.tolist()), self.target.config.max_positions
        if deepest > longest:  # positions are prepared for twice the trained length
            raise InvalidValueError(
                f"drafter: expected tokens at most {longest} positions after the root, the trained length. "
                f"Got {deepest}: choose a smaller window or depth.",
                field="drafter",
            )
        self._last_nodes, self._last_tree, self._last_visible = nodes, tree, visible
        return nodes


def tree_with_side_tokens(tree: TokenTree, side: SideTokens) -> PassNodes:
    visible = join_masks(tree.ancestor_mask, side.visible)
    return PassNodes(visible=visible, depth=np.concatenate([tree.depth, side.depth]))


def join_masks(tree: Bool, side: Bool) -> Bool:
    """Return the attention mask of tree nodes followed by side tokens; no node sees a side token."""
    return np.vstack([np.hstack([tree, np.zeros((len(tree), len(side)), np.bool_)]), side])


def sequence_seed(seed: int, number: int) -> int:
    """Return the seed of a decoder's sequence; every number has its own."""
    return int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1, np.uint64)[0])
