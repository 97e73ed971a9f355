"""Selects the accepted nodes of drafts from the target's logits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.records.sampling import Sampling
from treeopt.runtime.models.finite import all_finite, copy_to_host
from treeopt.runtime.models.model import LanguageModel, concatenate
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution, inverse_cdf, uniform
from treeopt.runtime.rules.layout import host_tree
from treeopt.runtime.rules.verify import Verdict, Verifier, follow_tokens
from treeopt.trees import TokenTree


class Draft(NamedTuple):
    """The part of a proposal that is verified: the levels whose distributions were finite."""

    tree: TokenTree
    tokens: list[int]
    """The token of each node, on the host."""
    device_tokens: Tensor
    """int64 (n,): the same, on the drafter's device."""
    probs: Tensor | None
    """float (n, V): what the children of each node were sampled from; None if they were not sampled."""
    truncated: bool = False
    """Whether a distribution of the proposal was not finite."""


class Acceptance:
    """Accepts a path of each draft; operations on rows run once for the whole batch.

    At temperature 0 a path follows the target's most likely token after every node, whatever the rule.  Above, the rule
    tests the draft.  With the rule `target`, and if a rule for sampled drafts gets one that was not sampled, the path
    follows a token sampled from the target after every node.
    """

    def __init__(self, rule: Rule, sampling: Sampling, target: LanguageModel) -> None:
        self._rule, self._sampling, self._device = rule, sampling, target.device
        self._verifier = Verifier(rule, target.config.vocabulary, target.device)

    def prepare(self, tree: TokenTree) -> None:
        """Compile kernels and allocate buffers for a tree before its first step."""
        if self._sampling.greedy:
            return
        if self._rule.name != "target":
            self._verifier.prepare([tree])  # compiles what `_follow_samples` needs too
        elif self._device.type == "cpu":
            from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding needs none

            kernels.inverse_cdf(np.ones(1, np.float32), 0.0)

    @torch.inference_mode()
    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        """Return the verdict on each draft, given the target's logits (n, V), the drafts concatenated."""
        if self._sampling.greedy:
            return self._follow_likeliest(drafts, logits)
        tested = [self._is_tested(draft) for draft in drafts]
        if len({*tested}) == 1:
            return (self._test if tested[0] else self._follow_samples)(drafts, logits, generators)
        rows, verdicts = _rows(drafts), dict[int, Verdict]()
        for accept, kind in ((self._follow_samples, False), (self._test, True)):
            indices = [index for index, is_tested in enumerate(tested) if is_tested == kind]
            part = concatenate([logits[rows[index]] for index in indices])
            accepted = accept([drafts[index] for index in indices], part, [generators[index] for index in indices])
            verdicts.update(zip(indices, accepted, strict=True))
        return [verdicts[index] for index in range(len(drafts))]

    def _is_tested(self, draft: Draft) -> bool:
        if not self._rule.random_drafts:
            return self._rule.name != "target"
        return draft.probs is not None or draft.tree.nodes == 1

    def _follow_likeliest(self, drafts: Sequence[Draft], logits: Tensor) -> list[Verdict]:
        largest, likeliest = logits.max(-1)
        tokens, scores = copy_to_host(likeliest, largest)
        return _follow(drafts, tokens.__getitem__, scores)

    def _follow_samples(
        self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]
    ) -> list[Verdict]:
        probs = distribution(logits, self._sampling)
        u = concatenate(
            [
                uniform(generator, len(draft.tokens), probs.device)
                for draft, generator in zip(drafts, generators, strict=True)
            ]
        )
        if probs.device.type != "cpu":
            tokens, scores = copy_to_host(inverse_cdf(probs, u[:, None])[:, 0], probs[:, 0])
            return _follow(drafts, tokens.__getitem__, scores)
        from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding needs none

        array, numbers = probs.numpy(), u.tolist()
        return _follow(drafts, lambda row: kernels.inverse_cdf(array[row], numbers[row]), probs[:, 0].tolist())

    def _test(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        probs = distribution(logits, self._sampling)
        tokens = concatenate([draft.device_tokens.to(self._device) for draft in drafts])
        self._verifier.test([draft.tree for draft in drafts], tokens, _draft_probs(drafts, probs), probs)
        return self._verifier.verdicts(generators)


def _draft_probs(drafts: Sequence[Draft], target_probs: Tensor) -> Tensor | None:
    """Return the distributions of all drafts; rows of a root alone are never read and filled with the target's."""
    if all(draft.probs is None for draft in drafts):
        return None
    return concatenate(
        [
            target_probs[rows] if draft.probs is None else draft.probs.to(target_probs.device)
            for draft, rows in zip(drafts, _rows(drafts), strict=True)
        ]
    )


def _follow(drafts: Sequence[Draft], token_after: Callable[[int], int], scores: Sequence[float]) -> list[Verdict]:
    """Return the path of each draft along the target's tokens.

    `token_after` is called for the rows of the paths only.  A row's score is finite if its logits are.
    """
    return [
        _follow_draft(draft, rows.start, token_after, scores) for draft, rows in zip(drafts, _rows(drafts), strict=True)
    ]


def _follow_draft(draft: Draft, start: int, token_after: Callable[[int], int], scores: Sequence[float]) -> Verdict:
    children = host_tree(draft.tree).children
    verdict = follow_tokens(children, draft.tokens, lambda node: token_after(start + node))
    finite = all_finite([scores[start + node] for node in verdict.nodes])
    return verdict if finite else replace(verdict, finite=False)


def _rows(drafts: Sequence[Draft]) -> list[slice]:
    """Return the rows of each draft in a concatenation of all."""
    edges = accumulate((len(draft.tokens) for draft in drafts), initial=0)
    return [slice(start, stop) for start, stop in pairwise(edges)]
