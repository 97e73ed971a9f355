"""Checks for non-finite distributions: drafts are cut where one occurs, and in the target they are an error.

One number of a distribution is enough.  A softmax is NaN in every entry if a logit is NaN or infinite or if all are -inf,
and in none otherwise.  For logits, the largest one serves.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.errors import TreeoptError, TreeoptWarning
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree


class Scores(NamedTuple):
    """One number per distribution of a draft, which is finite if the distribution is."""

    model: str
    values: Tensor
    """float (k,)."""
    nodes: Sequence[int]
    """The node of each distribution, from which its children were drafted; ascending."""

    @classmethod
    def missing(cls, model: str) -> "Scores":
        """Return the scores of a draft without children, because the root's distribution was not finite."""
        return cls(model, torch.tensor([torch.nan]), (0,))


def count_usable_nodes(tree: TokenTree, nodes: Sequence[int], scores: Sequence[float]) -> int:
    """Return the number of usable nodes, in level order, of a draft whose scores are not all finite.

    The draft ends, in all branches, with the level of the first non-finite distribution.  This level was sampled before
    the next one, so the output keeps the target's distribution.  Dropping the whole draft would bias it against the
    tokens that lead to non-finite distributions.
    """
    first = next(node for node, score in zip(nodes, scores, strict=True) if not isfinite(score))
    return int(tree.levels[int(tree.depth[first])].stop)


def copy_to_host(tokens: Tensor, scores: Tensor | None) -> tuple[list[int], list[float]]:
    """Return tokens, int64 (n,), and scores, float (k,) or None, as lists, synchronising the device once."""
    if scores is None:
        return tokens.tolist(), []
    if tokens.device.type == "cpu":
        return tokens.tolist(), scores.tolist()
    both = torch.cat([tokens.double(), scores.double()]).tolist()  # 53 bits hold any token
    return [int(token) for token in both[: len(tokens)]], both[len(tokens) :]


def all_finite(scores: Sequence[float]) -> bool:
    """Return whether no score is NaN or infinite.

    >>> all_finite([1.0, -2.0]), all_finite([1.0, float("nan")]), all_finite([float("inf"), float("-inf")])
    (True, False, False)
    """
    return isfinite(sum(scores))  # NaN and infinity persist in the sum


def draft_warning(name: str) -> TreeoptWarning:
    return TreeoptWarning(
        f"{name}: expected a draft model whose logits are finite. Got NaN or infinity, and nothing is drafted where "
        "that is so: run it in float32 or bfloat16, check its weights, or choose another."
    )


def not_finite_error(name: str, role: str) -> TreeoptError:
    return TreeoptError(
        f"{name}: expected a {role} whose logits are finite. Got NaN or infinity: run it in float32 or bfloat16, check "
        "its weights, or choose another."
    )


def check_logits(model: LanguageModel, role: str, logits: Tensor) -> None:
    """Raise TreeoptError if any logit (..., V) is NaN or infinite, except -inf."""
    if not bool(logits.amax(-1).isfinite().all()):
        raise not_finite_error(model.name, role)
