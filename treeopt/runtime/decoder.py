"""The decode loop: draft a tree, verify it in one pass of the target, commit the accepted path and one token more."""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafter import Draft, ModelDrafter
from treeopt.runtime.mask import TreeMask
from treeopt.runtime.sampling import check_rule, check_sampling, probabilities
from treeopt.runtime.transformer import Transformer
from treeopt.runtime.verification import Verdict, verify, verify_greedy
from treeopt.trees import TokenTree


class Decoder:
    """Decodes one text at a time with a static tree; with the tree of the root alone it is plain decoding.

    The text's law is the target's: at temperature 0 the same tokens as plain decoding, above it the same distribution.

    Args:
        target: the model whose text is wanted.
        drafter: the draft model, or None when the tree is the root alone.
        tree: what to draft in every step.
        rule: verification rule; at temperature 0 all lossless rules are one.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's law that is kept, above 0 and at most 1.
        seed: of all randomness; the same seed gives the same text.
        max_text_tokens: longest text, prompt included; at most and by default what both models were trained for.

    Raises InvalidValueError for values out of range and models whose vocabularies differ in size.
    """

    def __init__(
        self,
        target: Transformer,
        drafter: Transformer | None,
        tree: TokenTree,
        *,
        rule: str = "sequoia",
        temperature: float = 0.6,
        top_p: float = 1.0,
        seed: int = 0,
        max_text_tokens: int | None = None,
    ) -> None:
        check_rule(rule)
        _check(target, drafter, tree, temperature, top_p)
        trained = min(model.config.max_positions for model in (target, drafter) if model is not None)
        self.max_text_tokens = trained if max_text_tokens is None else max_text_tokens
        if not 1 <= self.max_text_tokens <= trained:
            raise InvalidValueError(
                f"max_text_tokens: expected 1 to {trained}, the trained length. Got {max_text_tokens}."
            )
        if tree.max_depth > trained:  # positions are prepared for twice the trained length
            raise InvalidValueError(
                f"tree: expected a depth of at most {trained}, the trained length. Got {tree.max_depth}."
            )
        self.target = target
        self.tree = tree
        self._rule = rule
        self._temperature = temperature
        self._top_p = top_p
        self._generator = torch.Generator(target.device).manual_seed(seed)
        self._cache = target.new_cache(self.max_text_tokens + tree.nodes)
        visible = torch.from_numpy(tree.ancestor_mask)
        self._mask = TreeMask(visible, self.max_text_tokens, dtype=target.dtype, device=target.device)
        self._depth = torch.from_numpy(tree.depth.astype("int64")).to(target.device)
        self._children = [tree.children(node) for node in range(tree.nodes)]
        self._root = 0
        self._drafter: ModelDrafter | None = None
        if drafter is not None and tree.max_depth > 0:
            self._drafter = ModelDrafter(
                drafter, tree, rule=rule, temperature=temperature, capacity=self.max_text_tokens
            )

    def generate(self, token_ids: Sequence[int], max_new_tokens: int) -> Iterator[int]:
        """Return an iterator over the committed tokens, decoded as they are asked for.

        It ends after `max_new_tokens` or with the target's end token; a new text ends the one before it.
        Raises InvalidValueError, before anything runs, for an empty prompt, a token outside the vocabulary, or a text
        longer than the models were trained for.
        """
        return chain.from_iterable(self.steps(token_ids, max_new_tokens))

    def steps(self, token_ids: Sequence[int], max_new_tokens: int) -> Iterator[list[int]]:
        """Return an iterator over the tokens of each step; `generate` returns them one by one."""
        self._check_text(token_ids, max_new_tokens)
        self.start(token_ids)
        return self._steps(max_new_tokens)

    def _steps(self, max_new_tokens: int) -> Iterator[list[int]]:
        ends = self.target.config.end_tokens
        left = max_new_tokens
        while left > 0:
            tokens = self.step()[:left]
            last = next((place for place, token in enumerate(tokens) if token in ends), None)
            if last is not None:
                tokens, left = tokens[: last + 1], 0
            left -= len(tokens)
            yield tokens

    @torch.inference_mode()
    def start(self, token_ids: Sequence[int]) -> None:
        """Begin a text: fill both caches with all of it but the last token, which becomes the root."""
        self._cache.clear()
        self.target.prefill(torch.tensor(token_ids[:-1], device=self.target.device), self._cache)
        self._root = token_ids[-1]
        if self._drafter is not None:
            self._drafter.start(token_ids)

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Decode one step: return the accepted draft tokens and the one sampled after them."""
        draft = self.draft()
        logits = self.score(draft.tokens)
        tokens = draft.tokens.tolist()
        verdict = self.judge(draft, tokens, logits)
        return self.commit(tokens, verdict)

    def draft(self) -> Draft:
        """Return the drafted tree."""
        if self._drafter is None:
            return Draft(torch.tensor([self._root], device=self.target.device), None)
        return self._drafter.propose(self._generator)

    def score(self, tokens: Tensor) -> Tensor:
        """Return the target's logits (n, V) after each node of the tree."""
        return self.target.forward(
            tokens, self._cache.length + self._depth, self._cache, self._mask.behind(self._cache.length)
        )

    def judge(self, draft: Draft, tokens: Sequence[int], logits: Tensor) -> Verdict:
        """Choose the accepted path and the token after it."""
        if self._temperature == 0:
            return verify_greedy(self._children, tokens, logits.argmax(-1).tolist())
        target_probs = probabilities(logits, self._temperature, self._top_p)
        draft_probs = target_probs if draft.probs is None else draft.probs  # a root alone has no draft law to read
        return verify(self._rule, self.tree, draft.tokens, draft_probs, target_probs, self._generator)

    def commit(self, tokens: Sequence[int], verdict: Verdict) -> list[int]:
        """Keep the accepted path in both caches and make the bonus token the new root."""
        path: list[int] = verdict.path.tolist()
        self._cache.keep(path)
        if self._drafter is not None:
            self._drafter.accept(path, tokens, verdict.bonus)
        self._root = verdict.bonus
        return [*(tokens[node] for node in path[1:]), verdict.bonus]

    def _check_text(self, token_ids: Sequence[int], max_new_tokens: int) -> None:
        vocabulary = self.target.config.vocabulary
        if len(token_ids) == 0:
            raise InvalidValueError("token_ids: expected at least one token. Got an empty prompt.")
        if not all(0 <= token < vocabulary for token in token_ids):
            raise InvalidValueError(f"token_ids: expected tokens from 0 to {vocabulary - 1}.")
        if max_new_tokens < 0 or len(token_ids) + max_new_tokens > self.max_text_tokens:
            raise InvalidValueError(
                f"max_new_tokens: expected 0 to {self.max_text_tokens - len(token_ids)} after a prompt of "
                f"{len(token_ids)}, because the models were trained on texts of {self.max_text_tokens} tokens. "
                f"Got {max_new_tokens}."
            )


def _check(target: Transformer, drafter: Transformer | None, tree: TokenTree, temperature: float, top_p: float) -> None:
    if drafter is None and tree.nodes > 1:
        raise InvalidValueError(f"drafter: expected a draft model for a tree of {tree.nodes} nodes. Got None.")
    if drafter is not None and drafter.config.vocabulary != target.config.vocabulary:
        raise InvalidValueError(
            f"drafter: expected the target's vocabulary of {target.config.vocabulary} tokens. "
            f"Got {drafter.config.vocabulary}: choose a draft model of the same family."
        )
    check_sampling(temperature, top_p)
    if tree.nodes > 1 and int(tree.child_counts.max()) > target.config.vocabulary:
        raise InvalidValueError(
            f"tree: expected at most {target.config.vocabulary} children per node, the vocabulary. "
            f"Got {tree.child_counts.max()}."
        )
