"""Decoding with any drafter: a new tree in every step, verified in one pass of the target."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Bool, Integers
from treeopt.errors import InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime.decode_loop import DecodeLoop
from treeopt.runtime.drafting import Drafter, Extra, Outcome, Proposal
from treeopt.runtime.models.finite import all_finite, on_host
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.passes import Read, TreePass
from treeopt.runtime.rules import Rule, rule_named
from treeopt.runtime.rules.distributions import law
from treeopt.runtime.rules.verify import Verdict, Verifier, verify_greedy
from treeopt.trees import TokenTree


class DraftingDecoder(DecodeLoop):
    """Decodes one text at a time with what a drafter guesses.

    The text's law is the target's: at temperature 0 the same tokens as plain decoding, above it the same distribution,
    because one token is sampled after each node on the way, and followed where it is among the children.

    Args:
        target: the model whose text is wanted.
        drafter: what guesses.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's law that is kept, above 0 and at most 1.
        top_k: tokens of the target's law that are kept, the likeliest; 0 keeps all.
        rule: `target`, or with `lossy` `typical`; the guesses are given, so that no other rule fits.
        lossy: allow a rule under which the text does not follow the target's law.
        seed: of all randomness; the same seed and the same texts give the same tokens.
        max_text_tokens: longest text, prompt included; at most and by default what the target was trained for.

    Raises InvalidValueError for values out of range and rules that draw drafts at random.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter,
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        rule: str = "target",
        lossy: bool = False,
        seed: int = 0,
        max_text_tokens: int | None = None,
    ) -> None:
        super().__init__(
            target,
            None,
            sampling=Sampling(temperature, top_p, top_k),
            seed=seed,
            max_text_tokens=max_text_tokens,
            max_nodes=drafter.max_nodes,
        )
        self._rule = _rule(rule, lossy)
        self._drafter = drafter
        self._last: TokenTree | None = None
        self._again: tuple[TokenTree, TreePass] | None = None

    @torch.inference_mode()
    def start(self, token_ids: Sequence[int]) -> None:
        """Begin a text: fill the target's cache with all of it but the last token, which becomes the root."""
        hidden = self._begin(token_ids)
        self._drafter.start(token_ids, hidden)

    @torch.inference_mode()
    def draft(self) -> Proposal:
        """Return the guesses of a step."""
        return self._drafter.propose()

    @torch.inference_mode()
    def read(self, proposal: Proposal) -> Read:
        """Return what the target says after every token of a proposal."""
        extra = proposal.extra
        if extra is None:
            tokens, run = proposal.tokens, self._pass_of(proposal.tree)
        else:
            tokens, run = torch.cat([proposal.tokens, extra.tokens]), self._pass_with(proposal.tree, extra)
        return run.read(tokens.to(self.target.device))

    @torch.inference_mode()
    def settle(self, proposal: Proposal, read: Read) -> list[int]:
        """Accept a path of a proposal and return the tokens that the step commits."""
        tokens, scores = on_host(proposal.tokens, proposal.scores and proposal.scores.values)
        if proposal.scores is not None and not all_finite(scores):
            self._warn_of_draft(proposal.scores.model)
            proposal = Proposal(TokenTree([-1]), proposal.tokens[:1])
        verdict = self._verdict(proposal, tokens, read.logits[: proposal.tree.nodes])
        self._check_target(verdict)
        committed = [*(tokens[node] for node in verdict.nodes[1:]), verdict.bonus]
        self._cache.keep(verdict.nodes)
        self._drafter.accept(Outcome(verdict.nodes, committed, read.logits, read.hidden))
        return committed

    def _pass_of(self, tree: TokenTree) -> TreePass:
        """Return the pass over a tree: one for texts of any length where the tree comes again and again."""
        if self._again is not None and self._again[0] == tree:
            return self._again[1]
        repeated, self._last = tree == self._last, tree
        capacity = self.max_text_tokens if repeated else self._cache.length
        run = self._pass(tree.ancestor_mask, tree.depth, capacity=capacity)
        if repeated:
            self._again = tree, run
        return run

    def _pass_with(self, tree: TokenTree, extra: Extra) -> TreePass:
        """Return the pass over a tree and extra tokens, for the text as long as it is now."""
        depth = np.concatenate([tree.depth, extra.depth])
        return self._pass(_joined(tree.ancestor_mask, extra.visible), depth, capacity=self._cache.length)

    def _pass(self, visible: Bool, depth: Integers, *, capacity: int) -> TreePass:
        if depth.max() > self._trained_tokens:  # positions are prepared for twice the trained length
            raise InvalidValueError(
                f"drafter: expected tokens at most {self._trained_tokens} places behind the root, the trained length. "
                f"Got {depth.max()}: ask for a smaller window or depth."
            )
        return TreePass(self.target, self._cache, visible=visible, depth=depth, capacity=capacity)

    def _verdict(self, proposal: Proposal, tokens: list[int], logits: Tensor) -> Verdict:
        if self._sampling.greedy:
            numbers, wanted = logits.max(-1)
        else:
            laws = law(logits, self._sampling)
            if self._rule.name != "target":
                return self._typical(proposal, laws)
            numbers, wanted = laws[:, 0], sampled(laws, self._generator)
        following, scores = on_host(wanted, numbers)
        verdict = verify_greedy(children_of(proposal.tree), tokens, following)
        finite = all_finite([scores[node] for node in verdict.nodes])
        return verdict if finite else replace(verdict, finite=False)

    def _typical(self, proposal: Proposal, laws: Tensor) -> Verdict:
        verifier = Verifier(self._rule, proposal.tree, laws.shape[1], laws.device)
        verifier.judge(proposal.tokens.to(laws.device), None, laws)
        return verifier.verdict(self._generator)


def sampled(laws: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return int64 (n,): a token of each law, float (n, V), by noise of 53 bits."""
    cumulative = laws.double().cumsum(-1)
    uniform = torch.rand((len(laws), 1), dtype=torch.float64, device=laws.device, generator=generator)
    tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return tokens.squeeze(1).clamp_(max=laws.shape[1] - 1)


def children_of(tree: TokenTree) -> list[range]:
    """Return the indices of every node's children."""
    edges = np.searchsorted(tree.parents, np.arange(tree.nodes + 1)).tolist()
    return [range(first, end) for first, end in pairwise(edges)]


def _joined(tree: Bool, extra: Bool) -> Bool:
    """Return the mask of nodes and extra tokens together; no node sees an extra token."""
    nodes, rest = len(tree), len(extra)
    return np.vstack([np.hstack([tree, np.zeros((nodes, rest), np.bool_)]), extra])


def _rule(name: str, lossy: bool) -> Rule:
    rule = rule_named(name, lossy=lossy)
    if rule.random_drafts:
        raise InvalidValueError(f"rule: expected target or typical, because the guesses are not drawn. Got {name}.")
    return rule
