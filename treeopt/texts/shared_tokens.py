"""Comparison of the vocabularies of two tokenizers."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from treeopt.errors import InvalidValueError

LEAST_SHARED = 0.5
"""Smallest fraction of the target's tokens that the draft's tokenizer shares."""


class Vocabulary(Protocol):
    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Token ids by token, added ones included."""

    @property
    def added_ids(self) -> AbstractSet[int]:
        """Ids of special and added tokens."""


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """Token ids that two tokenizers share, and the numbers of the others."""

    ids: tuple[int, ...]
    """Ids of the same token in both, sorted."""
    differing: int
    """Ids of special or added tokens that differ."""
    target_only: int
    draft_only: int

    @property
    def identical(self) -> bool:
        return not (self.differing or self.target_only or self.draft_only)

    def note(self, target_logits: int, draft_logits: int) -> str:
        """Return the comparison in one line."""
        return (
            f"Vocabularies: {len(self.ids)} shared ids, {self.differing} that differ, {self.target_only} in the target "
            f"only, {self.draft_only} in the draft only; {target_logits} logits in the target, {draft_logits} in the "
            "draft. Only shared ids are drafted."
        )


def compare_tokens(target: Vocabulary, draft: Vocabulary) -> SharedTokens:
    """Return the ids that two tokenizers share.

    Special and added tokens may differ, and either tokenizer may have more tokens.

    Raises InvalidValueError if an ordinary token differs, or if the target shares fewer than half of its tokens.
    """
    tokens, draft_tokens = (
        {index: token for token, index in tokenizer.vocabulary.items()} for tokenizer in (target, draft)
    )
    shared = {index for _, index in target.vocabulary.items() & draft.vocabulary.items()}
    differing = (tokens.keys() & draft_tokens.keys()) - shared
    ordinary = sorted(differing - target.added_ids - draft.added_ids) if differing else []
    if ordinary:
        first = ordinary[0]
        raise InvalidValueError(
            f"draft: expected the target's tokenizer. {len(ordinary)} ids stand for other tokens, the first is {first}: "
            f"{tokens[first]!r} in the target, {draft_tokens[first]!r} in the draft. Choose a draft of the same family.",
            field="draft",
        )
    if len(shared) < LEAST_SHARED * len(tokens):
        raise InvalidValueError(
            f"draft: expected the target's tokenizer. {len(shared)} of the target's {len(tokens)} tokens have the same id "
            "in the draft: choose a draft of the same family.",
            field="draft",
        )
    return SharedTokens(
        ids=tuple(sorted(shared)),
        differing=len(differing),
        target_only=len(tokens.keys() - draft_tokens.keys()),
        draft_only=len(draft_tokens.keys() - tokens.keys()),
    )
