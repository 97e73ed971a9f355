"""Inverse-CDF sampling: a token of each distribution by a number that is uniform on [0, 1)."""

import torch
from torch import Tensor


def uniform(generator: torch.Generator | None, count: int, device: torch.device) -> Tensor:
    """Return float64 (count,), uniform on [0, 1).

    They have 53 bits: a coarser grid favours the tail tokens of a large vocabulary.
    """
    return torch.rand(count, dtype=torch.float64, device=device, generator=generator)


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """Return int64 (..., k): the first token whose cumulative share of the weights (..., V) exceeds u, float64 (..., k).

    A token of weight 0 is never returned: where rounding leaves one, it is replaced by the last that has a weight.
    Weights that are all 0 or not finite give any token.  `kernels.inverse_cdf` is the same on the host.
    """
    cumulative = weights.double().cumsum(-1)
    tokens = torch.searchsorted(cumulative, u * cumulative[..., -1:], right=True).clamp_(max=weights.shape[-1] - 1)
    indices = torch.arange(weights.shape[-1], device=weights.device)
    last = torch.where(weights > 0, indices, 0).amax(-1, keepdim=True)
    return torch.where(weights.gather(-1, tokens) > 0, tokens, last)
