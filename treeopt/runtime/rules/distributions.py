"""Next-token distributions, and inverse-CDF sampling from them."""

import torch
from torch import Tensor

from treeopt.records.sampling import Sampling

EPSILON = 1e-200
"""Added to probabilities of 0, which then still rank after the smallest float32, 1e-45, in an exponential race."""


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return float32 (n, V), the distribution that tokens are sampled from; the temperature must be above 0.

    `top_k` keeps the k most likely tokens and ties with the last of them (Fan et al., 2018).  Of those, `top_p` keeps
    the smallest set of most likely tokens whose probabilities sum to at least `top_p` (Holtzman et al., 2020).
    """
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        threshold = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < threshold, float("-inf"))
    probs = torch.softmax(scores, dim=-1)
    if sampling.top_p >= 1.0:
        return probs
    ordered, tokens = probs.sort(dim=-1, descending=True, stable=True)
    ordered[ordered.cumsum(-1) - ordered >= sampling.top_p] = 0.0
    probs.scatter_(-1, tokens, ordered)
    return probs.div_(probs.sum(-1, keepdim=True))


def uniform(generator: torch.Generator | None, count: int, device: torch.device) -> Tensor:
    """Return float64 (count,), uniform on [0, 1) with 53 bits: fewer favour the tail tokens of a large vocabulary."""
    return torch.rand(count, dtype=torch.float64, device=device, generator=generator)


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """Return int64 (..., k): the first token whose cumulative share of the weights (..., V) exceeds u, float64 (..., k).

    A token of weight 0 is never returned: if rounding selects one, it is replaced by the last with a weight above 0.
    Weights that are all 0 or not finite give any token.  `kernels.inverse_cdf` does the same on the host.
    """
    cumulative = weights.double().cumsum(-1)
    tokens = torch.searchsorted(cumulative, u * cumulative[..., -1:], right=True).clamp_(max=weights.shape[-1] - 1)
    indices = torch.arange(weights.shape[-1], device=weights.device)
    last = torch.where(weights > 0, indices, 0).amax(-1, keepdim=True)
    return torch.where(weights.gather(-1, tokens) > 0, tokens, last)
