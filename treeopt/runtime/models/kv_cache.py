"""Keys and values of texts, preallocated, with the tree's nodes behind them and the accepted path moved in place."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.rotary import Rotations
from treeopt.runtime.models.text_lengths import TextLengths


class KVCache(TextLengths):
    """Keys and values of all layers, for as many texts as the batch has.

        slot:   0 … length-1        length … length+n-1
        holds:  committed tokens    tree nodes of the step, in the order they were fed

    `keep(text, path)` moves the accepted nodes' entries to length, length+1, … and makes them committed; the rest of the
    tree is forgotten because the next step writes over it.

    Args:
        store: (2, layers, batch, key_value_heads, capacity, head_size), keys and values.
        rotations: complex64 (positions, 1, head_size / 2), of every position that a token in the cache can have.
        whole: the cache that this one is a part of; by default it is whole.
        place: of the first text there.
    """

    def __init__(self, store: Tensor, rotations: Tensor, *, whole: "KVCache | None" = None, place: int = 0) -> None:
        self.batch_size, self.capacity = store.shape[2], store.shape[4]
        super().__init__(self.batch_size)
        self._store = store
        on_host = store.device.type == "cpu"
        # what keep moves: bytes on the host, whatever the dtype, because a copy there costs numpy less than torch
        self._entries: Any = store.view(torch.uint8).numpy() if on_host else store
        self._moving = nullcontext if on_host else torch.inference_mode
        self.layers: list[tuple[Tensor, Tensor]] = list(zip(store[0], store[1], strict=True))
        """One (keys, values) pair a layer, each (batch, key_value_heads, capacity, head_size)."""
        self.rotations = rotations  # held here, because a captured graph reads them where they lie
        self._whole = whole
        self.place = place

    @classmethod
    def empty(
        cls, config: ModelConfig, capacity: int, batch_size: int, *, rotations: Rotations, dtype: torch.dtype
    ) -> "KVCache":
        """Return a cache without a token, with room for `capacity` of each text."""
        shape = (2, config.layers, batch_size, config.key_value_heads, capacity, config.head_size)
        reachable = min(capacity, 2 * config.max_positions)  # a tree may be as deep as its text is long
        return cls(torch.zeros(shape, dtype=dtype, device=rotations.device), rotations.up_to(reachable))

    @property
    def whole(self) -> "KVCache":
        """The cache that this one is a part of, or itself: which it does not hold, so that its memory is freed at once."""
        return self if self._whole is None else self._whole

    def texts(self) -> list["KVCache"]:
        """Return a cache for each text alone; they lie side by side in the memory of this one."""
        stores = self._store.split(1, dim=2)
        return [KVCache(each, self.rotations, whole=self, place=place) for place, each in enumerate(stores)]

    def keep(self, text: int, path: Sequence[int]) -> None:
        """Commit the tree nodes of a text at the offsets `path` from its length, rising from 0, and drop the others.

        With 2 committed tokens A B and nodes r x y z behind them, keep(0, [0, 2]) leaves A B r y.
        """
        count = len(path)
        if path[-1] != count - 1:  # otherwise they already stand where they belong
            self._move(text, path)
        self.lengths[text] += count

    def _move(self, text: int, path: Sequence[int]) -> None:
        length, entries = self.lengths[text], self._entries[:, :, text]
        with self._moving():
            for place, node in enumerate(path):  # in rising order nothing is written over that is still to be moved
                if place != node:
                    entries[:, :, :, length + place] = entries[:, :, :, length + node]

    @torch.inference_mode()
    def _wipe(self) -> None:
        for text, length in enumerate(self.lengths):
            self._store[:, :, text, :, length:] = 0
