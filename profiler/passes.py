"""The calls that are timed: the very passes and steps that decoding is made of."""

from collections.abc import Sequence

import torch

from treeopt.latency import LatencyTable
from treeopt.profiler.clock import Work
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.cache import KVCache
from treeopt.runtime.mask import TreeMask
from treeopt.runtime.sampling import draw, likeliest, probabilities
from treeopt.trees import chain, level_widths

PROBE_TREES = (chain(1), chain(2), chain(5), level_widths([3, 3, 2, 1]), level_widths([4, 6, 6, 4, 3, 2]))
"""Trees whose whole steps are timed, to find what a step costs beside its passes."""
CHILDREN = 2
"""Children drawn per node where a draft level is timed: what good trees have on average is between 1 and 3."""


def filled_cache(model: Transformer, context: Sequence[int], most: int) -> KVCache:
    """Return a cache that holds the context, with room for `most` tree nodes."""
    cache = model.new_cache(len(context) + most)
    model.prefill(torch.tensor(context, device=model.device), cache)
    return cache


def verify_pass(target: Transformer, cache: KVCache, nodes: int, temperature: float, top_p: float) -> Work:
    """Return the work of verifying a root with nodes - 1 children, until the host knows what the target says."""
    tree = level_widths([nodes - 1]) if nodes > 1 else chain(0)
    tokens, positions, mask = _inputs(target, cache, torch.from_numpy(tree.ancestor_mask), nodes)

    @torch.inference_mode()
    def work() -> object:
        logits = target.forward(tokens, positions, cache, mask)
        if temperature == 0:
            return logits.argmax(-1).tolist()
        return probabilities(logits, temperature, top_p)[-1, -1].item()

    return work


def draft_pass(draft: Transformer, cache: KVCache, width: int, temperature: float, rule: str) -> Work:
    """Return the work of one draft level: feed `width` sibling nodes, draw the children of each."""
    tokens, positions, mask = _inputs(draft, cache, torch.eye(width, dtype=torch.bool), width)
    counts = torch.full((width,), CHILDREN, device=draft.device)
    generator = torch.Generator(draft.device).manual_seed(0)

    @torch.inference_mode()
    def work() -> object:
        logits = draft.forward(tokens, positions, cache, mask)
        if temperature == 0:
            return likeliest(logits, counts, CHILDREN)
        return draw(rule, probabilities(logits, temperature), counts, generator)

    return work


class StepProbe:
    """Whole steps of a decoder on a context, and what their passes alone would take."""

    def __init__(self, decoder: Decoder, context: Sequence[int]) -> None:
        self._decoder = decoder
        self._context = context
        self._room_tokens = 0

    def prepare(self) -> None:
        """Go back to the context, one step past it, when the text has no room for two more steps."""
        if self._room_tokens <= 2 * self._decoder.tree.max_depth + 1:
            self._decoder.start(self._context)
            self._room_tokens = self._decoder.max_text_tokens - len(self._context)
            self.step()

    def step(self) -> None:
        """Decode one step."""
        self._room_tokens -= len(self._decoder.step())

    def passes_s(self, verify: LatencyTable, draft: LatencyTable) -> float:
        """Return the median seconds of the passes that a step is made of."""
        tree = self._decoder.tree
        return float(verify.seconds(tree.nodes)) + float(draft.seconds(tree.draft_widths).sum())


def _inputs(
    model: Transformer, cache: KVCache, visible: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    tokens = torch.arange(count, device=model.device) % model.config.vocabulary
    positions = torch.full((count,), cache.length, device=model.device)
    mask = TreeMask(visible, cache.length, dtype=model.dtype, device=model.device)
    return tokens, positions, mask.behind(cache.length)
