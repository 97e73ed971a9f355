"""Next-token distributions, and drawing the children of tree nodes from them."""

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError

RULES = ("sequoia",)
"""Verification rules that can be run; each draws its children in its own way."""
LEAST_TEMPERATURE = 1e-6
"""Below it logits divided by the temperature leave the range of float32."""


def probabilities(logits: Tensor, temperature: float, top_p: float = 1.0) -> Tensor:
    """Return float32 (n, V): the law that tokens are sampled from, for a temperature above 0.

    `top_p` keeps the likeliest tokens whose sum first reaches it (Holtzman et al., 2020) and drops the others.
    """
    law = torch.softmax(logits.float() / temperature, dim=-1)
    if top_p >= 1.0:
        return law
    ordered, tokens = law.sort(dim=-1, descending=True, stable=True)
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0
    cut = torch.zeros_like(law).scatter_(-1, tokens, ordered)
    return cut / cut.sum(-1, keepdim=True)


def draw(rule: str, draft_probs: Tensor, counts: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw the children of m nodes, in the way that belongs to a verification rule.

    Args:
        rule: `sequoia` draws without replacement; where a law has fewer tokens left than children are wanted, the
            rest is drawn uniformly from the tokens not yet drawn (Chen et al., 2024, Algorithm 2).
        draft_probs: float (m, V), the draft's law after each node.
        counts: int64 (m,), children wanted of each node.
        generator: source of fresh noise; the same state draws the same children.

    Returns int64 (sum(counts),): tokens node after node, in the order drawn, which is their rank.
    Raises InvalidValueError for an unknown rule or more children than tokens.
    """
    check_rule(rule)
    if draft_probs.ndim != 2 or counts.shape != draft_probs.shape[:1]:
        raise InvalidValueError(
            f"draft_probs, counts: expected (m, V) and (m,). Got {tuple(draft_probs.shape)}, {tuple(counts.shape)}."
        )
    most = int(counts.max()) if len(counts) else 0
    if most > draft_probs.shape[1]:
        raise InvalidValueError(f"counts: expected at most {draft_probs.shape[1]}, the vocabulary. Got {most}.")
    return _first(_race(draft_probs, generator).topk(most).indices, counts)


def likeliest(logits: Tensor, counts: Tensor, most: int) -> Tensor:
    """Return the likeliest tokens after m nodes as children, the limit of `draw` at temperature 0.

    Args:
        logits: float (m, V).
        counts: int64 (m,), children wanted of each node.
        most: the largest of them, known to the caller so that the device need not be asked.
    """
    return _first(logits.topk(most).indices, counts)


def check_rule(rule: str) -> None:
    """Raise InvalidValueError for a rule that cannot be run."""
    if rule not in RULES:
        raise InvalidValueError(f"rule: expected one of {', '.join(RULES)}. Got {rule!r}.")


def check_sampling(temperature: float, top_p: float) -> None:
    """Raise InvalidValueError for a temperature or a top-p that no law can be made with."""
    if temperature != 0 and not LEAST_TEMPERATURE <= temperature < float("inf"):
        raise InvalidValueError(
            f"temperature: expected 0, which is greedy, or a finite number of at least {LEAST_TEMPERATURE:g}. "
            f"Got {temperature}."
        )
    if not 0 < top_p <= 1:
        raise InvalidValueError(f"top_p: expected a number above 0 and at most 1. Got {top_p}.")


def _race(law: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return keys whose order is a draw without replacement: token x arrives first with probability law[x].

    An exponential race: key = law / E.  Tokens of no probability come last, in uniformly random order, by key = -E.
    The noise has 53 bits because a grid of 2^-24 would hand tail tokens of a large vocabulary more than their share.
    """
    noise = torch.empty(law.shape, dtype=torch.float64, device=law.device).exponential_(generator=generator)
    return torch.where(law > 0, law.double() / noise.clamp_min(torch.finfo(torch.float64).tiny), -noise)


def _first(ranked: Tensor, counts: Tensor) -> Tensor:
    """Return the first counts[i] entries of each row, row after row."""
    ranks = torch.arange(ranked.shape[1], device=ranked.device)
    return ranked[ranks < counts.to(ranked.device)[:, None]]
