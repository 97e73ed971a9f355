"""Prompt lookup: the text goes on as it did after the last occurrence of its newest tokens (Saxena, 2023)."""

from collections.abc import Iterable, Sequence

import torch

from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.drafters.recurring import recurring_chain
from treeopt.runtime.models.model import NOTHING, States
from treeopt.trees.own_trees import PromptLookupSetting


class PromptLookupDrafter:
    """Drafts a chain: what stood behind the latest earlier occurrence of the text's last n tokens.

    n goes down from `max_ngram` to 1, and the first that occurred earlier counts; where none did, the root stands
    alone.  Where fewer than `length` tokens stood behind it, the draft goes on with its own beginning, so that a text
    that repeats itself is drafted to go on doing so.

    An index of where every n-gram ended last is kept as the text grows: a step costs `max_ngram` look-ups and as many
    entries per new token, however long the text is.  Memory: the text, and at most `max_ngram` entries a token of it.

    Args:
        max_ngram: most tokens at the text's end that are looked up.
        length: tokens drafted.

    Raises InvalidValueError for numbers below 1.
    """

    sampled = False
    wants = NOTHING

    def __init__(self, max_ngram: int, length: int) -> None:
        self.setting = PromptLookupSetting(max_ngram, length)
        self.max_tokens = self.setting.max_nodes
        self._texts: dict[int, IndexedText] = {}

    def begin(self, text: int, tokens: Sequence[int], states: States | None = None) -> None:  # noqa: ARG002
        self._texts[text] = IndexedText(self.setting.ngram, tokens)

    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator] = ()) -> list[Proposal]:  # noqa: ARG002
        """Return the roots, each with the chain drafted below it."""
        return [self._propose(self._texts[text]) for text in texts]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        for text, step in zip(texts, steps, strict=True):
            self._texts[text].append(step.tokens)

    def end(self, text: int) -> None:
        self._texts.pop(text, None)

    def _propose(self, text: "IndexedText") -> Proposal:
        drafted = text.going_on(self.setting.length)
        return Proposal(recurring_chain(len(drafted)), torch.tensor([text.root, *drafted]))


class IndexedText:
    """A text with the place behind the last occurrence of every n-gram before its end.

    Args:
        max_ngram: most tokens of an n-gram.
        tokens: the text, which `append` makes longer.
    """

    def __init__(self, max_ngram: int, tokens: Iterable[int]) -> None:
        self._max_ngram = max_ngram
        self._tokens: list[int] = []
        self.ends: dict[tuple[int, ...], int] = {}
        self.append(tokens)

    @property
    def root(self) -> int:
        """The last token."""
        return self._tokens[-1]

    def append(self, tokens: Iterable[int]) -> None:
        """Make the text longer."""
        for token in tokens:
            self.ends.update(dict.fromkeys(self._last_ngrams(), len(self._tokens)))
            self._tokens.append(token)

    def going_on(self, length: int) -> list[int]:
        """Return so many tokens that stood behind the text's last ones before, none where they are new."""
        end = next((self.ends[ngram] for ngram in self._last_ngrams() if ngram in self.ends), None)
        found = [] if end is None else self._tokens[end : end + length]
        for copied in range(length - len(found) if found else 0):
            found.append(found[copied])
        return found

    def _last_ngrams(self) -> list[tuple[int, ...]]:
        """Return the n-grams at the text's end, longest first."""
        last = tuple(self._tokens[-self._max_ngram :])
        return [last[first:] for first in range(len(last))]
