"""How many tokens of each text a cache holds."""

from collections.abc import Sequence

from treeopt.errors import InvalidValueError


class TextLengths:
    """The part that all caches share: a length per text.

    Passes feed tokens to all texts of a cache at once, behind one length that all of them have.

    Args:
        texts: how many there are.
    """

    def __init__(self, texts: int) -> None:
        self.lengths = [0] * texts
        """Committed tokens of each text."""

    @property
    def length(self) -> int:
        """Committed tokens of every text; raises InvalidValueError where they differ."""
        first = self.lengths[0]
        if self.lengths.count(first) != len(self.lengths):
            raise InvalidValueError(
                f"cache: expected texts of one length. Got {self.lengths}: feed texts that differ from caches of their own."
            )
        return first

    @length.setter
    def length(self, length: int) -> None:
        self.lengths[:] = [length] * len(self.lengths)

    def keep(self, text: int, path: Sequence[int]) -> None:
        """Commit the tree nodes of a text at the offsets `path` from its length, rising from 0, and drop the others."""
        raise NotImplementedError

    def keep_in_all(self, path: Sequence[int]) -> None:
        """Commit the nodes at the same offsets in every text."""
        for text in range(len(self.lengths)):
            self.keep(text, path)

    def clear(self) -> None:
        """Forget every token."""
        self.length = 0
