"""The rule `typical`, which is lossy: a token is kept where the target finds it likely enough."""

import torch
from torch import Tensor

from treeopt.runtime.rules.layout import SiblingGroups

LEAST_PROBABILITY = 0.3
"""Tokens likelier than this are kept whatever the distribution."""
ENTROPY_SHARE = 0.09
"""Tokens likelier than this share of exp(-entropy) are kept."""


def typical(siblings: SiblingGroups, tokens: Tensor, draft: Tensor, target: Tensor, acceptance: Tensor) -> None:  # noqa: ARG001
    """Test one level of children, given the level above (Cai et al., 2024, section 2.3.1).

        keep x if p(x) > min(0.3, 0.09 exp(-H(p))),  H(p) = -sum of p log p

    A node's entry becomes the likelihood of its path, 0 where the path is not kept.
    """
    entropy = torch.special.entr(target).sum(1, keepdim=True)
    least = (ENTROPY_SHARE * torch.exp(-entropy)).clamp_(max=LEAST_PROBABILITY)
    paths = acceptance[siblings.parents][:, None]
    kept = []
    for x in tokens[siblings.children][:, None].split(siblings.counts):
        p = target[: len(x)].gather(1, x)
        kept.append(paths[: len(x)] * torch.where(p > least[: len(x)], p, 0.0))
    acceptance[siblings.children] = torch.cat(kept).squeeze(1)
