"""Next-token distributions: what temperature, top-k and top-p make of logits."""

import torch
from torch import Tensor

from treeopt.records.sampling import Sampling

EPSILON = 1e-200
"""Added to probabilities of 0, which then rank after the smallest float32, 1e-45, with any noise."""


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return float32 (n, V): what tokens are sampled from, for a temperature above 0.

    `top_k` keeps so many of the likeliest tokens, and what is as likely as the last of them (Fan et al., 2018).  Of
    what is left, `top_p` keeps the likeliest tokens whose sum first reaches it (Holtzman et al., 2020).
    """
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    probs = torch.softmax(scores, dim=-1)
    if sampling.top_p >= 1.0:
        return probs
    ordered, tokens = probs.sort(dim=-1, descending=True, stable=True)
    ordered[ordered.cumsum(-1) - ordered >= sampling.top_p] = 0.0
    probs.scatter_(-1, tokens, ordered)
    return probs.div_(probs.sum(-1, keepdim=True))
