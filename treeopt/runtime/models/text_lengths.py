"""How many tokens of each text a cache holds, and whether something in it was not finite."""

from collections.abc import Sequence

from treeopt.errors import InvalidValueError


class TextLengths:
    """The part that all caches share: a length per text, and slots that are wiped where a pass left NaN or infinity.

    Passes feed tokens to all texts of a cache at once, behind one length that all of them have.  Where they attend to
    slots that a mask hides, NaN there would be NaN in all of them, whatever its weight.

    Args:
        texts: how many there are.
    """

    def __init__(self, texts: int) -> None:
        self.lengths = [0] * texts
        """Committed tokens of each text."""
        self._finite = True

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

    def clear(self) -> None:
        """Forget every token, and where something was not finite, all entries."""
        self.length = 0
        if not self._finite:
            self._wipe()
            self._finite = True

    def wipe(self) -> None:
        """Set what stands behind the committed tokens to 0, because a pass left something that is not finite.

        What is committed may not be finite either; it is wiped when the cache is cleared.
        """
        self._wipe()
        self._finite = False

    def _wipe(self) -> None:
        """Set what stands behind the committed tokens to 0."""
        raise NotImplementedError
