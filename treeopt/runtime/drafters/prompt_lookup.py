"""Prompt lookup: the text goes on as it did after the last occurrence of its newest tokens (Saxena, 2023)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafting import Outcome, Proposal
from treeopt.trees import chain


@dataclass(frozen=True, slots=True)
class PromptLookupSetting:
    """The two numbers of prompt lookup.

    Raises InvalidValueError for numbers below 1.
    """

    ngram: int
    """Most tokens at the text's end that are looked up."""
    length: int
    """Tokens guessed."""

    def __post_init__(self) -> None:
        for name in ("ngram", "length"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name}: expected at least 1. Got {getattr(self, name)}.")

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass: the root and the guesses."""
        return 1 + self.length


PROMPT_LOOKUP_SETTINGS = tuple(PromptLookupSetting(ngram, length) for ngram in (2, 4, 8) for length in (2, 4, 8, 16))
"""Worth trying on a small machine."""


class PromptLookupDrafter:
    """Guesses a chain: what stood behind the latest earlier occurrence of the text's last n tokens.

    n goes down from `max_ngram` to 1, and the first that occurred earlier counts; where none did, the root stands
    alone.  Where fewer than `length` tokens stood behind it, the guess goes on with its own beginning, so that a text
    that repeats itself is guessed to go on doing so.

    An index of where every n-gram ended last is kept as the text grows: a step costs `max_ngram` look-ups and as many
    entries per new token, however long the text is.  Memory: the text, and at most `max_ngram` entries a token of it.

    Args:
        max_ngram: most tokens at the text's end that are looked up.
        length: tokens guessed.

    Raises InvalidValueError for numbers below 1.
    """

    def __init__(self, max_ngram: int, length: int) -> None:
        self.setting = PromptLookupSetting(max_ngram, length)
        self.max_nodes = self.setting.max_nodes
        self._text: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        """Of every n-gram before the text's end, the place behind its last occurrence."""

    def start(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        """See `Drafter`."""
        del hidden
        self._text.clear()
        self._ends.clear()
        self._append(tokens)

    def propose(self) -> Proposal:
        """Return the root and the chain of guesses below it."""
        end = next((self._ends[ngram] for ngram in self._last_ngrams() if ngram in self._ends), None)
        guesses = [] if end is None else self._text[end : end + self.setting.length]
        for copied in range(self.setting.length - len(guesses) if guesses else 0):
            guesses.append(guesses[copied])
        return Proposal(chain(len(guesses)), torch.tensor([self._text[-1], *guesses]))

    def accept(self, outcome: Outcome) -> None:
        """See `Drafter`."""
        self._append(outcome.committed)

    def _append(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._ends.update(dict.fromkeys(self._last_ngrams(), len(self._text)))
            self._text.append(token)

    def _last_ngrams(self) -> list[tuple[int, ...]]:
        """Return the n-grams at the text's end, longest first."""
        last = tuple(self._text[-self.setting.ngram :])
        return [last[first:] for first in range(len(last))]
