"""What a decoder is made of and what it refuses: checked before any of it is made, and before a text runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treeopt.errors import InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.plain import PlainDrafter
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.models.memory import check_room, check_texts, decoder_bytes
from treeopt.runtime.models.model import NOTHING, LanguageModel, length_limit, shortest_model
from treeopt.runtime.models.runner import GraphPool, pool_for
from treeopt.runtime.rules import Rule, rule_named
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Models, tree and limits of a decoder."""

    target: LanguageModel
    draft: LanguageModel | None
    """The model that fills a static tree, None where nothing or a drafter of its own drafts."""
    tree: TokenTree | None
    """The static tree; None with a drafter of its own."""
    max_nodes: int
    """Most tokens that the target verifies in a step."""
    max_text_tokens: int
    """Longest text; the draft model may stop drafting before."""

    @classmethod
    def of(
        cls,
        target: LanguageModel,
        drafter: LanguageModel | Drafter | None,
        tree: TokenTree | None,
        *,
        max_nodes: int | None,
        max_text_tokens: int | None,
    ) -> "Setup":
        """Return the setup for the arguments of `Decoder`; raises InvalidValueError for those that do not fit."""
        own = isinstance(drafter, Drafter)
        draft = None if isinstance(drafter, Drafter) else drafter
        _check_kind(own=own, draft=draft, tree=tree)
        static = None if own else tree or ROOT_ALONE
        _check_draft(target, draft)
        return cls(
            target=target,
            draft=draft,
            tree=static,
            max_nodes=_max_nodes(drafter, static, max_nodes),
            max_text_tokens=_text_limit(max_text_tokens, target),
        )

    @property
    def _length_reason(self) -> str:
        """Why no text may be longer than `max_text_tokens`."""
        if self.max_text_tokens < self.target.config.max_positions:
            return f"the decoder was made with max_text_tokens {self.max_text_tokens}"
        return length_limit(self.target)

    def check_memory(self, sampling: Sampling) -> None:
        """Raise OutOfMemoryError where caches, masks and probabilities need more memory than is free."""
        known = self.tree is not None and self.tree.nodes == self.max_nodes
        what = f"a decoder of trees of {self.max_nodes} nodes and texts of {self.max_text_tokens} tokens"
        for device, size in self._bytes(self.tree if known else None, sampling).items():
            check_room(device, size, what)

    def check_batch(self, sampling: Sampling, batch_size: int, *, there: int) -> None:
        """Refuse more texts at a time than memory has room for.

        Args:
            sampling: of the target.
            batch_size: texts.
            there: for how many of them there is room already.

        Raises InvalidValueError for no text at all, OutOfMemoryError naming the most that fit.
        """
        if batch_size < 1:
            raise InvalidValueError(f"batch_size: expected at least 1. Got {batch_size}.", field="batch_size")
        check_texts(self._bytes(None, sampling), batch_size, there=there)

    def _bytes(self, tree: TokenTree | None, sampling: Sampling) -> Counter[torch.device]:
        return decoder_bytes(
            self.target,
            self.draft,
            tree,
            text_tokens=self.max_text_tokens,
            max_nodes=self.max_nodes,
            sampling=sampling,
        )

    def check_tree(self, tree: TokenTree) -> None:
        """Raise InvalidValueError for a static tree that the decoder cannot draft and verify."""
        if tree.nodes > 1 and self.draft is None:
            raise InvalidValueError(
                f"drafter: expected a draft model for a tree of {tree.nodes} nodes. Got None.", field="drafter"
            )
        if tree.nodes > self.max_nodes:
            raise InvalidValueError(
                f"tree: expected at most {self.max_nodes} nodes, the decoder's max_nodes. Got {tree.nodes}."
            )
        vocabulary = self.target.config.vocabulary
        if tree.nodes > 1 and int(tree.child_counts.max()) > vocabulary:
            raise InvalidValueError(
                f"tree: expected at most {vocabulary} children per node, the vocabulary. Got {tree.child_counts.max()}."
            )
        shortest = shortest_model(self.target, self.draft)
        deepest = shortest.config.max_positions  # positions are prepared for twice as many
        if tree.max_depth > deepest:
            raise InvalidValueError(
                f"tree: expected a depth of at most {deepest}, because {length_limit(shortest)}. Got {tree.max_depth}."
            )

    def check_text(self, tokens: Sequence[int], max_new_tokens: int) -> None:
        """Raise InvalidValueError for a prompt, or a number of new tokens after it, that the decoder cannot take."""
        vocabulary = self.target.config.vocabulary
        if len(tokens) == 0:
            raise InvalidValueError("token_ids: expected at least one token. Got an empty prompt.", field="token_ids")
        if not all(0 <= token < vocabulary for token in tokens):
            raise InvalidValueError(f"token_ids: expected tokens from 0 to {vocabulary - 1}.", field="token_ids")
        if max_new_tokens < 0:
            raise InvalidValueError(
                f"max_new_tokens: expected at least 0. Got {max_new_tokens}.", field="max_new_tokens"
            )
        most = self.max_text_tokens - (max_new_tokens > 0)
        if len(tokens) > most:
            raise InvalidValueError(
                f"token_ids: expected at most {most} tokens{' before a new one' if max_new_tokens else ''}, because "
                f"{self._length_reason}. Got {len(tokens)}: give a shorter prompt.",
                field="token_ids",
            )
        room = self.max_text_tokens - len(tokens)
        if max_new_tokens > room:
            raise InvalidValueError(
                f"max_new_tokens: expected at most {room} after a prompt of {len(tokens)} tokens, because "
                f"{self._length_reason}. Got {max_new_tokens}: decode fewer, or give a shorter prompt.",
                field="max_new_tokens",
            )

    def check_change(self, drafter: Drafter) -> None:
        """Raise InvalidValueError for a drafter that cannot take the place of the static tree while texts are decoded."""
        if self.tree is None:
            raise InvalidValueError(
                "drafter: expected none, because the decoder was made with one of its own. Got one: make it with a draft "
                "model, or with None.",
                field="drafter",
            )
        if drafter.sampled or drafter.wants != NOTHING:
            raise InvalidValueError(
                "drafter: expected one whose tokens are given and that reads no hidden states, such as prompt lookup. "
                f"Got {type(drafter).__name__}: make a decoder with it.",
                field="drafter",
            )
        if drafter.max_tokens > self.max_nodes:
            raise InvalidValueError(
                f"drafter: expected drafts of at most {self.max_nodes} tokens, the decoder's max_nodes. "
                f"Got {drafter.max_tokens}: make the decoder with a larger max_nodes.",
                field="drafter",
            )

    def static_drafter(
        self, rule: Rule, sampling: Sampling, pool: GraphPool | None, cuda_graphs: bool | None
    ) -> PlainDrafter | StaticTreeDrafter:
        """Return what drafts the static tree.

        Args:
            rule: the verification rule.
            sampling: what children are sampled from.
            pool: where the target's passes are captured, or None.
            cuda_graphs: whether those of a draft model on another device are captured too, as for `Decoder`.
        """
        if self.draft is None or self.tree is None or self.max_nodes == 1:
            return PlainDrafter()
        if self.draft.device != self.target.device:
            pool = pool_for(self.draft.device, cuda_graphs)
        return StaticTreeDrafter(
            self.draft,
            self.tree,
            rule=rule,
            sampling=sampling,
            capacity=self.max_text_tokens,
            max_nodes=self.max_nodes,
            pool=pool,
        )


def fitting_rule(name: str | None, drafter: object, *, lossy: bool) -> Rule:
    """Return a rule by its name, by default the one for what drafts.

    Raises InvalidValueError for an unknown rule, a lossy one unless allowed, and one that does not fit a `Drafter`.
    """
    if not isinstance(drafter, Drafter):
        return rule_named(name or "sequoia", lossy=lossy)
    rule = rule_named(name or ("sequoia" if drafter.sampled else "target"), lossy=lossy)
    if rule.random_drafts != drafter.sampled:
        fitting, reason = ("sequoia, specinfer or traversal", "") if drafter.sampled else ("target or typical", "not ")
        raise InvalidValueError(
            f"rule: expected {fitting}, because the drafts are {reason}sampled. Got {rule.name}.", field="rule"
        )
    return rule


def _max_nodes(drafter: object, tree: TokenTree | None, asked: int | None) -> int:
    """Return the most tokens that are verified in a step: what a `Drafter` says, what was asked for, or the tree's."""
    if isinstance(drafter, Drafter):
        return drafter.max_tokens
    return (tree or ROOT_ALONE).nodes if asked is None else asked


def _check_kind(*, own: bool, draft: LanguageModel | None, tree: TokenTree | None) -> None:
    if own and tree is not None:
        raise InvalidValueError(
            f"tree: expected none with a drafter that brings its own. Got {tree.nodes} nodes: leave it out."
        )
    if draft is not None and tree is None:
        raise InvalidValueError("tree: expected the tree that the draft model fills. Got None: give one, or a drafter.")


def _text_limit(max_text_tokens: int | None, target: LanguageModel) -> int:
    """Return the longest text: `max_text_tokens`, by default as long as the target takes; raises InvalidValueError beyond."""
    longest = target.config.max_positions
    if max_text_tokens is not None and not 1 <= max_text_tokens <= longest:
        raise InvalidValueError(
            f"max_text_tokens: expected 1 to {longest}, because {length_limit(target)}. Got {max_text_tokens}."
        )
    return longest if max_text_tokens is None else max_text_tokens


def _check_draft(target: LanguageModel, draft: LanguageModel | None) -> None:
    """Refuse a draft model with another vocabulary size than the target."""
    if draft is None:
        return
    vocabulary = target.config.vocabulary
    if draft.config.vocabulary != vocabulary:
        raise InvalidValueError(
            f"drafter: expected the target's vocabulary of {vocabulary} tokens. "
            f"Got {draft.config.vocabulary}: choose a draft model of the same family, and load both with load_pair.",
            field="drafter",
        )
