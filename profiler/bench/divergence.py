"""Where two greedy outputs of one model diverge: at a near-tie of the top logits, or because of a fault.

A pass over many tokens rounds differently from a pass over one, so near-ties may go either way: with bfloat16 and 49,152
tokens sometimes among three tokens.  llama.cpp rounds activations to 8 bits where weights are quantised, though logits are
float32.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch

from treeopt.profiler.bench.output_divergence import NEAR_TIE_ULPS
from treeopt.records.results import Divergence
from treeopt.runtime.models.model import LanguageModel, SequenceInput

ROUNDING_DTYPES = {"f32": torch.float32, "f16": torch.float16}
"""How products with the weights of GGUF files round; all others round as bfloat16, which has 8 bits."""


def find_divergences(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    outputs: Mapping[int, Iterable[tuple[Sequence[int], Sequence[int]]]],
) -> tuple[Divergence, ...]:
    """Return for each prompt that has one the divergence of the first differing pair of outputs.

    Args:
        target: the model that decoded.
        prompts: token ids.
        outputs: pairs of outputs by prompt number.
    """
    first = (
        next((found for pair in pairs if (found := divergence(target, number, prompts[number], *pair))), None)
        for number, pairs in outputs.items()
    )
    return tuple(found for found in first if found is not None)


def divergence(
    target: LanguageModel, number: int, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Divergence | None:
    """Return the first difference of two continuations of a prompt, None if they are equal.

    Its logits are those of plain decoding: after a pass over the last common token alone.
    """
    place = next((i for i, (first, second) in enumerate(zip(plain, other, strict=False)) if first != second), None)
    if place is None and len(plain) == len(other):
        return None
    if place is None:  # one of them ends too early, which is not rounding
        return Divergence(prompt=number, position=min(len(plain), len(other)), gap=0.0, near_tie=False)
    logits = logits_after(target, [*prompt, *plain[:place]])
    gap = float(logits.max() - logits[[plain[place], other[place]]].min())
    step = torch.finfo(_rounding_dtype(target)).eps * float(logits.topk(2).values.abs().max())
    return Divergence(prompt=number, position=place, gap=gap, near_tie=gap <= NEAR_TIE_ULPS * step)


def _rounding_dtype(target: LanguageModel) -> torch.dtype:
    weight_dtype = getattr(target.config, "weight_dtype", None)  # of GGUF files only
    return target.dtype if weight_dtype is None else ROUNDING_DTYPES.get(weight_dtype, torch.bfloat16)


@torch.inference_mode()
def logits_after(model: LanguageModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return float32 (V,): a model's logits after some tokens."""
    (cache,) = model.new_caches(len(token_ids), 1)
    tokens = torch.tensor(token_ids, device=model.device)
    model.prefill(tokens[:-1], cache)
    return model.forward([SequenceInput.causal(cache, tokens[-1:])]).logits[0].float()
