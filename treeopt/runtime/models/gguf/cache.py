"""A text and its tree nodes in a context of llama.cpp, in the form that all caches have."""

from collections.abc import Sequence

from treeopt.arrays import Bool
from treeopt.runtime.models.gguf.context import Context
from treeopt.runtime.models.gguf.sequences import Placed, SequenceIds, Sequences
from treeopt.runtime.models.model import SequenceCache


class GGUFCache(SequenceCache):
    """What `treeopt.runtime.models.kv_cache.KVCache` is to the built-in model.

    A length set within the text that is held shows a beginning of it, and later ones show the rest again; one set
    beyond it commits the nodes that were fed after it, which must be a path.

    Args:
        context: in which caches of other texts may lie too.
        capacity: tokens of the text, tree nodes included.
        ids: of the context's sequences.
    """

    def __init__(self, context: Context, capacity: int, ids: SequenceIds) -> None:
        self.context = context
        self.sequences = Sequences(context, ids)
        self._length = 0
        super().__init__(capacity)

    @property
    def length(self) -> int:
        """Committed tokens; setting it raises InvalidValueError for what is not held."""
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        if length > self.sequences.text.held:
            self.sequences.keep(range(self._length, length), self._length)
        elif length != self._length:
            self.sequences.forget_nodes(0)
        self._length = length

    def keep(self, path: Sequence[int]) -> None:
        self.sequences.keep([self._length + offset for offset in path], self._length)
        self.sequences.forget_nodes(0)
        self._length += len(path)

    def commit_read(self, tokens: int) -> None:
        """Commit so many tokens that were fed to the sequence of the text itself."""
        self.sequences.text.held += tokens
        self._length = self.sequences.text.held

    def place(self, visible: Bool, start: int) -> Placed:
        """Return the sequence ids of nodes after the text, and forget the nodes that stand where they go.

        Raises InvalidValueError for a mask that is not of a tree, and where the context has too few sequences.
        """
        self.sequences.forget_nodes(self._length + start)
        return self.sequences.place(visible, self._length, start)

    def clear(self) -> None:
        self.sequences.clear()
        self._length = 0

    def _zero_nodes(self) -> None:
        """Do nothing: what stands after the committed tokens belongs to no sequence, and is not seen."""
