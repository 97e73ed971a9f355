"""Which nodes of a draft are accepted, given the target's logits: a class for each kind of rule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Float32
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.finite import all_finite, on_host
from treeopt.runtime.models.model import LanguageModel, joined
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.inverse_cdf import inverse_cdf, uniform
from treeopt.runtime.rules.verify import TokensByNode, Verdict, Verifier, verify_greedy
from treeopt.trees import TokenTree


class Draft(NamedTuple):
    """What is verified: a proposal, or as much of it as is finite."""

    tree: TokenTree
    children: Sequence[range]
    """Of every node."""
    tokens: list[int]
    """Of every node, on the host."""
    on_device: Tensor
    """int64 (n,): the same where the drafter put them."""
    probs: Tensor | None
    """float (n, V): what the children of each node were sampled from."""


class Acceptance(Protocol):
    """Accepts paths of drafts; what is done row by row is done for all drafts at once."""

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        """Return the accepted path of each draft and the token after it.

        Args:
            drafts: of different texts.
            logits: (n, V), the target's after every node, one draft after the other.
            generators: of each text.
        """

    def prepare(self, tree: TokenTree) -> None:
        """Make what a tree needs that will come again and again."""


def acceptance_by(rule: Rule, sampling: Sampling, target: LanguageModel) -> Acceptance:
    """Return how a rule accepts what a target's tokens are sampled like; at temperature 0 all rules are one."""
    if sampling.greedy:
        return AcceptLikeliest()
    given = AcceptSampled(sampling)
    if rule.name == "target":
        return given
    by_rule = AcceptByRule(rule, sampling, target)
    return AcceptEither(by_rule, given) if rule.random_drafts else by_rule


class AcceptLikeliest:
    """Follows the target's likeliest token after every node."""

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:  # noqa: ARG002
        largest, likeliest = logits.max(-1)
        tokens, scores = on_host(likeliest, largest)
        return _followed(drafts, [tokens[rows] for rows in _rows(drafts)], scores)

    def prepare(self, tree: TokenTree) -> None:
        """See `Acceptance`; there is nothing to do."""


@dataclass(frozen=True, slots=True)
class AcceptSampled:
    """Follows a token sampled from the target after every node, which is the rule `target`."""

    sampling: Sampling

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        probs, rows = distribution(logits, self.sampling), _rows(drafts)
        u = [
            uniform(generator, len(draft.tokens), probs.device)
            for draft, generator in zip(drafts, generators, strict=True)
        ]
        if probs.device.type == "cpu":
            whole = probs.numpy()
            arrays = [whole[part] for part in rows]
            lazy = [LazyTokens(*each) for each in zip(arrays, (each.tolist() for each in u), strict=True)]
            return _followed(drafts, lazy, probs[:, 0].tolist())
        tokens, scores = on_host(inverse_cdf(probs, joined(u)[:, None])[:, 0], probs[:, 0])
        return _followed(drafts, [tokens[part] for part in rows], scores)

    def prepare(self, tree: TokenTree) -> None:  # noqa: ARG002
        """Compile the sampling before the first step."""
        _ = LazyTokens(np.ones((1, 1), np.float32), [0.0])[0]


class LazyTokens:
    """A token of each distribution, float32 (n, V), by numbers uniform on [0, 1): sampled when it is read."""

    def __init__(self, probs: Float32, u: Sequence[float]) -> None:
        from treeopt.runtime.rules.kernels import inverse_cdf  # numba is slow to import, greedy decoding does without

        self._probs, self._u, self._inverse_cdf = probs, u, inverse_cdf

    def __getitem__(self, node: int) -> int:
        return self._inverse_cdf(self._probs[node], self._u[node])


class AcceptByRule:
    """Weighs draft against target as a rule says.

    Args:
        rule: the rule.
        sampling: of the target.
        target: whose logits come.
    """

    def __init__(self, rule: Rule, sampling: Sampling, target: LanguageModel) -> None:
        self._sampling = sampling
        self._device = target.device
        self._verifier = Verifier(rule, target.config.vocabulary, target.device)

    @torch.inference_mode()
    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        probs = distribution(logits, self._sampling)
        tokens = joined([draft.on_device.to(self._device) for draft in drafts])
        self._verifier.test([draft.tree for draft in drafts], tokens, _draft_probs(drafts, probs), probs)
        return self._verifier.verdicts(generators)

    def prepare(self, tree: TokenTree) -> None:
        """Make the buffers of a tree, and compile what tests it, before its first step."""
        self._verifier.prepare([tree])


def _draft_probs(drafts: Sequence[Draft], target_probs: Tensor) -> Tensor | None:
    """Return the distributions of all drafts, None if none has any; those of a root alone are never read."""
    if all(draft.probs is None for draft in drafts):
        return None
    parts = zip(drafts, _rows(drafts), strict=True)
    return joined(
        [target_probs[rows] if draft.probs is None else draft.probs.to(target_probs.device) for draft, rows in parts]
    )


@dataclass(frozen=True, slots=True)
class AcceptEither:
    """Accepts each draft as its tokens came: sampled ones by a rule that needs their distributions, given ones without."""

    by_rule: Acceptance
    given: Acceptance

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, generators: Sequence[torch.Generator]) -> list[Verdict]:
        """See `Acceptance`; what one draft comes to does not depend on how the others came."""
        given = [draft.probs is None and draft.tree.nodes > 1 for draft in drafts]
        if len({*given}) == 1:
            return (self.given if given[0] else self.by_rule)(drafts, logits, generators)
        rows, verdicts = _rows(drafts), dict[int, Verdict]()
        for accept, kind in ((self.given, True), (self.by_rule, False)):
            places = [place for place, each in enumerate(given) if each == kind]
            part = joined([logits[rows[place]] for place in places])
            found = accept([drafts[place] for place in places], part, [generators[place] for place in places])
            verdicts.update(zip(places, found, strict=True))
        return [verdicts[place] for place in range(len(drafts))]

    def prepare(self, tree: TokenTree) -> None:
        """See `Acceptance`; what samples from the target alone, the rule prepares too."""
        self.by_rule.prepare(tree)


def _followed(drafts: Sequence[Draft], wanted: Sequence[TokensByNode], scores: Sequence[float]) -> list[Verdict]:
    """Return the paths of wanted tokens, given a number of each distribution that is finite where it is."""
    found = []
    for draft, tokens, rows in zip(drafts, wanted, _rows(drafts), strict=True):
        verdict = verify_greedy(draft.children, draft.tokens, tokens)
        finite = all_finite([scores[rows.start + node] for node in verdict.nodes])
        found.append(verdict if finite else replace(verdict, finite=False))
    return found


def _rows(drafts: Sequence[Draft]) -> list[slice]:
    """Return the rows of each draft where they stand one after the other."""
    edges = accumulate((len(draft.tokens) for draft in drafts), initial=0)
    return [slice(*each) for each in pairwise(edges)]
