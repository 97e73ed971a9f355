"""Rules that try a node's children in turn: each is accepted, or rejected and taken out of the target's distribution.

What is left of a distribution is not normalised but kept beside its sum: on few numbers it is the count of operations
that costs.
"""

import torch
from torch import Tensor

from treeopt.runtime.rules.layout import SiblingGroups


def sequoia(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:
    """Test children sampled without replacement (Chen et al., 2024, Algorithm 2); arguments as for `Rule.accept_test`.

    For each child x of a node in rank order, p the target's distribution and q the distribution that x was sampled
    from:

        accept x with probability min(1, p(x) / q(x))
        otherwise  p = norm(max(p - q, 0)),  q(x) = 0,  q = norm(q), uniform over the untried once nothing is left
    """
    _in_turn(siblings, tokens, draft, target, acceptance, replaced=False)


def specinfer(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:
    """Test children sampled with replacement (Miao et al., 2024, Algorithm 2): as `sequoia`, but q stays as it was."""
    _in_turn(siblings, tokens, draft, target, acceptance, replaced=True)


def sampled_target(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:  # noqa: ARG001
    """Test children chosen in any way, no two alike: descend where a token sampled from the target is a child.

    The sampled token is child x with probability p(x); one child after the other, as all rules put it:

        accept x with probability p(x)
        otherwise  p(x) = 0,  p = norm(p)
    """
    ratios = []
    for x in tokens[siblings.children][:, None].split(siblings.counts):
        p = target[: len(x)]
        ratios.append(p.gather(1, x) / p.sum(1, keepdim=True))
        p.scatter_(1, x, 0.0)
    acceptance[siblings.children] = probability(torch.cat(ratios))


def probability(ratio: Tensor) -> Tensor:
    """Return ratios (c, 1) as probabilities (c,): at most 1, and 0 where nothing is left to compare."""
    return ratio.nan_to_num_(0.0).clamp_(max=1.0).squeeze(1)


def _in_turn(
    siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor, *, replaced: bool
) -> None:
    p_sum, q_sum = target.new_ones(2, len(target), 1)
    ratios = []
    for rank, x in enumerate(tokens[siblings.children][:, None].split(siblings.counts)):
        p, q = target[: len(x)], draft[: len(x)]
        if rank > 0:
            p_sum, q_sum = p.sum(1, keepdim=True), q.sum(1, keepdim=True)
        scale = p_sum / q_sum
        ratios.append(p.gather(1, x) / (q.gather(1, x) * scale))
        p.sub_(q * scale).clamp_(min=0.0)
        if not replaced:
            q.scatter_(1, x, 0.0)
    acceptance[siblings.children] = probability(torch.cat(ratios))
