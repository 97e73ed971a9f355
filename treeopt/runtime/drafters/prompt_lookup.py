"""Prompt lookup: drafts the tokens that followed the last occurrence of the newest n-gram (Saxena, 2023)."""

from collections.abc import Sequence

import torch

from treeopt.runtime.drafters.drafter import Proposal, Step, intern_chain
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees.drafter_parameters import PromptLookupSetting


class Occurrences:
    """For every position of a sequence and every n, where the n-gram that ends there occurred last before."""

    def __init__(self, max_ngram: int) -> None:
        self._ends: list[dict[tuple[int | None, ...], int]] = [{} for _ in range(max_ngram)]
        """For every n, the position after the last occurrence of each n-gram."""
        self._previous: list[list[int | None]] = [[] for _ in range(max_ngram)]
        """For every n and position, the end of the earlier occurrence; None for a new n-gram."""

    def read(self, tokens: Sequence[int]) -> None:
        """Index the new tokens of a sequence, given all of it."""
        first, longest = len(self._previous[0]), len(self._ends)
        padding = [None] * (longest - 1 - first)  # n-grams that begin before the sequence equal no others
        recent = [*padding, *tokens[max(0, first - longest + 1) :]]
        shifted = [recent[offset:] for offset in range(longest)]
        for n, (ends, previous) in enumerate(zip(self._ends, self._previous, strict=True), 1):
            for end, ngram in enumerate(zip(*shifted[-n:], strict=False), first + 1):
                previous.append(ends.get(ngram))
                ends[ngram] = end

    def find_longest(self, position: int, max_ngram: int) -> int | None:
        """Return the position after the earlier occurrence of the longest n-gram at `position`; None if all are new."""
        longest = None
        for previous in self._previous[:max_ngram]:
            end = previous[position]
            if end is None:
                break  # no longer n-gram can have occurred
            longest = end
        return longest


class LookupSequence:
    """The tokens of a sequence, and where their n-grams occurred before."""

    ready = True

    def __init__(self, max_ngram: int) -> None:
        self._max_ngram = max_ngram
        self._tokens: list[int] = []

    def begin(self, tokens: Sequence[int], states: HiddenStates | None = None) -> None:  # noqa: ARG002
        self._tokens, self._occurrences = [], Occurrences(self._max_ngram)
        self._append(tokens)

    def accept(self, step: Step) -> None:
        self._append(step.tokens)

    @property
    def root(self) -> int:
        return self._tokens[-1]

    def find_continuation(self, length: int) -> list[int]:
        """Return the `length` tokens after the last earlier occurrence of the newest n-gram; empty if it is new."""
        start = self._occurrences.find_longest(len(self._tokens) - 1, self._max_ngram)
        if start is None:
            return []
        continuation = self._tokens[start : start + length]
        for index in range(length - len(continuation)):
            continuation.append(continuation[index])
        return continuation

    def _append(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        self._occurrences.read(self._tokens)


class PromptLookupDrafter(SequenceDrafter[LookupSequence]):
    """Drafts a chain: the `length` tokens after the latest earlier occurrence of the last n tokens.

    The largest n up to `max_ngram` with an earlier occurrence counts; without one, nothing is drafted.  If fewer tokens
    followed it, the draft repeats itself, as the sequence then does.

    A step costs `max_ngram` look-ups and index entries for each new token, however long the sequence is.

    Raises InvalidValueError for numbers below 1.
    """

    def __init__(self, max_ngram: int, length: int) -> None:
        self.setting = PromptLookupSetting(max_ngram, length)
        self.max_tokens = self.setting.max_nodes
        super().__init__(lambda count: [LookupSequence(max_ngram) for _ in range(count)])

    def _fill(self, states: Sequence[LookupSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        continuations = [(state.root, state.find_continuation(self.setting.length)) for state in states]
        return [
            Proposal(intern_chain(len(continuation)), torch.tensor([root, *continuation]))
            for root, continuation in continuations
        ]
