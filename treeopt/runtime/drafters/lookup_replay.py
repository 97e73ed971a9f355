"""What prompt lookup would have come to along a text that was decoded in any way, without a pass of any model.

Given tokens are accepted where they are what the target's text went on with (rule `target`), at every temperature.  So
the committed text says of every setting where its steps would have ended, whatever drafted it.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from treeopt.trees.own_trees import PromptLookupSetting

MOST_TOKENS, KEPT_TOKENS = 2**14, 2**13
"""Of a text that are remembered: beyond the first number, as many as the second says."""
MOST_WALKED = 512
"""New tokens that are walked along at a time, the last; steps in those before are not counted."""
NOWHERE = -1


class Walked(NamedTuple):
    """What steps with one setting would have come to."""

    tokens: int
    steps: int
    drafted: int
    """Steps in which there was something to draft."""


class LookupReplay:
    """The text that is decoded now, and where the steps of each setting have come to in it.

    Args:
        settings: of prompt lookup.
    """

    def __init__(self, settings: Sequence[PromptLookupSetting]) -> None:
        self.settings = tuple(sorted(settings, key=lambda each: (each.ngram, each.length)))
        self._text: int | None = None
        self._max_ngram = max((each.ngram for each in self.settings), default=1)
        self._places = Places(self._max_ngram)
        self._begin(0, ())

    @property
    def waiting(self) -> int:
        """Tokens that were committed since the last walk."""
        return len(self._tokens) - self._read

    def note(self, text: int, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Remember a step that committed some tokens behind a text, whose last token is the root."""
        if text != self._text or len(before) != self._forgotten + len(self._tokens):
            self._text = text
            forgotten = max(0, len(before) - KEPT_TOKENS)
            self._begin(forgotten, before[forgotten:])
        self._tokens += tokens
        if len(self._tokens) > MOST_TOKENS:
            self._shorten()

    def walk(self) -> list[Walked]:
        """Return what the steps of each setting come to in the tokens that are new; it drafts as `PromptLookupDrafter`."""
        self._places.read(self._tokens)
        self._read = len(self._tokens)
        found: list[Walked] = []
        for ngram, each in groupby(enumerate(self.settings), key=lambda item: item[1].ngram):
            settings = list(each)
            runs = _Runs(self._tokens, self._places, ngram, settings[-1][1].length)
            found += [self._walk(number, setting.length, runs) for number, setting in settings]
        return found

    def _walk(self, number: int, length: int, runs: "_Runs") -> Walked:
        tokens = steps = drafted = 0
        root = max(self._roots[number], len(self._tokens) - MOST_WALKED)
        last = len(self._tokens) - 2 - length  # of the roots below which all tokens of a step are known
        while root <= last:
            run = runs.get(root)
            if run is None:
                run = runs[root] = runs.found(root)
            if run != NOWHERE:
                drafted += 1
            committed = 1 + min(max(run, 0), length)
            steps += 1
            tokens += committed
            root += committed
        self._roots[number] = root
        return Walked(tokens, steps, drafted)

    def _begin(self, forgotten: int, tokens: Sequence[int]) -> None:
        self._forgotten = forgotten
        """Tokens of the text before those remembered."""
        self._tokens = list(tokens)
        self._read = len(self._tokens)
        self._roots = [len(self._tokens) - 1] * len(self.settings)
        self._places = Places(self._max_ngram)

    def _shorten(self) -> None:
        """Forget the beginning of the text."""
        gone = len(self._tokens) - KEPT_TOKENS
        read, roots = max(0, self._read - gone), [max(0, root - gone) for root in self._roots]
        self._begin(self._forgotten + gone, self._tokens[gone:])
        self._read, self._roots = read, roots


class Places:
    """Of every position of a text the place behind the last occurrence before of the n tokens that end there.

    Args:
        max_ngram: most tokens that are looked up.
    """

    def __init__(self, max_ngram: int) -> None:
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(max_ngram)]
        """Of every n the place behind each n-gram's last occurrence."""
        self._before: list[list[int]] = [[] for _ in range(max_ngram)]
        """Of every n and position the place, `NOWHERE` where the n-gram is new."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read a text further, all of which is given."""
        first = len(self._before[0])
        for n, (ends, before) in enumerate(zip(self._ends, self._before, strict=True), 1):
            start = max(0, first - n + 1)
            before += [NOWHERE] * min(start + n - 1 - first, len(tokens) - first)
            ngrams = zip(*(tokens[start + offset :] for offset in range(n)), strict=False)
            for end, ngram in enumerate(ngrams, start + n):
                before.append(ends.get(ngram, NOWHERE))
                ends[ngram] = end

    def longest(self, position: int, max_ngram: int) -> int:
        """Return the place for the longest n-gram at a position that occurred before, `NOWHERE` where none did."""
        found = NOWHERE
        for before in self._before[:max_ngram]:
            place = before[position]
            if place == NOWHERE:
                break  # and nothing longer can have occurred
            found = place
        return found


class _Runs(dict[int, int]):
    """How many tokens of a draft are right below each root, `NOWHERE` where nothing is drafted.

    Args:
        tokens: the text.
        places: where it went on before.
        max_ngram: most tokens that are looked up.
        length: most tokens that are drafted.
    """

    def __init__(self, tokens: Sequence[int], places: Places, max_ngram: int, length: int) -> None:
        super().__init__()
        self._tokens, self._places, self._max_ngram, self._length = tokens, places, max_ngram, length

    def found(self, root: int) -> int:
        """Return the run below a root."""
        place, run = self._places.longest(root, self._max_ngram), 0
        if place == NOWHERE:
            return NOWHERE
        tokens, most = self._tokens, min(self._length, len(self._tokens) - root - 1)
        while run < most and tokens[place + run] == tokens[root + 1 + run]:
            run += 1  # where the draft repeats its beginning, the text has repeated it too
        return run
