"""Samples the children of tree nodes from the draft's distribution, as each verification rule requires."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.arguments import describe_value
from treeopt.errors import InvalidValueError
from treeopt.runtime.rules.distributions import EPSILON, inverse_cdf, uniform

KERNEL_DTYPES = torch.float32, torch.float64


class ChildIndices(NamedTuple):
    """The c children of m nodes, node after node, as index tensors on the device."""

    node: Tensor
    """int64 (c,): row of each child's parent."""
    rank: Tensor
    """int64 (c,): its rank among its siblings."""
    max_children: int
    """Of any node."""


SampleChildren = Callable[[Tensor, ChildIndices, Sequence[torch.Generator | None]], Tensor]
"""From distributions (B, m, V), the children of each sequence, and its generator to tokens, int64 (B, c)."""


def index_children(counts: Sequence[int], device: torch.device) -> ChildIndices:
    """Return the indices of `counts` children of each node.

    >>> index_children([2, 0, 1], torch.device("cpu"))
    ChildIndices(node=tensor([0, 0, 2]), rank=tensor([0, 1, 0]), max_children=2)
    """
    pairs = [(node, rank) for node, count in enumerate(counts) for rank in range(count)]
    index = torch.tensor(pairs, dtype=torch.int64, device=device).reshape(-1, 2)
    return ChildIndices(index[:, 0].contiguous(), index[:, 1].contiguous(), max(counts, default=0))


def take_likeliest(
    distribution: Tensor,
    children: ChildIndices,
    generators: Sequence[torch.Generator | None] = (),  # noqa: ARG001
) -> Tensor:
    """Return the most likely tokens of (..., m, V) in falling order; logits serve as well as distributions."""
    return select_children(top_tokens(distribution, children.max_children)[1], children)


def top_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest entry of every row, (..., m), NaN if one is NaN, and the top `count` tokens, (..., m, count)."""
    if count == 1:  # most levels; faster than topk
        largest, tokens = scores.max(-1, keepdim=True)
    else:
        largest, tokens = scores.topk(count)
    return largest[..., 0], tokens


def select_children(tokens: Tensor, children: ChildIndices) -> Tensor:
    """Return the tokens of the children, (..., c), from those of all nodes by rank, (..., m, max_children)."""
    if len(children.node) == tokens.shape[-2] * tokens.shape[-1]:
        return tokens.flatten(-2)
    return tokens[..., children.node, children.rank]


def sample_with_replacement(
    distribution: Tensor, children: ChildIndices, generators: Sequence[torch.Generator | None]
) -> Tensor:
    """Return independent samples; siblings may be equal (Miao et al., 2024)."""
    if distribution.device.type == "cpu":
        return sample_on_host(distribution, children, generators, replace=True)
    return sample_by_inverse_cdf(distribution, children, generators)


def sample_without_replacement(
    distribution: Tensor, children: ChildIndices, generators: Sequence[torch.Generator | None]
) -> Tensor:
    """Return samples that differ between siblings (Chen et al., 2024, Algorithm 2).

    If a node has more children than its distribution has tokens, the others are sampled uniformly from untried tokens.
    """
    if distribution.device.type == "cpu":
        return sample_on_host(distribution, children, generators, replace=False)
    if children.max_children == 1:
        return sample_by_inverse_cdf(distribution, children, generators)
    return sample_gumbel_top_k(distribution, children, generators)


def sample_on_host(
    distribution: Tensor, children: ChildIndices, generators: Sequence[torch.Generator | None], *, replace: bool
) -> Tensor:
    """Sample one child after the other by inverse CDF, with numba."""
    from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding needs none

    u = torch.stack([uniform(generator, len(children.node), distribution.device) for generator in generators])
    tokens = torch.empty(u.shape, dtype=torch.int64)
    probs = distribution if distribution.dtype in KERNEL_DTYPES else distribution.float()
    kernels.sample_children(probs.contiguous().numpy(), children.node.numpy(), u.numpy(), replace, tokens.numpy())
    return tokens


def sample_by_inverse_cdf(
    distribution: Tensor, children: ChildIndices, generators: Sequence[torch.Generator | None]
) -> Tensor:
    """Return independent samples, with tensor operations; a distribution that is not finite gives any tokens."""
    count = distribution.shape[1] * children.max_children
    u = torch.stack([uniform(generator, count, distribution.device) for generator in generators])
    return select_children(inverse_cdf(distribution, u.view(len(distribution), -1, children.max_children)), children)


def sample_gumbel_top_k(
    distribution: Tensor, children: ChildIndices, generators: Sequence[torch.Generator | None]
) -> Tensor:
    """Return samples without replacement, with tensor operations: all siblings in one exponential race.

    Token x has the key distribution[x] / E with E exponential; the tokens with the largest keys are the samples, as in
    the Gumbel top-k trick (Kool et al., 2019).  Tokens of probability 0 come last, in uniformly random order.
    """
    keys = torch.empty(distribution.shape, dtype=torch.float64, device=distribution.device)
    for sequence, generator in zip(keys, generators, strict=True):
        sequence.uniform_(generator=generator)
    return take_likeliest((distribution.double() + EPSILON).div_(keys.log_().neg_()), children)


def to_tensor(name: str, values: object, *, whole: bool = False) -> Tensor:
    """Return values as a tensor, int64 if they are whole numbers; raises InvalidValueError if they cannot be one."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidValueError(f"{name}: expected a tensor. Got {describe_value(values)}.", field=name) from None
    if not whole:
        return tensor
    if tensor.numel() and (tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex()):
        raise InvalidValueError(f"{name}: expected whole numbers. Got {tensor.dtype}: give int64.", field=name)
    return tensor.long()


def check_counts(distribution: Tensor, counts: Tensor) -> None:
    """Raise InvalidValueError for numbers of children that do not fit the distributions."""
    if distribution.ndim != 2 or counts.shape != distribution.shape[:1]:
        raise InvalidValueError(
            f"draft_probs, counts: expected (m, V) and (m,). Got {tuple(distribution.shape)}, {tuple(counts.shape)}."
        )
    least, largest = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
    if least < 0:
        raise InvalidValueError(f"counts: expected at least 0. Got {least}.")
    if largest > distribution.shape[1]:
        raise InvalidValueError(f"counts: expected at most {distribution.shape[1]}, the vocabulary. Got {largest}.")


def check_finite(name: str, probs: Tensor) -> None:
    """Raise InvalidValueError for probabilities that are NaN or infinite."""
    if not bool(probs.isfinite().all()):
        raise InvalidValueError(
            f"{name}: expected finite probabilities. Got NaN or infinity: check the model's logits."
        )
