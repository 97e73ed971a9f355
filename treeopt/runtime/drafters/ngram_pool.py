"""A bounded store of n-grams by their first token, in which old entries make room for new ones."""

from collections import OrderedDict
from collections.abc import Sequence

from treeopt.errors import InvalidValueError

Tokens = tuple[int, ...]


class NgramPool:
    """Holds n-grams by their first token, the key; what follows the key is a continuation, of `ngram` - 1 tokens.

    A key has at most `per_key` continuations, all different; a new one displaces the one added longest ago.  There are
    at most `capacity_keys` keys; a new one displaces the one added to or found longest ago.

    Memory: at most `capacity_keys * per_key` continuations, whatever is added; a token takes 40 bytes in CPython, a
    continuation 64 more, a key 320 more.
    Adding and finding touch one key only, at most `per_key` continuations: their cost does not grow with age.

    Args:
        ngram: tokens of an n-gram, at least 2.
        capacity_keys: most keys, at least 1.
        per_key: most continuations of a key, at least 1.

    Raises InvalidValueError for a number below these.
    """

    def __init__(self, ngram: int, capacity_keys: int, per_key: int) -> None:
        for name, value, least in (("ngram", ngram, 2), ("capacity_keys", capacity_keys, 1), ("per_key", per_key, 1)):
            if value < least:
                raise InvalidValueError(f"{name}: expected at least {least}. Got {value}.")
        self.ngram = ngram
        self.capacity_keys = capacity_keys
        self.per_key = per_key
        self._continuations: OrderedDict[int, list[Tokens]] = OrderedDict()
        """The key used last stands last; continuations stand in the order they were added last."""

    def add(self, ngram: Sequence[int]) -> None:
        """Add an n-gram as the newest of its key; where it is there already it becomes the newest."""
        key, *rest = ngram
        continuation = tuple(rest)
        kept = self._continuations.setdefault(key, [])
        self._continuations.move_to_end(key)
        if continuation in kept:
            kept.remove(continuation)
        kept.append(continuation)
        del kept[: -self.per_key]
        if len(self._continuations) > self.capacity_keys:
            self._continuations.popitem(last=False)

    def add_all(self, tokens: Sequence[int]) -> None:
        """Add every n-gram of a text in its order."""
        for first in range(len(tokens) - self.ngram + 1):
            self.add(tokens[first : first + self.ngram])

    def find(self, key: int) -> list[Tokens]:
        """Return the continuations of a key, newest first; none where it is not there."""
        if key not in self._continuations:
            return []
        self._continuations.move_to_end(key)
        return self._continuations[key][::-1]

    def clear(self) -> None:
        """Forget everything."""
        self._continuations.clear()
