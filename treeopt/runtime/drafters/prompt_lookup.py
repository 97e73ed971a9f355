"""Prompt lookup: drafts the tokens that followed the last occurrence of the newest n-gram (Saxena, 2023)."""

from collections.abc import Iterable, Sequence

import torch

from treeopt.runtime.drafters.drafter import Proposal, Step, intern_chain
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees.drafter_parameters import PromptLookupSetting


class IndexedSequence:
    """A sequence with an index of the n-grams before its end.

    Args:
        max_ngram: longest n-gram of the index.
    """

    ready = True

    def __init__(self, max_ngram: int) -> None:
        self._max_ngram = max_ngram
        self._tokens: list[int] = []
        self.ends: dict[tuple[int, ...], int] = {}
        """Position after the last occurrence of each n-gram."""

    def begin(self, tokens: Sequence[int], states: HiddenStates | None = None) -> None:  # noqa: ARG002
        self._tokens, self.ends = [], {}
        self._append(tokens)

    def accept(self, step: Step) -> None:
        self._append(step.tokens)

    @property
    def root(self) -> int:
        return self._tokens[-1]

    def find_continuation(self, length: int) -> list[int]:
        """Return the `length` tokens after the last earlier occurrence of the newest n-gram; empty if it is new."""
        end = next((self.ends[ngram] for ngram in self._last_ngrams() if ngram in self.ends), None)
        continuation = [] if end is None else self._tokens[end : end + length]
        for index in range(length - len(continuation) if continuation else 0):
            continuation.append(continuation[index])
        return continuation

    def _last_ngrams(self) -> list[tuple[int, ...]]:
        """Return the n-grams at the end, longest first."""
        last = tuple(self._tokens[-self._max_ngram :])
        return [last[first:] for first in range(len(last))]

    def _append(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.ends.update(dict.fromkeys(self._last_ngrams(), len(self._tokens)))
            self._tokens.append(token)


class PromptLookupDrafter(SequenceDrafter[IndexedSequence]):
    """Drafts a chain: the tokens after the latest earlier occurrence of the last n tokens.

    The largest n up to `max_ngram` with an earlier occurrence counts; without one, nothing is drafted.  If fewer than
    `length` tokens followed it, the draft repeats itself, as the sequence then does.

    An index maps each n-gram to its last occurrence: a step costs `max_ngram` look-ups, and as many entries for each
    new token, however long the sequence is.

    Args:
        max_ngram: longest n-gram that is looked up.
        length: draft tokens.

    Raises InvalidValueError for numbers below 1.
    """

    def __init__(self, max_ngram: int, length: int) -> None:
        self.setting = PromptLookupSetting(max_ngram, length)
        self.max_tokens = self.setting.max_nodes
        super().__init__(lambda count: [IndexedSequence(max_ngram) for _ in range(count)])

    def _fill(self, states: Sequence[IndexedSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        continuations = [(state.root, state.find_continuation(self.setting.length)) for state in states]
        return [
            Proposal(intern_chain(len(continuation)), torch.tensor([root, *continuation]))
            for root, continuation in continuations
        ]
