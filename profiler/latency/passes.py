"""The calls that are timed: the very passes and steps that decoding is made of."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from treeopt.profiler.clock import Work
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.graphs import passes_over, pool_for
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.passes import PassNodes
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.sample_children import likeliest, places
from treeopt.trees import TokenTree, chain, level_widths

PROBE_TREES = (
    chain(1),
    chain(2),
    chain(5),
    chain(10),
    level_widths([3, 3, 2, 1]),
    level_widths([4, 6, 6, 4, 3, 2]),
    level_widths([8, 12, 12, 8, 8, 4, 4, 4, 2, 1]),
)
"""Trees whose whole steps are timed, to find what a step costs beside its passes."""
ROOM_TOKENS = 64
"""Tokens behind the context over which the texts of timed calls end, as those of decoding end anywhere."""
SEED = 0


class PassTimer:
    """Makes the calls that are timed of one model, behind one context of so many equal texts.

    The text's length moves from call to call, because a length that suits the hardware would time every pass too well.

    Args:
        model: whose passes are timed.
        text: the context, and ROOM_TOKENS behind it.
        batch_size: how many equal texts there are.
        most: tokens of the largest pass.
        cuda_graphs: whether the passes of a single text are captured, by default on a CUDA device.
    """

    def __init__(
        self,
        model: LanguageModel,
        text: Sequence[int],
        batch_size: int,
        most: int,
        *,
        cuda_graphs: bool | None = None,
    ) -> None:
        self._cache = cache = model.new_cache(len(text) + most, batch_size)
        model.prefill(self._texts(torch.tensor(text, device=model.device), batch_size), cache)
        lengths = len(text) - np.random.default_rng(SEED).integers(ROOM_TOKENS, size=1000)
        self._lengths = cycle(lengths.tolist())
        self._device = model.device
        self._batch_size = batch_size
        # only a single text's passes can be captured as graphs, as decoding does
        pool = pool_for(model.device, cuda_graphs) if batch_size == 1 else None
        self._passes = passes_over(model, cache, capacity=len(text), max_nodes=most, pool=pool)

    def verify(self, nodes: int, sampling: Sampling) -> Work:
        """Return the work of verifying a root with nodes - 1 children, until the host knows what the target says."""
        tree = level_widths([nodes - 1]) if nodes > 1 else chain(0)
        (run,) = self._passes.make([PassNodes.whole(tree)])
        tokens = self._tokens(nodes)

        @torch.inference_mode()
        def work() -> object:
            self._cache.length = next(self._lengths)
            logits = run(tokens).logits
            if sampling.greedy:
                return logits.argmax(-1).tolist()
            return distribution(logits.flatten(0, -2), sampling)[-1, -1].item()

        return work

    def draft(self, width: int, sampling: Sampling, rule: Rule) -> Work:
        """Return the work of one draft level: feed `width` sibling nodes, draw children of each.

        A node alone on its level mostly has one child, several have about two each in good trees.
        """
        (run,) = self._passes.make([PassNodes(visible=np.eye(width, dtype=np.bool_), depth=np.zeros(width, np.int64))])
        tokens = self._tokens(width)
        wanted = places([1 if width == 1 else 2] * (width * self._batch_size), self._device)
        generator = torch.Generator(self._device).manual_seed(0)

        @torch.inference_mode()
        def work() -> object:
            self._cache.length = next(self._lengths)
            logits = run(tokens).logits.flatten(0, -2)
            if sampling.greedy or not rule.random_drafts:
                return likeliest(logits, wanted)
            return rule.draw(distribution(logits, sampling), wanted, generator)

        return work

    def _tokens(self, count: int) -> Tensor:
        return self._texts(torch.zeros(count, dtype=torch.int64, device=self._device), self._batch_size)

    @staticmethod
    def _texts(tokens: Tensor, batch_size: int) -> Tensor:
        return tokens if batch_size == 1 else tokens.expand(batch_size, -1).contiguous()


class StepTimer:
    """Whole steps of one decoder behind one context, with any of the probe trees."""

    def __init__(self, decoder: Decoder, context: Sequence[int]) -> None:
        self._decoder = decoder
        self._context = context
        self._room_tokens = 0

    def prepare(self, tree: TokenTree) -> None:
        """Take a tree, and go back to the context, one step past it, where there is no room for two more steps."""
        if tree != self._decoder.tree:
            self._decoder.change_tree(tree)
        if self._room_tokens <= 2 * tree.max_depth + 1:
            self._decoder.start(self._context)
            self._room_tokens = self._decoder.max_text_tokens - len(self._context)
            self.step()

    def step(self) -> None:
        """Decode one step."""
        self._room_tokens -= len(self._decoder.step().tokens)
