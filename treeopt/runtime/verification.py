"""Which drafted tokens a step accepts: pure functions of laws and randomness, one per rule, no model in sight."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.sampling import check_rule
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step accepts."""

    path: Tensor
    """int64 (m,): accepted nodes from the root down; the first is 0, the root."""
    bonus: int
    """The token sampled after the last of them."""


def verify(
    rule: str,
    tree: TokenTree,
    tokens: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    generator: torch.Generator | None = None,
) -> Verdict:
    """Accept a path of a drafted tree so that the step's tokens follow the target's law exactly.

    Args:
        rule: see `treeopt.runtime.draw`, which must have drawn the tokens.
        tree: the tree of n nodes.
        tokens: int64 (n,), the root's token and the drafted ones.
        draft_probs: float (n, V), the draft's law after each node; rows of leaves are not read.
        target_probs: float (n, V), the target's law after each node.
        generator: source of fresh noise.

    Raises InvalidValueError for an unknown rule or shapes that do not fit the tree.
    """
    check_rule(rule)
    for name, probs in (("draft_probs", draft_probs), ("target_probs", target_probs)):
        if probs.ndim != 2 or len(probs) != tree.nodes or probs.shape != target_probs.shape:
            raise InvalidValueError(f"{name}: expected ({tree.nodes}, V), a row per node. Got {tuple(probs.shape)}.")
    if tokens.shape != (tree.nodes,):
        raise InvalidValueError(f"tokens: expected ({tree.nodes},), one per node. Got {tuple(tokens.shape)}.")
    path = [0]
    while True:
        node = path[-1]
        children = tree.children(node)
        drawn = tokens[children.start : children.stop].tolist()
        accepted, following = sample_after(rule, drawn, draft_probs[node], target_probs[node], generator)
        if accepted is None:
            return Verdict(torch.tensor(path), following)
        path.append(children[accepted])


def verify_greedy(children: Sequence[range], tokens: Sequence[int], target_tokens: Sequence[int]) -> Verdict:
    """Accept the path along which every drafted token is the target's likeliest, the limit of `sequoia` at temperature 0.

    Args:
        children: node indices of each node's children.
        tokens: the root's token and the drafted ones.
        target_tokens: the target's likeliest token after each node.
    """
    path = [0]
    while True:
        wanted = target_tokens[path[-1]]
        for child in children[path[-1]]:
            if tokens[child] == wanted:
                path.append(child)
                break
        else:
            return Verdict(torch.tensor(path), wanted)


def sample_after(
    rule: str, children: Sequence[int], draft: Tensor, target: Tensor, generator: torch.Generator | None
) -> tuple[int | None, int]:
    """Return the rank of the accepted child of one node, None if all are rejected, and the token that follows the node.

    Args:
        rule: see `verify`.
        children: the node's drawn tokens in rank order.
        draft: float (V,), the law that they were drawn from.
        target: float (V,), the law that the returned token follows.
        generator: source of fresh noise.
    """
    attempts = _attempts(rule, children, draft, target)
    for rank, token in enumerate(children):
        probability, _ = next(attempts)
        uniform = torch.rand((), dtype=torch.float64, device=target.device, generator=generator)
        if uniform < probability:
            return rank, token
    _, residual = next(attempts)
    return None, int(torch.multinomial(residual, 1, generator=generator))


def acceptance_probabilities(rule: str, children: Sequence[int], draft: Tensor, target: Tensor) -> Tensor:
    """Return float64 (B,): the probability that each child of one node is the accepted one.

    The expectation of `sample_after` over its randomness, given the children: no sampling noise of the verifier is
    left in what is measured with it.
    """
    left = 1.0
    accepted = []
    for probability, _ in _attempts(rule, children, draft, target):
        accepted.append(left * float(probability))
        left *= 1.0 - float(probability)
    return torch.tensor(accepted[:-1], dtype=torch.float64)


def _attempts(rule: str, children: Sequence[int], draft: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each child of a node, the probability that it is accepted after all before were rejected.

    With it comes the law that the node's next token then follows; a last item, of probability 1, is for the case
    that every child was rejected.  Children were drawn without replacement (Chen et al., 2024, Algorithm 2):

        accept x with probability min(1, p(x) / q(x))
        otherwise  p = norm(max(p - q, 0)),  q(x) = 0,  q = norm(q), uniform over the untried once nothing is left
    """
    check_rule(rule)
    p, q = target.double(), draft.double()
    untried = torch.ones_like(q)
    for token in children:
        yield (p[token] / q[token]).clamp(max=1.0), p
        residual = (p - q).clamp_min(0)
        if residual.sum() > 0:  # it is 0 only when p = q, where nothing is rejected but by rounding
            p = residual / residual.sum()
        untried[token] = 0
        left = q * untried
        if left.sum() == 0:
            left = untried
        q = left / left.sum().clamp_min(torch.finfo(torch.float64).tiny)
    yield torch.ones((), dtype=torch.float64, device=p.device), p
