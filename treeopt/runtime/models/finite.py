"""Distributions that are not finite: a draft's are never verified, a target's are an error.

Whether a distribution is finite shows in one number of it.  A softmax is NaN in every entry where a logit is NaN or
infinite or where all are -inf, and in none otherwise; of logits the largest tells the same.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.errors import TreeoptError, TreeoptWarning
from treeopt.runtime.models.model import LanguageModel


class Scores(NamedTuple):
    """What tells whether the distributions that a draft was taken from are finite."""

    model: str
    """Name of the model that gave them."""
    values: Tensor
    """float (k,): a number of each that is finite where the distribution is."""


def on_host(tokens: Tensor, scores: Tensor | None) -> tuple[list[int], list[float]]:
    """Return tokens, int64 (n,), and scores, float (k,) or None for none, as lists; a device is waited for once."""
    if scores is None:
        return tokens.tolist(), []
    if tokens.device.type == "cpu":
        return tokens.tolist(), scores.tolist()
    both = torch.cat([tokens.double(), scores.double()]).tolist()  # 53 bits hold any token
    return [int(token) for token in both[: len(tokens)]], both[len(tokens) :]


def all_finite(scores: Sequence[float]) -> bool:
    """Return whether no number is NaN or infinite.

    >>> all_finite([1.0, -2.0]), all_finite([1.0, float("nan")]), all_finite([float("inf"), float("-inf")])
    (True, False, False)
    """
    return isfinite(sum(scores))  # one call for all: NaN and infinity stay in the sum


def draft_warning(name: str) -> TreeoptWarning:
    """Return the warning that a draft of the model of this name was not used."""
    return TreeoptWarning(
        f"{name}: expected a draft model whose logits are finite. Got NaN or infinity, and nothing is drafted where "
        "that is so: run it in float32 or bfloat16, check its weights, or choose another."
    )


def not_finite_error(name: str, role: str) -> TreeoptError:
    """Return the error that a target or a draft model gives no distribution."""
    return TreeoptError(
        f"{name}: expected a {role} whose logits are finite. Got NaN or infinity: run it in float32 or bfloat16, check "
        "its weights, or choose another."
    )


def check_logits(model: LanguageModel, role: str, logits: Tensor) -> None:
    """Raise TreeoptError naming the model unless every row of its logits (..., V) makes a distribution."""
    if not bool(logits.amax(-1).isfinite().all()):
        raise not_finite_error(model.name, role)
