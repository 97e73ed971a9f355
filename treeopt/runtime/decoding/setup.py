"""The models, tree and limits of a decoder, and the checks of everything that a user passes to it."""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

import torch

from treeopt.errors import InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.drafter import ROOT_ONLY, Drafter
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.memory import check_batch_size, check_room, decoder_bytes
from treeopt.runtime.models.model import (
    NO_STATES,
    LanguageModel,
    check_token_ids,
    describe_length_limit,
    shortest_model,
)
from treeopt.runtime.rules import Rule, get_rule
from treeopt.trees import TokenTree


class Setup:
    """Models, tree and limits of a decoder, from the arguments of `Decoder`.

    Raises InvalidValueError for arguments that do not fit.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: LanguageModel | Drafter | None,
        tree: TokenTree | None,
        *,
        sampling: Sampling,
        max_nodes: int | None,
        max_sequence_tokens: int | None,
    ) -> None:
        self.target, self._sampling = target, sampling
        self.draft: LanguageModel | None = None
        """The model that fills the static tree; None for plain decoding, and if a `Drafter` drafts."""
        self.tree: TokenTree | None = None
        """The static tree; None if a `Drafter` brings its own."""
        if isinstance(drafter, Drafter):
            if tree is not None:
                raise InvalidValueError(
                    f"tree: expected none with a drafter that brings its own. Got {tree.nodes} nodes: leave it out."
                )
            self.max_nodes = drafter.max_tokens
        else:
            if drafter is not None and tree is None:
                raise InvalidValueError(
                    "tree: expected the tree that the draft model fills. Got None: give one, or a drafter."
                )
            self.draft, self.tree = drafter, tree or ROOT_ONLY
            self.max_nodes = self.tree.nodes if max_nodes is None else max_nodes
            """Tokens that the target verifies in a step, at most."""
        vocabulary, longest = target.config.vocabulary, target.config.max_positions
        if self.draft is not None and self.draft.config.vocabulary != vocabulary:
            raise InvalidValueError(
                f"drafter: expected the target's vocabulary of {vocabulary} tokens. Got {self.draft.config.vocabulary}: "
                "choose a draft model of the same family, and load both with load_pair.",
                field="drafter",
            )
        if max_sequence_tokens is not None and not 1 <= max_sequence_tokens <= longest:
            raise InvalidValueError(
                f"max_sequence_tokens: expected 1 to {longest}, because {describe_length_limit(target)}. "
                f"Got {max_sequence_tokens}."
            )
        limits = {describe_length_limit(target): longest}
        if max_sequence_tokens is not None:
            limits[f"the decoder was made with max_sequence_tokens {max_sequence_tokens}"] = max_sequence_tokens
        elif (capacity := _capacity(drafter)) is not None:
            limits[f"the drafter was made with capacity {capacity}"] = capacity
        self._length_reason, self.max_sequence_tokens = min(limits.items(), key=itemgetter(1))
        """The longest sequence, and what limits it; the draft model may stop drafting earlier."""
        self._check_capacity(drafter)

    def check_memory(self) -> None:
        """Raise OutOfMemoryError if caches, masks and probabilities need more memory than is free."""
        is_largest = self.tree is not None and self.tree.nodes == self.max_nodes
        description = f"a decoder of trees of {self.max_nodes} nodes and sequences of {self.max_sequence_tokens} tokens"
        for device, size in self._bytes(self.tree if is_largest else None).items():
            check_room(device, size, description)

    def check_batch(self, batch_size: int, *, allocated: int) -> None:
        """Raise OutOfMemoryError, naming the largest batch that fits, if `allocated` sequences have caches already.

        Raises InvalidValueError for a batch size below 1.
        """
        if batch_size < 1:
            raise InvalidValueError(f"batch_size: expected at least 1. Got {batch_size}.", field="batch_size")
        check_batch_size(self._bytes(None), batch_size, allocated=allocated)

    def _bytes(self, tree: TokenTree | None) -> Counter[torch.device]:
        return decoder_bytes(
            self.target,
            self.draft,
            tree,
            sequence_tokens=self.max_sequence_tokens,
            max_nodes=self.max_nodes,
            sampling=self._sampling,
        )

    def check_tree(self, tree: TokenTree) -> None:
        """Raise InvalidValueError for a static tree that the decoder cannot draft and verify."""
        if self.tree is None:
            raise InvalidValueError("tree: expected none, because the drafter brings its own. Got one: leave it out.")
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
                f"tree: expected a depth of at most {deepest}, because {describe_length_limit(shortest)}. Got {tree.max_depth}."
            )

    def check_request(self, tokens: Sequence[int], max_new_tokens: int) -> None:
        """Raise InvalidValueError for a prompt or a number of new tokens that the decoder cannot take."""
        if len(tokens) == 0:
            raise InvalidValueError("token_ids: expected at least one token. Got an empty prompt.", field="token_ids")
        check_token_ids(self.target, tokens, "token_ids")
        if max_new_tokens < 0:
            raise InvalidValueError(
                f"max_new_tokens: expected at least 0. Got {max_new_tokens}.", field="max_new_tokens"
            )
        limit = self.max_sequence_tokens - (max_new_tokens > 0)
        if len(tokens) > limit:
            raise InvalidValueError(
                f"token_ids: expected at most {limit} tokens{' before a new one' if max_new_tokens else ''}, because "
                f"{self._length_reason}. Got {len(tokens)}: give a shorter prompt.",
                field="token_ids",
            )
        room = self.max_sequence_tokens - len(tokens)
        if max_new_tokens > room:
            raise InvalidValueError(
                f"max_new_tokens: expected at most {room} after a prompt of {len(tokens)} tokens, because "
                f"{self._length_reason}. Got {max_new_tokens}: decode fewer, or give a shorter prompt.",
                field="max_new_tokens",
            )

    def check_drafter(self, drafter: Drafter) -> None:
        """Raise InvalidValueError for a drafter that cannot replace the static tree during decoding."""
        if self.tree is None:
            raise InvalidValueError(
                "drafter: expected none, because the decoder was made with one of its own. Got one: make it with a draft "
                "model, or with None.",
                field="drafter",
            )
        if drafter.sampled or drafter.requested_states != NO_STATES:
            raise InvalidValueError(
                "drafter: expected one that neither samples its tokens nor reads hidden states, such as prompt lookup. "
                f"Got {type(drafter).__name__}: make a decoder with it.",
                field="drafter",
            )
        if drafter.max_tokens > self.max_nodes:
            raise InvalidValueError(
                f"drafter: expected drafts of at most {self.max_nodes} tokens, the decoder's max_nodes. "
                f"Got {drafter.max_tokens}: make the decoder with a larger max_nodes.",
                field="drafter",
            )
        self._check_capacity(drafter)

    def _check_capacity(self, drafter: object) -> None:
        """Raise InvalidValueError for a drafter whose caches have no room for the longest sequence."""
        capacity = _capacity(drafter)
        if capacity is not None and capacity < self.max_sequence_tokens:
            raise InvalidValueError(
                f"drafter: expected a capacity of at least {self.max_sequence_tokens} tokens, the decoder's "
                f"max_sequence_tokens. Got {capacity}: make the drafter with a larger capacity, or the decoder with "
                f"max_sequence_tokens={capacity}.",
                field="drafter",
            )


def choose_rule(name: str | None, drafter: object, *, lossy: bool) -> Rule:
    """Return the named rule, by default the one for this kind of drafter.

    Raises InvalidValueError for an unknown rule, a lossy one unless allowed, and one that does not fit the drafter.
    """
    if not isinstance(drafter, Drafter):
        return get_rule(name or "sequoia", lossy=lossy)
    rule = get_rule(name or ("sequoia" if drafter.sampled else "target"), lossy=lossy)
    if rule.random_drafts != drafter.sampled:
        fitting, reason = ("sequoia, specinfer or traversal", "") if drafter.sampled else ("target or typical", "not ")
        raise InvalidValueError(
            f"rule: expected {fitting}, because the drafts are {reason}sampled. Got {rule.name}.", field="rule"
        )
    return rule


def _capacity(drafter: object) -> int | None:
    """Return the longest sequence that a drafter's caches have room for; None for any."""
    return drafter.capacity if isinstance(drafter, SequenceDrafter) else None
