"""Decoding with a static tree: draft it, verify it in one pass of the target, commit the accepted path and one token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.records.sampling import Sampling, draft_law
from treeopt.runtime.decode_loop import DecodeLoop
from treeopt.runtime.drafter import Draft, ModelDrafter
from treeopt.runtime.models.finite import all_finite, on_host
from treeopt.runtime.models.graphs import passes_over, pool_for
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.passes import PassNodes
from treeopt.runtime.rules import rule_named
from treeopt.runtime.rules.distributions import law
from treeopt.runtime.rules.verify import Verdict, Verifier, verify_greedy
from treeopt.trees import TokenTree


class _Verification(NamedTuple):
    """What the drafts of one tree are verified with."""

    children: list[range]
    verifier: Verifier | None
    """None at temperature 0."""


class Decoder(DecodeLoop):
    """Decodes one text at a time with a static tree; with the tree of the root alone it is plain decoding.

    The text's law is the target's: at temperature 0 the same tokens as plain decoding, above it the same distribution.

    Args:
        target: the model whose text is wanted.
        drafter: the draft model, or None when the tree is the root alone.
        tree: what to draft in every step.
        rule: verification rule; at temperature 0 all are one.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's law that is kept, above 0 and at most 1.
        top_k: tokens of the target's law that are kept, the likeliest; 0 keeps all.
        draft_sampling: the law that children are drawn from; by default the target's temperature and all tokens.  It
            changes how many are accepted, never the text's law.
        seed: of all randomness; the same seed and the same texts give the same tokens.
        lossy: allow a rule under which the text does not follow the target's law.
        max_text_tokens: longest text, prompt included; at most and by default what both models were trained for.
        max_nodes: nodes of the largest tree that `change_tree` may bring; by default this tree's.
        cuda_graphs: whether passes are captured as CUDA graphs, which takes a moment for every new tree shape; by
            default on a CUDA device.  On a CPU, the same work is done without graphs.

    Raises InvalidValueError for values out of range and models whose vocabularies differ in size, OutOfMemoryError where
    caches, masks and probabilities need more memory than is free.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: LanguageModel | None,
        tree: TokenTree,
        *,
        rule: str = "sequoia",
        temperature: float = 0.6,
        top_p: float = 1.0,
        top_k: int = 0,
        draft_sampling: Sampling | None = None,
        seed: int = 0,
        lossy: bool = False,
        max_text_tokens: int | None = None,
        max_nodes: int | None = None,
        cuda_graphs: bool | None = None,
    ) -> None:
        self._rule = rule_named(rule, lossy=lossy)
        sampling = Sampling(temperature, top_p, top_k)
        drawn_by = draft_law(sampling, draft_sampling)
        super().__init__(
            target,
            drafter,
            sampling=sampling,
            seed=seed,
            max_text_tokens=max_text_tokens,
            max_nodes=tree.nodes if max_nodes is None else max_nodes,
            tree=tree if max_nodes in (None, tree.nodes) else None,
        )
        self._drafts = drafter is not None
        self._check_tree(tree)
        pool = pool_for(target.device, cuda_graphs)
        self._passes = passes_over(
            target, self._cache, capacity=self.max_text_tokens, max_nodes=self.max_nodes, pool=pool
        )
        self._use_tree(tree)
        self._root = 0
        self._drafter: ModelDrafter | None = None
        if drafter is not None and self.max_nodes > 1:
            self._drafter = ModelDrafter(
                drafter,
                tree,
                rule=self._rule,
                sampling=drawn_by,
                capacity=self.max_text_tokens,
                max_nodes=self.max_nodes,
                pool=pool,
            )

    @torch.inference_mode()
    def start(self, token_ids: Sequence[int]) -> None:
        """Begin a text: fill both caches with all of it but the last token, which becomes the root."""
        super().start(token_ids)
        self._root = token_ids[-1]
        if self._drafter is not None:
            self._drafter.start(token_ids)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft and verify another tree from the next step on, between texts or within one.

        What is committed stays, and so do both caches and all captured graphs.

        Raises InvalidValueError for a tree of more nodes than `max_nodes`, and where the decoder could not be made
        with it.
        """
        self._check_tree(tree)
        self._use_tree(tree)
        if self._drafter is not None:
            self._drafter.change_tree(tree)

    def _use_tree(self, tree: TokenTree) -> None:
        self.tree = tree
        (self._pass,) = self._passes.make([PassNodes(visible=tree.ancestor_mask, depth=tree.depth)])
        self._verification = self._verification_of(tree)

    def _verification_of(self, tree: TokenTree) -> "_Verification":
        children = [tree.children(node) for node in range(tree.nodes)]
        if self._sampling.greedy:
            return _Verification(children, None)
        return _Verification(children, Verifier(self._rule, tree, self.target.config.vocabulary, self.target.device))

    def draft(self) -> Draft:
        """Return the drafted tree."""
        if self._drafter is None:
            return Draft(torch.full((1,), self._root, device=self.target.device), None, None)
        return self._drafter.propose(self._generator)

    def score(self, tokens: Tensor) -> Tensor:
        """Return the target's logits (n, V) after each node of the tree."""
        return self._pass(tokens)

    def read(self, drafted: Draft) -> Tensor:
        """Return the target's logits of a draft."""
        return self.score(drafted.tokens)

    @torch.inference_mode()
    def settle(self, drafted: Draft, read: Tensor) -> list[int]:
        """Accept a path of a draft, given the target's logits, and return the tokens that the step commits."""
        tokens, scores = on_host(drafted.tokens, drafted.scores)
        if all_finite(scores):
            return self.commit(tokens, self.judge(drafted, tokens, read))
        assert self._drafter is not None
        self._warn_of_draft(self._drafter.model.name)
        nodes = self._drafter.usable_nodes(scores)
        usable = Draft(drafted.tokens[:nodes], None if drafted.probs is None else drafted.probs[:nodes], None)
        committed = self.commit(tokens, self.judge(usable, tokens[:nodes], read[:nodes]))
        self._drafter.clean()
        return committed

    def judge(self, draft: Draft, tokens: Sequence[int], logits: Tensor) -> Verdict:
        """Choose the accepted path and the token after it, among the first nodes of the tree where there are fewer.

        Args:
            draft: of these nodes.
            tokens: theirs.
            logits: (n, V), the target's after each.
        """
        nodes = len(tokens)
        children, verifier = self._verification
        if nodes < self.tree.nodes:
            children, verifier = self._verification_of(TokenTree(self.tree.parents[:nodes]))
        if verifier is None:
            largest, likeliest = logits.max(-1)
            wanted, scores = on_host(likeliest, largest)
            verdict = verify_greedy(children, tokens, wanted)
            finite = all_finite([scores[node] for node in verdict.nodes])
            return verdict if finite else replace(verdict, finite=False)
        verifier.judge(draft.tokens, draft.probs, law(logits, self._sampling))
        return verifier.verdict(self._generator)

    def commit(self, tokens: Sequence[int], verdict: Verdict) -> list[int]:
        """Keep the accepted path in both caches and make the bonus token the new root.

        Raises TreeoptError, and forgets the text, where the target's distributions are not finite.
        """
        if not verdict.finite:
            self._cache.clear()
            self._passes.clean()
        self._check_target(verdict)
        path = verdict.nodes
        self._cache.keep(path)
        if self._drafter is not None:
            self._drafter.accept(path, tokens, verdict.bonus)
        self._root = verdict.bonus
        return [*(tokens[node] for node in path[1:]), verdict.bonus]

    def _check_tree(self, tree: TokenTree) -> None:
        vocabulary = self.target.config.vocabulary
        if tree.nodes > 1 and not self._drafts:
            raise InvalidValueError(f"drafter: expected a draft model for a tree of {tree.nodes} nodes. Got None.")
        if tree.nodes > self.max_nodes:
            raise InvalidValueError(
                f"tree: expected at most {self.max_nodes} nodes, the decoder's max_nodes. Got {tree.nodes}."
            )
        if tree.nodes > 1 and int(tree.child_counts.max()) > vocabulary:
            raise InvalidValueError(
                f"tree: expected at most {vocabulary} children per node, the vocabulary. Got {tree.child_counts.max()}."
            )
        if tree.max_depth > self._trained_tokens:  # positions are prepared for twice the trained length
            raise InvalidValueError(
                f"tree: expected a depth of at most {self._trained_tokens}, the trained length. Got {tree.max_depth}."
            )
