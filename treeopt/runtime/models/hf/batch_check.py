"""Whether a model computes in one pass over several sequences what it computes for each alone: tried when it is loaded."""

import torch
from torch import Tensor

from treeopt.runtime.models.hf.tree_check import TREE, difference, rms
from treeopt.runtime.models.model import Feed, LanguageModel
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import chain

TEXTS = ((8, TREE), (3, chain(0)), (0, chain(2)))
"""Committed tokens of each text, and the tree behind it."""


def why_separate_passes(model: LanguageModel, *, tolerance: float) -> str | None:
    """Return why sequences need a pass each, None if one pass over different lengths and trees gives the same logits.

    The difference (root mean square) may in each text be `tolerance` times as much as the logits after one token differ
    behind the two longest, which is what has to be kept apart.  A model that raises anything shares none.
    """
    try:
        together, alone = _logits(model)
    except Exception as error:  # noqa: BLE001, whatever an unknown model may raise
        return " ".join(f"its batched pass ended with {type(error).__name__}: {error}".split())[:300]
    effect = rms(difference(alone[0][0], alone[1][0]))
    differences = [rms(difference(*each)) for each in zip(together, alone, strict=True)]
    if all(each <= tolerance * effect for each in differences):  # NaN is not
        return None
    return "its batched pass gives other logits than a pass over each sequence"


@torch.inference_mode()
def _logits(model: LanguageModel) -> tuple[list[Tensor], list[Tensor]]:
    """Return the logits (n, V) after the nodes of each text, from one pass and from one for each."""
    most = max(tree.nodes for _, tree in TEXTS)
    noise, vocabulary = torch.Generator().manual_seed(1), model.config.vocabulary
    caches = model.new_caches(max(length for length, _ in TEXTS) + most, len(TEXTS))
    nodes = torch.randint(vocabulary, (most,), generator=noise).to(model.device)
    feeds = []
    for (length, tree), cache in zip(TEXTS, caches, strict=True):
        model.prefill(torch.randint(vocabulary, (length,), generator=noise).to(model.device), cache)
        feeds.append(Feed(cache, nodes[: tree.nodes], PassNodes.whole(tree)))
    alone = [model.forward([feed])[0].logits.float() for feed in feeds]
    return [output.logits.float() for output in model.forward(feeds)], alone
