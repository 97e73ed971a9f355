"""Texts and tree nodes in one context of llama.cpp, in the form that all caches have."""

from collections.abc import Sequence

from treeopt.arrays import Bool
from treeopt.runtime.models.gguf.context import Context
from treeopt.runtime.models.gguf.sequences import Placed, SequenceIds, Sequences
from treeopt.runtime.models.text_lengths import TextLengths


class GGUFCache(TextLengths):
    """What `treeopt.runtime.models.kv_cache.KVCache` is to the built-in model.

    A length set within the text that is held shows a beginning of it, and later ones show the rest again; one set
    beyond it commits the nodes that were fed behind it, which must be a path.

    Args:
        context: in which caches of other texts may lie too.
        capacity: tokens of each text, tree nodes included.
        texts: how many there are.
        ids: of the context's sequences.
    """

    def __init__(self, context: Context, capacity: int, texts: int, ids: SequenceIds) -> None:
        self.context = context
        self.capacity = capacity
        self.texts = [Sequences(context, ids) for _ in range(texts)]
        super().__init__(texts)

    @property
    def length(self) -> int:
        """Committed tokens of every text; raises InvalidValueError where they differ, or are set to what is not held."""
        found: int = TextLengths.length.__get__(self)
        return found

    @length.setter
    def length(self, length: int) -> None:
        for text, sequences in enumerate(self.texts):
            before, held = self.lengths[text], sequences.text.held
            if length > held:
                sequences.keep(range(before, length), before)
            elif length != before:
                sequences.forget_nodes(0)
            self.lengths[text] = length

    def keep(self, text: int, path: Sequence[int]) -> None:
        """Commit the tree nodes of a text at the offsets `path` from its length, rising from 0, and drop the others."""
        length = self.lengths[text]
        self.texts[text].keep([length + offset for offset in path], length)
        self.texts[text].forget_nodes(0)
        self.lengths[text] += len(path)

    def place(self, visible: Bool, start: int) -> list[Placed]:
        """Return the sequence ids of nodes behind every text, and forget the nodes that stand where they go.

        Raises InvalidValueError for a mask that is not of a tree, and where the context has too few sequences.
        """
        length = self.length
        for sequences in self.texts:
            sequences.forget_nodes(length + start)
        return [sequences.place(visible, length, start) for sequences in self.texts]

    def clear(self) -> None:
        """Forget every token."""
        for sequences in self.texts:
            sequences.clear()
        self.lengths[:] = [0] * len(self.lengths)

    def _wipe(self) -> None:
        """Do nothing: what stands behind the committed tokens belongs to no sequence, and is not seen."""
