"""The target at one text: its cache, the nodes of its proposals, and the noise of the text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from treeopt.runtime.decoding.observer import DecodedStep, Observer, StepSeconds
from treeopt.runtime.decoding.proposal_nodes import ProposalNodes
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.models.model import Feed, LanguageModel, States, Wants


class TargetText:
    """The target at one text; once that has ended, at another.

    Args:
        target: the model that verifies.
        cache: of one text.
        wants: hidden states that the drafter reads.
    """

    def __init__(self, target: LanguageModel, cache: Any, wants: Wants) -> None:
        self._target = target
        self._wants = wants
        self.cache = cache
        self._nodes = ProposalNodes(target.config.max_positions)
        self.noise = torch.Generator(target.device)
        self._tokens: list[int] = []

    def begin(self, tokens: Sequence[int], seed: int) -> States | None:
        """Fill the cache with all of a text but the last token, the root, and return the states wanted."""
        self.noise = torch.Generator(self._target.device).manual_seed(seed)
        self.cache.clear()
        self._tokens = list(tokens)
        text = torch.tensor(tokens[:-1], dtype=torch.int64, device=self._target.device)
        return self._target.prefill(text, self.cache, self._wants)

    def feed(self, proposal: Proposal) -> Feed:
        """Return every token of a proposal, to be verified."""
        tokens, side = proposal.tokens, proposal.side
        if side is not None:
            tokens = torch.cat([tokens, side.tokens])
        return Feed(self.cache, tokens.to(self._target.device), self._nodes.of(proposal))

    def tell(
        self, observer: Observer, number: int, proposal: Proposal, step: Step, seconds: StepSeconds | None
    ) -> None:
        """Tell an observer of a step of the text, which has this number."""
        observer(DecodedStep(number, self._tokens, proposal, step, seconds))
        self._tokens += step.tokens

    def forget(self) -> None:
        """Forget a text behind which something is not finite."""
        self.cache.clear()
        self.cache.zero_nodes()


def text_seed(seed: int, text: int) -> int:
    """Return the seed of a decoder's text by its number, which no other text of the decoder has."""
    return int(np.random.SeedSequence([seed % 2**64, text]).generate_state(1, np.uint64)[0])
