"""Which nodes of a draft are accepted, given the target's logits: a class for each kind of rule."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Float32
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.finite import all_finite, on_host
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.together import joined
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.verify import TokensByNode, Verdict, Verifier, verify_greedy
from treeopt.trees import TokenTree

KEPT_VERIFIERS = 2
"""The tree of a step, and what is left of it where the draft is not finite."""


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

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, noise: Sequence[torch.Generator]) -> list[Verdict]:
        """Return the accepted path of each draft and the token after it.

        Args:
            drafts: of different texts.
            logits: (n, V), the target's after every node, one draft after the other.
            noise: of each text.
        """

    def prepare(self, tree: TokenTree) -> None:
        """Make what a tree needs that will come again and again."""


def acceptance_by(rule: Rule, sampling: Sampling, target: LanguageModel) -> Acceptance:
    """Return how a rule accepts what a target's tokens are sampled like; at temperature 0 all rules are one."""
    if sampling.greedy:
        return AcceptLikeliest()
    given = AcceptSampledOnHost(sampling) if target.device.type == "cpu" else AcceptSampled(sampling)
    if rule.name == "target":
        return given
    by_rule = AcceptByRule(rule, sampling, target)
    return AcceptEither(by_rule, given) if rule.random_drafts else by_rule


class AcceptLikeliest:
    """Follows the target's likeliest token after every node."""

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, noise: Sequence[torch.Generator]) -> list[Verdict]:  # noqa: ARG002
        largest, likeliest = logits.max(-1)
        tokens, scores = on_host(likeliest, largest)
        return _followed(drafts, [tokens[rows] for rows in _rows(drafts)], scores)

    def prepare(self, tree: TokenTree) -> None:
        """See `Acceptance`; there is nothing to do."""


@dataclass(frozen=True, slots=True)
class AcceptSampled:
    """Follows a token sampled from the target after every node, which is the rule `target`."""

    sampling: Sampling

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, noise: Sequence[torch.Generator]) -> list[Verdict]:
        probs = distribution(logits, self.sampling)
        rows = (probs[part] for part in _rows(drafts))
        found = [sampled(each, generator) for each, generator in zip(rows, noise, strict=True)]
        tokens, scores = on_host(joined(found), probs[:, 0])
        return _followed(drafts, [tokens[rows] for rows in _rows(drafts)], scores)

    def prepare(self, tree: TokenTree) -> None:
        """See `Acceptance`; there is nothing to do."""


@dataclass(frozen=True, slots=True)
class AcceptSampledOnHost:
    """Does the same where the target's logits lie in the host's memory: there only tokens on the way are sampled."""

    sampling: Sampling

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, noise: Sequence[torch.Generator]) -> list[Verdict]:
        from treeopt.runtime.rules.on_host import token_at  # numba is slow to import, and greedy decoding does without

        probs = distribution(logits, self.sampling).numpy()
        parts = zip(drafts, _rows(drafts), noise, strict=True)
        tokens = [
            _LazyTokens(probs[rows], _uniform(len(draft.tokens), generator), token_at)
            for draft, rows, generator in parts
        ]
        return _followed(drafts, tokens, probs[:, 0].tolist())

    def prepare(self, tree: TokenTree) -> None:  # noqa: ARG002
        """Compile what samples before the first step."""
        from treeopt.runtime.rules.on_host import token_at

        token_at(np.ones(1, np.float32), 0.0)


class _LazyTokens:
    """A token of each distribution, float32 (n, V), by numbers that are uniform on [0, 1): sampled when it is asked for."""

    def __init__(self, probs: Float32, uniform: Sequence[float], token_at: Callable[[Float32, float], int]) -> None:
        self._probs, self._uniform, self._token_at = probs, uniform, token_at

    def __getitem__(self, node: int) -> int:
        return self._token_at(self._probs[node], self._uniform[node])


class AcceptByRule:
    """Weighs draft against target as a rule says.

    Args:
        rule: the rule.
        sampling: of the target.
        target: whose logits come.
    """

    def __init__(self, rule: Rule, sampling: Sampling, target: LanguageModel) -> None:
        self._rule = rule
        self._sampling = sampling
        self._vocabulary, self._device = target.config.vocabulary, target.device
        self._on_host = target.device.type == "cpu"
        self._verifiers: OrderedDict[TokenTree, Verifier] = OrderedDict()
        self._last: tuple[TokenTree | None, Verifier | None] = None, None

    @torch.inference_mode()
    def __call__(self, drafts: Sequence[Draft], logits: Tensor, noise: Sequence[torch.Generator]) -> list[Verdict]:
        """See `Acceptance`; drafts of one tree are tested at once on the host, others in turn."""
        probs = distribution(logits, self._sampling)
        tree = drafts[0].tree
        if len(drafts) == 1 or (self._on_host and all(draft.tree is tree for draft in drafts)):
            return self._verdicts(drafts, probs, noise)
        parts = zip(drafts, _rows(drafts), noise, strict=True)
        return [self._verdicts([draft], probs[part], [generator])[0] for draft, part, generator in parts]

    def _verdicts(self, drafts: Sequence[Draft], probs: Tensor, noise: Sequence[torch.Generator]) -> list[Verdict]:
        """Return the verdicts on drafts of one tree, given the target's distributions."""
        verifier = self._verifier(drafts[0].tree, len(drafts))
        tokens = joined([draft.on_device for draft in drafts]).to(self._device)
        sampled_from = [draft.probs for draft in drafts if draft.probs is not None]
        verifier.test(tokens, joined(sampled_from) if len(sampled_from) == len(drafts) else None, probs)
        return verifier.verdicts(noise)

    def prepare(self, tree: TokenTree) -> None:
        """Make the buffers of a tree, and compile what tests it, before its first step."""
        self._verifier(tree, 1)

    def _verifier(self, tree: TokenTree, texts: int) -> Verifier:
        last_tree, last = self._last
        if last is not None and last_tree is tree and last.texts >= texts:
            return last  # most often, and then nothing is looked up
        found = self._verifiers.get(tree)
        if found is None or found.texts < texts:
            if found is None and len(self._verifiers) == KEPT_VERIFIERS:
                self._verifiers.popitem(last=False)
            found = self._verifiers[tree] = Verifier(self._rule, tree, self._vocabulary, self._device, texts=texts)
        self._verifiers.move_to_end(tree)
        self._last = tree, found
        return found


@dataclass(frozen=True, slots=True)
class AcceptEither:
    """Accepts each draft as its tokens came: sampled ones by a rule that needs their distributions, given ones without."""

    by_rule: Acceptance
    given: Acceptance

    def __call__(self, drafts: Sequence[Draft], logits: Tensor, noise: Sequence[torch.Generator]) -> list[Verdict]:
        """See `Acceptance`; what one draft comes to does not depend on how the others came."""
        given = [draft.probs is None and draft.tree.nodes > 1 for draft in drafts]
        if len({*given}) == 1:
            return (self.given if given[0] else self.by_rule)(drafts, logits, noise)
        parts = zip(given, drafts, _rows(drafts), noise, strict=True)
        return [
            (self.given if each else self.by_rule)([draft], logits[rows], [generator])[0]
            for each, draft, rows, generator in parts
        ]

    def prepare(self, tree: TokenTree) -> None:
        """See `Acceptance`; what samples from the target alone, the rule prepares too."""
        self.by_rule.prepare(tree)


def sampled(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return int64 (n,): a token of each distribution, float (n, V), by noise of 53 bits."""
    cumulative = probs.double().cumsum(-1)
    uniform = torch.rand((len(probs), 1), dtype=torch.float64, device=probs.device, generator=generator)
    whole = cumulative[:, -1:].contiguous()
    tokens = torch.searchsorted(cumulative, uniform * whole, right=True)
    last = torch.searchsorted(cumulative, whole)  # rounding may leave no token, and padding has no probability
    return torch.minimum(tokens, last).squeeze(1).clamp_(max=probs.shape[1] - 1)


def _uniform(count: int, generator: torch.Generator) -> list[float]:
    return torch.rand(count, dtype=torch.float64, generator=generator).tolist()


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
