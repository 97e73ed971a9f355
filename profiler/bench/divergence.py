"""Where two greedy texts of one model part: at a near-tie of the two top logits, or for another reason.

A pass over many tokens rounds otherwise than a pass over one, so where two tokens are equally likely but for rounding,
either may win.  Anything else is a fault of the program.
"""

from collections.abc import Sequence

import torch

from treeopt.profiler.bench.text_divergence import NEAR_TIE_ULPS
from treeopt.records.results import Divergence
from treeopt.runtime.models.model import LanguageModel


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
    top = logits.topk(2)
    gap = float(top.values[0] - logits[[plain[place], other[place]]].min())
    step = torch.finfo(target.dtype).eps * float(top.values.abs().max())
    two = {plain[place], other[place]} == set(top.indices.tolist())
    return Divergence(prompt=number, place=place, gap=gap, near_tie=two and gap <= NEAR_TIE_ULPS * step)


@torch.inference_mode()
def logits_after(model: LanguageModel, text: Sequence[int]) -> torch.Tensor:
    """Return float32 (V,): a model's logits after a text."""
    cache = model.new_cache(len(text))
    tokens = torch.tensor(text, device=model.device)
    model.prefill(tokens[:-1], cache)
    position = torch.tensor([len(text) - 1], device=model.device)
    return model.forward(tokens[-1:], position, cache, None).logits[0].float()
