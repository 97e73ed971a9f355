"""Sampling the children of tree nodes from the draft's distribution, in the way of each verification rule."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError

LAST = 1e-200
"""Stands for no probability; with any noise it comes behind the smallest float32, which is 1e-45."""


class Places(NamedTuple):
    """Which children of m nodes are wanted, node after node, as indices that the device can use at once."""

    node: Tensor
    """int64 (c,): row of the child's node."""
    rank: Tensor
    """int64 (c,): its rank there."""
    most: int
    """The most children of any node."""


SampleChildren = Callable[[Tensor, Places, torch.Generator | None], Tensor]
"""From weights (m, V) and the places wanted to tokens, int64 (c,)."""


def places(counts: Sequence[int], device: torch.device) -> Places:
    """Return the places of so many children of each node.

    >>> places([2, 0, 1], torch.device("cpu"))
    Places(node=tensor([0, 0, 2]), rank=tensor([0, 1, 0]), most=2)
    """
    wanted = [(node, rank) for node, count in enumerate(counts) for rank in range(count)]
    index = torch.tensor(wanted, dtype=torch.int64, device=device).reshape(-1, 2)
    return Places(index[:, 0].contiguous(), index[:, 1].contiguous(), max(counts, default=0))


def likeliest(distribution: Tensor, wanted: Places, generator: torch.Generator | None = None) -> Tensor:  # noqa: ARG001
    """Return the likeliest tokens, the likeliest first; logits serve as well as distributions."""
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


def with_replacement(distribution: Tensor, wanted: Places, generator: torch.Generator | None = None) -> Tensor:
    """Return independent draws; siblings may be alike (Miao et al., 2024)."""
    # multinomial would raise, or stop a CUDA device for good, on a distribution that is not finite
    sampled = torch.multinomial(
        distribution.double().nan_to_num(nan=1.0), wanted.most, replacement=True, generator=generator
    )
    return sampled[wanted.node, wanted.rank]


def without_replacement(distribution: Tensor, wanted: Places, generator: torch.Generator | None = None) -> Tensor:
    """Return draws of which no two siblings are alike (Chen et al., 2024, Algorithm 2).

    Where a distribution has fewer tokens than are wanted, the rest is sampled uniformly from the tokens not yet sampled.
    """
    speeds = torch.empty(distribution.shape, dtype=torch.float64, device=distribution.device)
    fill_speeds(speeds, generator)
    return first_arrivals(distribution, speeds, wanted)


def fill_speeds(speeds: Tensor, *generators: torch.Generator | None) -> None:
    """Fill a float64 tensor with 1 / E, E = -log(U) exponential: how fast tokens of equal probability run.

    Each generator fills an equal share of the rows, in this order.
    The noise has 53 bits because a grid of 2^-24 would hand tail tokens of a large vocabulary more than their share.
    """
    shares = (speeds,) if len(generators) == 1 else speeds.chunk(len(generators))
    for rows, generator in zip(shares, generators, strict=True):
        rows.uniform_(generator=generator)
    speeds.log_().reciprocal_().neg_()


def first_arrivals(distribution: Tensor, speeds: Tensor, wanted: Places) -> Tensor:
    """Return the tokens that win an exponential race, which is a draw without replacement.

    Token x runs with distribution[x] times its speed, and arrives first with probability distribution[x].  Tokens of no
    probability come last, in uniformly random order, because they run with next to none.
    """
    return likeliest(arrivals(distribution, speeds, wanted.most), wanted)


def arrivals(distribution: Tensor, speeds: Tensor, count: int) -> Tensor:
    """Return how early each token arrives, (m, V), the largest first, where so many of a row are asked for."""
    return distribution * speeds if count == 1 else (distribution.double() + LAST).mul_(speeds)


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
