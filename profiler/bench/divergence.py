"""Where two greedy texts of one model differ first: at a near-tie of the top logits, or for another reason.

A pass over many tokens rounds differently from a pass over one. Where tokens are equally likely except for rounding, any
of them may win: in bfloat16 and a vocabulary of 49,152 tokens, sometimes one of three. Anything else is a fault.
"""

from collections.abc import Sequence

import torch

from treeopt.profiler.bench.text_divergence import NEAR_TIE_ULPS
from treeopt.records.results import Divergence
from treeopt.runtime.models.model import LanguageModel, feed_text


def divergence(
    target: LanguageModel, number: int, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Divergence | None:
    """Return the first place where two continuations of a prompt differ, or None where they do not.

    The logits there are those of plain decoding: the common text, then a pass over its last token alone.
    """
    place = next((i for i, (ours, theirs) in enumerate(zip(plain, other, strict=False)) if ours != theirs), None)
    if place is None and len(plain) == len(other):
        return None
    if place is None:  # one of them ends too early, which no rounding explains
        return Divergence(prompt=number, place=min(len(plain), len(other)), gap=0.0, near_tie=False)
    logits = logits_after(target, [*prompt, *plain[:place]])
    gap = float(logits.max() - logits[[plain[place], other[place]]].min())
    step = torch.finfo(target.dtype).eps * float(logits.topk(2).values.abs().max())
    return Divergence(prompt=number, place=place, gap=gap, near_tie=gap <= NEAR_TIE_ULPS * step)


@torch.inference_mode()
def logits_after(model: LanguageModel, text: Sequence[int]) -> torch.Tensor:
    """Return float32 (V,): a model's logits after a text."""
    (cache,) = model.new_caches(len(text), 1)
    tokens = torch.tensor(text, device=model.device)
    model.prefill(tokens[:-1], cache)
    return model.forward([feed_text(cache, tokens[-1:])]).logits[0].float()
