"""Sampling the children of tree nodes from the draft's distribution, in the way of each verification rule."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.rules.distributions import EPSILON
from treeopt.runtime.rules.inverse_cdf import inverse_cdf, uniform

KERNEL_DTYPES = torch.float32, torch.float64


class Places(NamedTuple):
    """Which children of m nodes are wanted, node after node, as indices that the device can use at once."""

    node: Tensor
    """int64 (c,): row of the child's node."""
    rank: Tensor
    """int64 (c,): its rank there."""
    most: int
    """The most children of any node."""


SampleChildren = Callable[[Tensor, Places, Sequence[torch.Generator | None]], Tensor]
"""From distributions (B, m, V), the places wanted in each sequence, and its generator to tokens, int64 (B, c)."""


def places(counts: Sequence[int], device: torch.device) -> Places:
    """Return the places of so many children of each node.

    >>> places([2, 0, 1], torch.device("cpu"))
    Places(node=tensor([0, 0, 2]), rank=tensor([0, 1, 0]), most=2)
    """
    wanted = [(node, rank) for node, count in enumerate(counts) for rank in range(count)]
    index = torch.tensor(wanted, dtype=torch.int64, device=device).reshape(-1, 2)
    return Places(index[:, 0].contiguous(), index[:, 1].contiguous(), max(counts, default=0))


def likeliest(distribution: Tensor, wanted: Places, generators: Sequence[torch.Generator | None] = ()) -> Tensor:  # noqa: ARG001
    """Return the likeliest tokens, the likeliest first, of (..., m, V); logits serve as well as distributions."""
    return chosen(likeliest_of_rows(distribution, wanted.most)[1], wanted)


def likeliest_of_rows(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest entry of every row, (..., m), NaN where one is NaN, and the likeliest tokens, (..., m, count)."""
    if count == 1:  # which is what most levels are
        largest, tokens = scores.max(-1, keepdim=True)
    else:
        largest, tokens = scores.topk(count)
    return largest[..., 0], tokens


def chosen(tokens: Tensor, wanted: Places) -> Tensor:
    """Return those of the tokens of every node by rank, (..., m, most), that are wanted, (..., c)."""
    if len(wanted.node) == tokens.shape[-2] * tokens.shape[-1]:
        return tokens.flatten(-2)
    return tokens[..., wanted.node, wanted.rank]


def with_replacement(distribution: Tensor, wanted: Places, generators: Sequence[torch.Generator | None]) -> Tensor:
    """Return independent draws; siblings may be alike (Miao et al., 2024)."""
    if distribution.device.type == "cpu":
        return sample_on_host(distribution, wanted, generators, replace=True)
    return by_inverse_cdf(distribution, wanted, generators)


def without_replacement(distribution: Tensor, wanted: Places, generators: Sequence[torch.Generator | None]) -> Tensor:
    """Return draws of which no two siblings are alike (Chen et al., 2024, Algorithm 2).

    Where a distribution has fewer tokens than are wanted, the rest is sampled uniformly from the tokens not yet sampled.
    """
    if distribution.device.type == "cpu":
        return sample_on_host(distribution, wanted, generators, replace=False)
    if wanted.most == 1:
        return by_inverse_cdf(distribution, wanted, generators)
    return gumbel_top_k(distribution, wanted, generators)


def sample_on_host(
    distribution: Tensor, wanted: Places, generators: Sequence[torch.Generator | None], *, replace: bool
) -> Tensor:
    """Sample one child after the other by inverse CDF, siblings that are sampled taken out unless they are replaced."""
    from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding does without

    u = torch.stack([uniform(generator, len(wanted.node), distribution.device) for generator in generators])
    tokens = torch.empty(u.shape, dtype=torch.int64)
    probs = distribution if distribution.dtype in KERNEL_DTYPES else distribution.float()
    kernels.sample_children(probs.contiguous().numpy(), wanted.node.numpy(), u.numpy(), replace, tokens.numpy())
    return tokens


def by_inverse_cdf(distribution: Tensor, wanted: Places, generators: Sequence[torch.Generator | None]) -> Tensor:
    """Return independent draws with tensors; a distribution that is not finite gives any tokens and no error."""
    count = distribution.shape[1] * wanted.most
    u = torch.stack([uniform(generator, count, distribution.device) for generator in generators])
    return chosen(inverse_cdf(distribution, u.view(len(distribution), -1, wanted.most)), wanted)


def gumbel_top_k(distribution: Tensor, wanted: Places, generators: Sequence[torch.Generator | None]) -> Tensor:
    """Return draws without replacement with tensors, all siblings at once.

    Token x gets the key distribution[x] / E with E exponential; the largest keys are the draws, which are those of the
    Gumbel top-k trick (Kool et al., 2019).  Tokens of no probability come last, in uniformly random order.
    """
    noise = torch.empty(distribution.shape, dtype=torch.float64, device=distribution.device)
    for sequence, generator in zip(noise, generators, strict=True):
        sequence.uniform_(generator=generator)
    return likeliest((distribution.double() + EPSILON).div_(noise.log_().neg_()), wanted)


def check_counts(distribution: Tensor, counts: Tensor) -> None:
    """Raise InvalidValueError for counts that do not fit the distributions."""
    if distribution.ndim != 2 or counts.shape != distribution.shape[:1]:
        raise InvalidValueError(
            f"draft_probs, counts: expected (m, V) and (m,). Got {tuple(distribution.shape)}, {tuple(counts.shape)}."
        )
    most = int(counts.max()) if len(counts) else 0
    if most > distribution.shape[1]:
        raise InvalidValueError(f"counts: expected at most {distribution.shape[1]}, the vocabulary. Got {most}.")


def check_finite(name: str, probs: Tensor) -> None:
    """Raise InvalidValueError for probabilities that are NaN or infinite."""
    if not bool(probs.isfinite().all()):
        raise InvalidValueError(
            f"{name}: expected finite probabilities. Got NaN or infinity: check the model's logits."
        )
