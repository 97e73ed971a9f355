"""The calls that are timed: the very passes and steps that decoding is made of."""

from collections.abc import Sequence

import numpy as np
import torch

from treeopt.latency import LatencyTable
from treeopt.profiler.clock import Work
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.cache import KVCache
from treeopt.runtime.drawing import likeliest, places
from treeopt.runtime.rules import Rule
from treeopt.runtime.sampling import law
from treeopt.runtime.tree_pass import Passes, PassNodes
from treeopt.sampling import Sampling
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


def verify_pass(passes: Passes, device: torch.device, nodes: int, sampling: Sampling) -> Work:
    """Return the work of verifying a root with nodes - 1 children, until the host knows what the target says."""
    tree = level_widths([nodes - 1]) if nodes > 1 else chain(0)
    (run,) = passes.make([PassNodes(visible=tree.ancestor_mask, depth=tree.depth)])
    tokens = torch.zeros(nodes, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def work() -> object:
        logits = run(tokens)
        if sampling.greedy:
            return logits.argmax(-1).tolist()
        return law(logits, sampling)[-1, -1].item()

    return work


def draft_pass(passes: Passes, device: torch.device, width: int, sampling: Sampling, rule: Rule) -> Work:
    """Return the work of one draft level: feed `width` sibling nodes, draw the children of each."""
    (run,) = passes.make([PassNodes(visible=np.eye(width, dtype=np.bool_), depth=np.zeros(width, np.int64))])
    tokens = torch.zeros(width, dtype=torch.int64, device=device)
    wanted = places([CHILDREN] * width, device)
    generator = torch.Generator(device).manual_seed(0)

    @torch.inference_mode()
    def work() -> object:
        logits = run(tokens)
        if sampling.greedy or not rule.random_drafts:
            return likeliest(logits, wanted)
        return rule.draw(law(logits, sampling), wanted, generator)

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
