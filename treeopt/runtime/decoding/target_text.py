"""The target at one text: its cache, its passes over proposals, and the noise of the text."""

from collections.abc import Sequence

import numpy as np
import torch

from treeopt.runtime.decoding.observer import DecodedStep, Observer, StepSeconds
from treeopt.runtime.decoding.prepared import PreparedTrees
from treeopt.runtime.decoding.setup import Setup
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.models.graphs import GraphPool, passes_over
from treeopt.runtime.models.model import States, TextCache, Wants
from treeopt.runtime.models.together import PassCall


class TargetText:
    """The target at one text; once that has ended, at another.

    Args:
        setup: models and limits of the decoder.
        cache: of one text.
        wants: hidden states that the drafter reads.
        pool: where passes are captured as graphs, or None to run them operation by operation.
    """

    def __init__(self, setup: Setup, cache: TextCache, wants: Wants, pool: GraphPool | None) -> None:
        self._target = setup.target
        self._wants = wants
        self.cache = cache
        self._passes = passes_over(
            setup.target,
            self.cache,
            capacity=setup.max_text_tokens,
            max_nodes=setup.max_nodes,
            pool=pool,
            wants=wants,
        )
        self.prepared = PreparedTrees(self._passes, trained=setup.target.config.max_positions)
        self.noise = torch.Generator(setup.target.device)
        self._tokens: list[int] = []

    def begin(self, tokens: Sequence[int], seed: int) -> States | None:
        """Fill the cache with all of a text but the last token, the root, and return the states wanted."""
        self.noise = torch.Generator(self._target.device).manual_seed(seed)
        self.cache.clear()
        self._tokens = list(tokens)
        text = torch.tensor(tokens[:-1], dtype=torch.int64, device=self._target.device)
        return self._target.prefill(text, self.cache, self._wants)

    def call(self, proposal: Proposal) -> PassCall:
        """Return the pass over every token of a proposal."""
        tokens, side = proposal.tokens, proposal.side
        if side is not None:
            tokens = torch.cat([tokens, side.tokens])
        run = self.prepared.of(proposal.tree, side).run
        return PassCall(run, tokens if tokens.device == self._target.device else tokens.to(self._target.device))

    def tell(
        self, observer: Observer, number: int, proposal: Proposal, step: Step, seconds: StepSeconds | None
    ) -> None:
        """Tell an observer of a step of the text, which has this number."""
        observer(DecodedStep(number, self._tokens, proposal, step, seconds))
        self._tokens += step.tokens

    def forget(self) -> None:
        """Forget a text behind which something is not finite."""
        self.cache.clear()
        self._passes.clean()


def text_seed(seed: int, text: int) -> int:
    """Return the seed of a decoder's text by its number, which no other text of the decoder has."""
    return int(np.random.SeedSequence([seed % 2**64, text]).generate_state(1, np.uint64)[0])
