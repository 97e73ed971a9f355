"""Shadow drafting: counts what prompt lookup would have accepted along a decoded sequence, without any model pass.

With rule `target`, draft tokens are accepted if they equal the tokens that the target generated, at every temperature.  So
the committed tokens determine the steps of every setting, whatever drafted them.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from treeopt.runtime.drafters.prompt_lookup import Occurrences
from treeopt.trees.drafter_parameters import PromptLookupSetting

MAX_STORED_TOKENS = 2**14
"""Stored tokens of the sequence; beyond, the oldest are dropped down to `MIN_STORED_TOKENS`."""
MIN_STORED_TOKENS = 2**13
MAX_REPLAYED_TOKENS = 512
"""Only the last tokens since the previous replay are replayed; earlier steps are not counted."""


class ReplayedSteps(NamedTuple):
    """The steps of one setting."""

    tokens: int
    steps: int
    drafted: int
    """Steps that drafted anything."""


class LookupReplay:
    """Replays several settings of prompt lookup along the sequence that is being decoded."""

    def __init__(self, settings: Sequence[PromptLookupSetting]) -> None:
        self.settings = tuple(sorted(settings, key=attrgetter("ngram", "length")))
        self._sequence: int | None = None
        self._max_ngram = max((setting.ngram for setting in self.settings), default=1)
        self._occurrences = Occurrences(self._max_ngram)
        self._restart(0, ())

    @property
    def pending_tokens(self) -> int:
        """Tokens added since the last replay."""
        return len(self._tokens) - self._replayed

    def add(self, sequence: int, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Add the committed tokens of a step after the tokens before it, the last of which is the root."""
        if sequence != self._sequence or len(before) != self._dropped + len(self._tokens):
            self._sequence = sequence
            dropped = max(0, len(before) - MIN_STORED_TOKENS)
            self._restart(dropped, before[dropped:])
        self._tokens += tokens
        if len(self._tokens) > MAX_STORED_TOKENS:
            self._drop_oldest()

    def replay(self) -> list[ReplayedSteps]:
        """Return the steps of each setting in the new tokens, as `PromptLookupDrafter` would draft them."""
        self._occurrences.read(self._tokens)
        self._replayed = len(self._tokens)
        results: list[ReplayedSteps] = []
        for ngram, group in groupby(enumerate(self.settings), key=lambda item: item[1].ngram):
            settings = list(group)
            longest = settings[-1][1].length
            count_accepted = cache(partial(self._count_accepted, ngram, longest))
            results += [self._replay(number, setting.length, count_accepted) for number, setting in settings]
        return results

    def _count_accepted(self, max_ngram: int, length: int, root: int) -> int | None:
        """Return the accepted tokens of a draft below a root, None if nothing is drafted."""
        start, accepted = self._occurrences.find_longest(root, max_ngram), 0
        if start is None:
            return None
        tokens, longest = self._tokens, min(length, len(self._tokens) - root - 1)
        while accepted < longest and tokens[start + accepted] == tokens[root + 1 + accepted]:
            accepted += 1  # a draft that repeats itself is covered: the sequence has repeated itself too
        return accepted

    def _replay(self, number: int, length: int, count_accepted: Callable[[int], int | None]) -> ReplayedSteps:
        tokens = steps = drafted = 0
        root = max(self._roots[number], len(self._tokens) - MAX_REPLAYED_TOKENS)
        last = len(self._tokens) - 2 - length  # the last root whose whole step is known
        while root <= last:
            accepted = count_accepted(root)
            if accepted is not None:
                drafted += 1
            committed = 1 + min(accepted or 0, length)
            steps += 1
            tokens += committed
            root += committed
        self._roots[number] = root
        return ReplayedSteps(tokens, steps, drafted)

    def _restart(self, dropped: int, tokens: Sequence[int]) -> None:
        self._dropped = dropped
        """Tokens of the sequence before the stored ones."""
        self._tokens = list(tokens)
        self._replayed = len(self._tokens)
        self._roots = [len(self._tokens) - 1] * len(self.settings)
        """The root of the next step of each setting."""
        self._occurrences = Occurrences(self._max_ngram)

    def _drop_oldest(self) -> None:
        dropped = len(self._tokens) - MIN_STORED_TOKENS
        replayed, roots = max(0, self._replayed - dropped), [max(0, root - dropped) for root in self._roots]
        self._restart(self._dropped + dropped, self._tokens[dropped:])
        self._replayed, self._roots = replayed, roots
