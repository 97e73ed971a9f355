"""The rules' acceptance tests, as tensor operations on groups of siblings; the arguments are those of `Rule.accept_test`.

Residuals are not normalised: their sums are kept instead, because on few numbers the count of operations costs most.
"""

import torch
from torch import Tensor

from treeopt.runtime.rules.layout import SiblingGroups

MAX_THRESHOLD = 0.3
"""Typical acceptance keeps tokens more likely than this, whatever the entropy."""
ENTROPY_FACTOR = 0.09
"""Typical acceptance keeps tokens more likely than this times exp(-entropy)."""
TINY = torch.finfo(torch.float64).tiny


def sequoia(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:
    """Test children that were sampled without replacement (Chen et al., 2024, Algorithm 2).

    For each child x of a node in rank order, with p the target's distribution and q the one that x was sampled from:

        accept x with probability min(1, p(x) / q(x))
        otherwise  p = norm(max(p - q, 0)),  q(x) = 0,  q = norm(q), or uniform over untried tokens if q is empty
    """
    _test_children(siblings, tokens, draft, target, acceptance, replace=False)


def specinfer(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:
    """Test children that were sampled with replacement (Miao et al., 2024, Algorithm 2): as `sequoia` with q unchanged."""
    _test_children(siblings, tokens, draft, target, acceptance, replace=True)


def _test_children(
    siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor, *, replace: bool
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
        if not replace:
            q.scatter_(1, x, 0.0)
    acceptance[siblings.children] = _to_probabilities(torch.cat(ratios))


def sampled_target(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:  # noqa: ARG001
    """Test distinct children from any source: accept the child that equals a token sampled from the target.

    The sampled token is child x with probability p(x); put as a test of one child after the other:

        accept x with probability p(x)
        otherwise  p(x) = 0,  p = norm(p)
    """
    ratios = []
    for x in tokens[siblings.children][:, None].split(siblings.counts):
        p = target[: len(x)]
        ratios.append(p.gather(1, x) / p.sum(1, keepdim=True))
        p.scatter_(1, x, 0.0)
    acceptance[siblings.children] = _to_probabilities(torch.cat(ratios))


def traversal(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:
    """Test one level of children that were sampled without replacement (Weng et al., 2025, Algorithm 3).

    The tree is tested from its leaves up.  With a the probability of accepting the path that ends at a node, for each
    child x in rank order:

        the child's path starts with  a_x = min(1, a p(x) / q(x)),  and is tested with its subtree
        if no path through x is accepted:  s = sum of max(a p - q, 0),  a = s / (s + 1 - a),
                                           p = max(a p - q, 0) / s,  q(x) = 0,  q = norm(q)

    A node is tested after its children, with the final a.  On a chain this is block verification (Sun et al., 2024,
    Algorithm 2).  The subtree of a child does not change the probability that some path through it is accepted, so the
    reach of a node depends only on the ranks along its path.
    """
    paths = acceptance[siblings.parents][:, None]
    scale = paths.clone()  # from the residual to a p
    ratios = []
    for rank, x in enumerate(tokens[siblings.children][:, None].split(siblings.counts)):
        p, q, a = target[: len(x)], draft[: len(x)], paths[: len(x)]
        p *= scale[: len(x)]
        if rank > 0:
            q /= q.sum(1, keepdim=True)
        ratios.append(p.gather(1, x) / q.gather(1, x))
        p.sub_(q).clamp_(min=0.0)
        s = p.sum(1, keepdim=True)
        scale = (s + (1 - a)).clamp_(min=TINY).reciprocal_()  # 1 - a first: s + 1 may round to 1
        a.copy_(s * scale)
        q.scatter_(1, x, 0.0)
    acceptance[siblings.children] = _to_probabilities(torch.cat(ratios))
    acceptance[siblings.parents] = paths.squeeze(1)


def typical(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:  # noqa: ARG001
    """Keep the children of one level that the target finds likely enough (Cai et al., 2024, section 2.3.1); lossy.

        keep x if p(x) > min(0.3, 0.09 exp(-H(p))),  H(p) = -sum of p log p

    A node's entry becomes the likelihood of its path, 0 if a node of the path is not kept.
    """
    entropy = torch.special.entr(target).sum(1, keepdim=True)
    threshold = (ENTROPY_FACTOR * torch.exp(-entropy)).clamp_(max=MAX_THRESHOLD)
    paths = acceptance[siblings.parents][:, None]
    likelihoods = []
    for x in tokens[siblings.children][:, None].split(siblings.counts):
        p = target[: len(x)].gather(1, x)
        likelihoods.append(paths[: len(x)] * torch.where(p > threshold[: len(x)], p, 0.0))
    acceptance[siblings.children] = torch.cat(likelihoods).squeeze(1)


def _to_probabilities(ratios: Tensor) -> Tensor:
    """Return ratios (c, 1) as probabilities (c,): at most 1, and 0 for 0 / 0."""
    return ratios.nan_to_num_(0.0).clamp_(max=1.0).squeeze(1)
