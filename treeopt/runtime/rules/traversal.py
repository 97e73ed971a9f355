"""The rule `traversal`: a tree is tested from its leaves up, whole paths instead of single tokens."""

import torch
from torch import Tensor

from treeopt.runtime.rules.layout import SiblingGroups
from treeopt.runtime.rules.rejection import probability

TINY = torch.finfo(torch.float64).tiny


def traversal(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:
    """Test one level of children sampled without replacement (Weng et al., 2025, Algorithm 3), given the level above.

    With a the probability of accepting the path that ends at a node, for each child x in rank order:

        its own path begins with  min(1, a p(x) / q(x)),  and is tested with all that is below it;
        if no path through it is accepted:  s = sum of max(a p - q, 0),  a = s / (s + 1 - a),
                                            p = max(a p - q, 0) / s,  q(x) = 0,  q = norm(q)

    A node is tested after its children: its path is accepted with what a is by then.  On a chain this is block
    verification (Sun et al., 2024, Algorithm 2).  What is below a child does not change how probable it is that some
    path through it is accepted, so that a node's reach depends on the ranks above it alone.
    """
    paths = acceptance[siblings.parents][:, None]
    scale = paths.clone()  # from what is left of p to a p
    ratios = []
    for rank, x in enumerate(tokens[siblings.children][:, None].split(siblings.counts)):
        p, q, a = target[: len(x)], draft[: len(x)], paths[: len(x)]
        p *= scale[: len(x)]
        if rank > 0:
            q /= q.sum(1, keepdim=True)
        ratios.append(p.gather(1, x) / q.gather(1, x))
        p.sub_(q).clamp_(min=0.0)
        s = p.sum(1, keepdim=True)
        scale = (s + (1 - a)).clamp_(min=TINY).reciprocal_()  # 1 - a first: s may be too small to be seen beside 1
        a.copy_(s * scale)
        q.scatter_(1, x, 0.0)
    acceptance[siblings.children] = probability(torch.cat(ratios))
    acceptance[siblings.parents] = paths.squeeze(1)
