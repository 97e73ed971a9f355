"""Selects the accepted nodes of drafts from the target's logits: one class for each kind of rule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Float32
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.finite import all_finite, copy_to_host
from treeopt.runtime.models.model import LanguageModel, concatenate
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution, inverse_cdf, uniform
from treeopt.runtime.rules.layout import host_tree
from treeopt.runtime.rules.verify import TokensByNode, Verdict, Verifier, verify_greedy
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


class Acceptance(Protocol):
    """Accepts a path of each draft; operations on rows run once for the whole batch."""

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        """Return the accepted path and the bonus token of each draft.

        Args:
            drafts: one for each sequence.
            logits: (n, V), the target's after every node, the drafts concatenated.
            generators: one for each sequence.
        """

    def prepare(self, tree: TokenTree) -> None:
        """Compile kernels and allocate buffers for a tree before its first step."""


def make_acceptance(rule: Rule, sampling: Sampling, target: LanguageModel) -> Acceptance:
    """Return the acceptance of a rule; at temperature 0 all rules are the same."""
    if sampling.greedy:
        return GreedyAcceptance()
    sampled = SampledAcceptance(sampling)
    if rule.name == "target":
        return sampled
    by_rule = RuleAcceptance(rule, sampling, target)
    return MixedAcceptance(by_rule, sampled) if rule.random_drafts else by_rule


class GreedyAcceptance:
    """Follows the target's most likely token after every node."""

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:  # noqa: ARG002
        largest, likeliest = logits.max(-1)
        tokens, scores = copy_to_host(likeliest, largest)
        return _follow(drafts, [tokens[rows] for rows in _rows(drafts)], scores)

    def prepare(self, tree: TokenTree) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SampledAcceptance:
    """Follows a token sampled from the target after every node: the rule `target`."""

    sampling: Sampling

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        probs, rows = distribution(logits, self.sampling), _rows(drafts)
        u = [
            uniform(generator, len(draft.tokens), probs.device)
            for draft, generator in zip(drafts, generators, strict=True)
        ]
        if probs.device.type == "cpu":
            array = probs.numpy()
            lazy = [LazyTokens(array[span], numbers.tolist()) for span, numbers in zip(rows, u, strict=True)]
            return _follow(drafts, lazy, probs[:, 0].tolist())
        tokens, scores = copy_to_host(inverse_cdf(probs, concatenate(u)[:, None])[:, 0], probs[:, 0])
        return _follow(drafts, [tokens[span] for span in rows], scores)

    def prepare(self, tree: TokenTree) -> None:  # noqa: ARG002
        _ = LazyTokens(np.ones((1, 1), np.float32), [0.0])[0]


class LazyTokens:
    """Samples the token after a node when it is read: only nodes on the path are.

    Args:
        probs: float32 (n, V).
        u: n numbers, uniform on [0, 1).
    """

    def __init__(self, probs: Float32, u: Sequence[float]) -> None:
        from treeopt.runtime.rules.kernels import inverse_cdf  # numba is slow to import, and greedy decoding needs none

        self._probs, self._u, self._inverse_cdf = probs, u, inverse_cdf

    def __getitem__(self, node: int) -> int:
        return self._inverse_cdf(self._probs[node], self._u[node])


class RuleAcceptance:
    """Tests the draft's distributions against the target's.

    Args:
        rule: verification rule.
        sampling: of the target.
        target: the model whose logits are tested.
    """

    def __init__(self, rule: Rule, sampling: Sampling, target: LanguageModel) -> None:
        self._sampling = sampling
        self._device = target.device
        self._verifier = Verifier(rule, target.config.vocabulary, target.device)

    @torch.inference_mode()
    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        probs = distribution(logits, self._sampling)
        tokens = concatenate([draft.device_tokens.to(self._device) for draft in drafts])
        self._verifier.test([draft.tree for draft in drafts], tokens, _draft_probs(drafts, probs), probs)
        return self._verifier.verdicts(generators)

    def prepare(self, tree: TokenTree) -> None:
        self._verifier.prepare([tree])


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


@dataclass(frozen=True, slots=True)
class MixedAcceptance:
    """Tests sampled drafts by a rule, and follows the target's samples where the draft was not sampled."""

    by_rule: Acceptance
    by_target: Acceptance

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        deterministic = [draft.probs is None and draft.tree.nodes > 1 for draft in drafts]
        if len({*deterministic}) == 1:
            return (self.by_target if deterministic[0] else self.by_rule)(drafts, logits, generators)
        rows, verdicts = _rows(drafts), dict[int, Verdict]()
        for accept, kind in ((self.by_target, True), (self.by_rule, False)):
            indices = [index for index, is_deterministic in enumerate(deterministic) if is_deterministic == kind]
            part = concatenate([logits[rows[index]] for index in indices])
            accepted = accept([drafts[index] for index in indices], part, [generators[index] for index in indices])
            verdicts.update(zip(indices, accepted, strict=True))
        return [verdicts[index] for index in range(len(drafts))]

    def prepare(self, tree: TokenTree) -> None:
        self.by_rule.prepare(tree)  # compiles what `by_target` needs too


def _follow(drafts: Sequence[Draft], target_tokens: Sequence[TokensByNode], scores: Sequence[float]) -> list[Verdict]:
    """Return the paths along the target's tokens; `scores` has a number for each node, finite if its logits are."""
    verdicts = []
    for draft, tokens, rows in zip(drafts, target_tokens, _rows(drafts), strict=True):
        verdict = verify_greedy(host_tree(draft.tree).children, draft.tokens, tokens)
        finite = all_finite([scores[rows.start + node] for node in verdict.nodes])
        verdicts.append(verdict if finite else replace(verdict, finite=False))
    return verdicts


def _rows(drafts: Sequence[Draft]) -> list[slice]:
    """Return the rows of each draft in a concatenation of all."""
    edges = accumulate((len(draft.tokens) for draft in drafts), initial=0)
    return [slice(start, stop) for start, stop in pairwise(edges)]
