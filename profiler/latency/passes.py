"""The calls that are timed: passes and steps as they occur in decoding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor

from treeopt.profiler.clock import Work
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.decoding.batch import GenerationRequest, RequestOutput
from treeopt.runtime.drafters.eagle import EagleHead
from treeopt.runtime.models.model import HiddenStates, LanguageModel, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.runner import Runner, make_graph_pool
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.sample_children import index_children, take_likeliest
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
"""Trees whose whole steps are timed, to find the host overhead of a step."""

ROOM_TOKENS = 64
"""Tokens after the context in which the lengths of timed sequences vary, as they do in decoding."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPoint:
    """The operating point of timed calls."""

    context_tokens: int
    batch_size: int
    sampling: Sampling

    def kind(self, call: str) -> str:
        """Return the checkpoint's name for samples of `verify`, `draft`, `step` or `host`."""
        return f"{call} {self.context_tokens}x{self.batch_size} {'greedy' if self.sampling.greedy else 'sampled'}"


def probe_trees(max_nodes: int, max_depth: int | None = None, widest: int | None = None) -> tuple[TokenTree, ...]:
    """Return the probe trees that a drafter can draft and a pass can verify, at least `chain(1)`.

    Args:
        max_nodes: of a pass; larger trees are left out.
        max_depth: deeper trees are cut; None for no limit.
        widest: wider levels are narrowed; None for no limit.
    """
    trees = []
    for tree in PROBE_TREES:
        widths = np.bincount(tree.depth)[1:][:max_depth]
        trees.append(level_widths(np.minimum(widths, widest or tree.nodes).tolist()))
    return tuple(dict.fromkeys(tree for tree in trees if tree.nodes <= max_nodes))


def zero_states(target: Transformer, requested: RequestedStates, tokens: int) -> HiddenStates:
    """Return hidden states of zeros at `tokens` tokens: times do not depend on their values."""
    zeros = torch.zeros((tokens, target.config.hidden), dtype=target.dtype, device=target.device)
    return HiddenStates((zeros,) * len(requested.layer_ids), zeros if requested.last else None)


class ModelPasses:
    """The passes of one model after one context, as decoding runs them.

    Each sequence has its own cache and length.  Lengths change from call to call, because one length that suits the
    hardware would make every pass look fast.

    Args:
        model: whose passes are timed.
        tokens: the context, and ROOM_TOKENS more.
        batch_size: number of sequences.
        max_tokens: of the largest pass.
        cuda_graphs: whether passes are captured, by default on a CUDA device.
    """

    def __init__(
        self,
        model: LanguageModel | EagleHead,
        tokens: Sequence[int],
        batch_size: int,
        max_tokens: int,
        *,
        cuda_graphs: bool | None = None,
    ) -> None:
        context = torch.tensor(tokens, device=model.device)
        self._caches = model.new_caches(len(tokens) + max_tokens, batch_size)
        self._hidden = model.config.hidden if isinstance(model, EagleHead) else None
        for cache in self._caches:
            if isinstance(model, EagleHead):
                model.read(zero_states(model.target, model.requested_states, len(tokens)), context, cache)
            else:
                model.prefill(context, cache)
        lengths = len(tokens) - np.random.default_rng(SEED).integers(ROOM_TOKENS, size=1000)
        self._lengths = cycle(lengths.tolist())
        self._device = model.device
        self._runner = Runner(model, max_nodes=max_tokens, pool=make_graph_pool(model.device, cuda_graphs))

    def verify(self, nodes: int, sampling: Sampling) -> Work:
        """Return the work of verifying a root with nodes - 1 children, until the result is on the host."""
        tree = level_widths([nodes - 1]) if nodes > 1 else chain(0)
        run = self._pass(PassNodes.whole(tree))

        @torch.inference_mode()
        def work() -> object:
            if sampling.greedy:
                return run().argmax(-1).tolist()
            return distribution(run(), sampling)[-1, -1].item()

        return work

    def draft(self, width: int, sampling: Sampling, rule: Rule) -> Work:
        """Return the work of drafting a level: a pass over `width` siblings, and children of each.

        A single node gets one child and several nodes two each, as in typical good trees.
        """
        run = self._pass(PassNodes(visible=np.eye(width, dtype=np.bool_), depth=np.zeros(width, np.int64)))
        children = index_children([1 if width == 1 else 2] * width * len(self._caches), self._device)
        generator = torch.Generator(self._device).manual_seed(0)

        @torch.inference_mode()
        def work() -> object:
            if sampling.greedy or not rule.random_drafts:
                return take_likeliest(run(), children)
            return rule.draw(distribution(run(), sampling)[None], children, [generator])

        return work

    def draft_levels(self, levels: int, count: int) -> Work:
        """Return the work of drafting a number of levels in one pass: a slot and the `count` likeliest tokens of each."""
        run = self._pass(PassNodes.chain(levels))

        @torch.inference_mode()
        def work() -> object:
            return run().topk(count)

        return work

    def _pass(self, nodes: PassNodes) -> Callable[[], Tensor]:
        """Return a function that runs one batched pass over these nodes of every sequence and returns the logits."""
        tokens = torch.zeros(nodes.rows, dtype=torch.int64, device=self._device)
        feedback = None if self._hidden is None else torch.zeros((nodes.rows, self._hidden), device=self._device)
        features = None if feedback is None else feedback.to(self._runner.model.dtype)
        inputs = [SequenceInput(cache, tokens, nodes, features) for cache in self._caches]

        def run() -> Tensor:
            for cache in self._caches:
                cache.length = next(self._lengths)
            return self._runner.forward(inputs).logits

        return run


class DecodingSteps:
    """The steps of a batch after a context, all with one tree, as decoding makes them.

    Args:
        decoder: with room for ROOM_TOKENS more than the context.
        context: the sequences are beginnings of it, of different lengths.
        batch_size: number of sequences.
        change_tree: switches the decoder's tree; by default that of the decoder.
    """

    def __init__(
        self,
        decoder: Decoder,
        context: Sequence[int],
        batch_size: int,
        change_tree: Callable[[TokenTree], object] | None = None,
    ) -> None:
        self.decoder = decoder
        self._change_tree = change_tree or decoder.change_tree
        shorter = (ROOM_TOKENS // 2 * number // batch_size for number in range(batch_size))
        self._prompts = [context[: max(1, len(context) - tokens)] for tokens in shorter]
        self._outputs: Iterator[RequestOutput] = iter(())
        self._room_tokens = 0

    def prepare(self, tree: TokenTree) -> None:
        """Switch the tree, and restart one step after the context if there is no room for two more steps."""
        self._change_tree(tree)
        if self._room_tokens <= 2 * tree.max_depth + 1:
            self._start()
            self.step()

    def step(self) -> None:
        """Decode one step; raises the error of a sequence that could not be decoded."""
        if len(self._prompts) == 1:
            self._room_tokens -= len(self.decoder.step().tokens)
            return
        outputs = list(islice(self._outputs, len(self._prompts)))  # a step yields one output per sequence
        for output in outputs:
            if output.error is not None:
                raise output.error
        self._room_tokens -= max(len(output.tokens) for output in outputs)

    def _start(self) -> None:
        max_tokens, prompts = self.decoder.max_sequence_tokens, self._prompts
        self._room_tokens = max_tokens - max(map(len, prompts))
        if len(prompts) == 1:
            self.decoder.start(prompts[0])
            return
        self._outputs = iter(())  # ends the running sequences, which frees their caches
        requests = [GenerationRequest(prompt, max_tokens - len(prompt), ignore_end_tokens=True) for prompt in prompts]
        self._outputs = self.decoder.stream_all(requests, batch_size=len(prompts))
