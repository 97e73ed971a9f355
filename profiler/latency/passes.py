"""The calls that are timed: the very passes and steps that decoding is made of."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.profiler.clock import Work
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import TextRequest, TextStep
from treeopt.runtime.drafters.eagle import EagleHead
from treeopt.runtime.models.model import Feed, LanguageModel
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.runner import Runner, pool_for
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


def probe_trees(max_nodes: int, max_depth: int | None = None, widest: int | None = None) -> tuple[TokenTree, ...]:
    """Return the probe trees that are no larger, deeper and wider than what can be drafted and verified; `chain(1)` at least.

    Args:
        max_nodes: of a pass.
        max_depth: most levels, at which deeper trees are cut; None for any.
        widest: most nodes of a level, to which wider ones are narrowed; None for any.
    """
    trees = []
    for tree in PROBE_TREES:
        widths = np.bincount(tree.depth)[1:][:max_depth]
        trees.append(level_widths(np.minimum(widths, widest or tree.nodes).tolist()))
    return tuple(dict.fromkeys(tree for tree in trees if tree.nodes <= max_nodes))


class PassTimer:
    """Makes the calls that are timed of one model, behind one context of so many texts: the passes that decoding shares.

    Each text has a cache and a length of its own.  Lengths move from call to call, because one that suits the hardware
    would time every pass too well.

    Args:
        model: whose passes are timed.
        text: the context, and ROOM_TOKENS behind it.
        batch_size: how many texts there are.
        most: tokens of the largest pass.
        cuda_graphs: whether passes are captured, by default on a CUDA device.
    """

    def __init__(
        self,
        model: LanguageModel | EagleHead,
        text: Sequence[int],
        batch_size: int,
        most: int,
        *,
        cuda_graphs: bool | None = None,
    ) -> None:
        tokens = torch.tensor(text, device=model.device)
        self._caches = model.new_caches(len(text) + most, batch_size)
        self._hidden = model.config.hidden if isinstance(model, EagleHead) else None
        for cache in self._caches:
            if isinstance(model, EagleHead):
                model.read(model.zero_states(len(text)), tokens, cache)
            else:
                model.prefill(tokens, cache)
        lengths = len(text) - np.random.default_rng(SEED).integers(ROOM_TOKENS, size=1000)
        self._lengths = cycle(lengths.tolist())
        self._device = model.device
        self._runner = Runner(model, max_nodes=most, pool=pool_for(model.device, cuda_graphs))

    def verify(self, nodes: int, sampling: Sampling) -> Work:
        """Return the work of verifying a root with nodes - 1 children, until the host knows what the target says."""
        tree = level_widths([nodes - 1]) if nodes > 1 else chain(0)
        run = self._pass(PassNodes.whole(tree))

        @torch.inference_mode()
        def work() -> object:
            if sampling.greedy:
                return run().argmax(-1).tolist()
            return distribution(run(), sampling)[-1, -1].item()

        return work

    def draft(self, width: int, sampling: Sampling, rule: Rule) -> Work:
        """Return the work of one draft level: feed `width` sibling nodes, draw children of each.

        A node alone on its level mostly has one child, several have about two each in good trees.
        """
        run = self._pass(PassNodes(visible=np.eye(width, dtype=np.bool_), depth=np.zeros(width, np.int64)))
        wanted = places([1 if width == 1 else 2] * width * len(self._caches), self._device)
        generator = torch.Generator(self._device).manual_seed(0)

        @torch.inference_mode()
        def work() -> object:
            if sampling.greedy or not rule.random_drafts:
                return likeliest(run(), wanted)
            return rule.draw(distribution(run(), sampling)[None], wanted, [generator])

        return work

    def _pass(self, nodes: PassNodes) -> Callable[[], Tensor]:
        """Return what runs one pass over these nodes of every text, and returns all logits, joined as a decoder does."""
        tokens = torch.zeros(nodes.rows, dtype=torch.int64, device=self._device)
        feedback = None if self._hidden is None else torch.zeros((nodes.rows, self._hidden), device=self._device)
        inputs = None if feedback is None else feedback.to(self._runner.model.dtype)
        feeds = [Feed(cache, tokens, nodes, inputs) for cache in self._caches]

        def run() -> Tensor:
            for cache in self._caches:
                cache.length = next(self._lengths)
            return self._runner.forward(feeds).logits

        return run


class StepTimer(Protocol):
    """Whole steps of one decoder behind one context, with any of the probe trees."""

    def prepare(self, tree: TokenTree) -> None:
        """Take a tree, and go back to the context, one step past it, where there is no room for two more steps."""

    def step(self) -> None:
        """Decode one step."""


ChangeTree = Callable[[TokenTree], object]
"""Has the steps of a decoder draft another tree."""


def step_timer(
    decoder: Decoder, context: Sequence[int], batch_size: int, change_tree: ChangeTree | None = None
) -> StepTimer:
    """Return the steps of so many texts behind a context; the decoder has room for ROOM_TOKENS behind it.

    Trees are changed by the decoder, or by a drafter of its own.
    """
    change = change_tree or decoder.change_tree
    if batch_size == 1:
        return TextSteps(decoder, context, change)
    return BatchSteps(decoder, unlike_prompts(context, batch_size), change)


def unlike_prompts(context: Sequence[int], batch_size: int) -> list[Sequence[int]]:
    """Return beginnings of a context, of unlike lengths."""
    shorter = (ROOM_TOKENS // 2 * number // batch_size for number in range(batch_size))
    return [context[: max(1, len(context) - tokens)] for tokens in shorter]


class TextSteps:
    """The steps of a single text."""

    def __init__(self, decoder: Decoder, context: Sequence[int], change_tree: ChangeTree) -> None:
        self._decoder = decoder
        self._context = context
        self._change_tree = change_tree
        self._room_tokens = 0

    def prepare(self, tree: TokenTree) -> None:
        self._change_tree(tree)
        if self._room_tokens <= 2 * tree.max_depth + 1:
            self._decoder.start(self._context)
            self._room_tokens = self._decoder.max_text_tokens - len(self._context)
            self.step()

    def step(self) -> None:
        self._room_tokens -= len(self._decoder.step().tokens)


class BatchSteps:
    """The steps of several texts at a time, behind a prompt each, all with one tree."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], change_tree: ChangeTree) -> None:
        self._decoder = decoder
        self._prompts = prompts
        self._change_tree = change_tree
        self._steps: Iterator[TextStep] = iter(())
        self._room_tokens = 0

    def prepare(self, tree: TokenTree) -> None:
        self._change_tree(tree)
        if self._room_tokens <= 2 * tree.max_depth + 1:
            self._begin()
            self.step()

    def step(self) -> None:
        """See `StepTimer`; raises what a text could not be decoded for."""
        found = list(islice(self._steps, len(self._prompts)))  # each text has a part in each step
        for each in found:
            if each.error is not None:
                raise each.error
        self._room_tokens -= max(len(each.tokens) for each in found)

    def _begin(self) -> None:
        self._steps = iter(())  # ends the texts that were decoded, so that their caches are free
        longest = self._decoder.max_text_tokens
        requests = [TextRequest(each, longest - len(each), ignore_end_tokens=True) for each in self._prompts]
        self._room_tokens = min(each.max_new_tokens for each in requests)
        self._steps = self._decoder.steps_of_all(requests, batch_size=len(self._prompts))
