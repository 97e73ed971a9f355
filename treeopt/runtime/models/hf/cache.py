"""Keys and values of a transformers model in preallocated slots, with the tree's nodes behind the text."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from treeopt.runtime.models.text_lengths import TextLengths


class LayerSlots(CacheLayerMixin):
    """One layer's keys and values, each (batch, heads, capacity, size), made at the first update in the model's shapes.

    To the model it looks like a cache that grows: what a pass brings goes behind the `used` slots.
    """

    is_sliding = False

    def __init__(self, capacity: int, batch_size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._capacity = capacity
        self._batch_size = batch_size
        self._stores: list[Tensor] = []
        self.is_initialized = False
        self.used = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room for keys and values shaped like these, each (batch, heads, n, size)."""
        self._stores = [
            states.new_empty((self._batch_size, states.shape[1], self._capacity, states.shape[3]))
            for states in (key_states, value_states)
        ]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values behind the used slots; return those of all slots used now."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self._stores
        end = self.used + key_states.shape[2]
        keys[:, :, self.used : end] = key_states
        values[:, :, self.used : end] = value_states
        self.used = end
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self) -> int:
        """Return the used slots."""
        return self.used

    def get_mask_sizes(self, query: int | Tensor) -> tuple[int, int]:
        """Return how many slots so many new tokens attend over, and the first; older transformers give their places."""
        return self.used + (query if isinstance(query, int) else len(query)), 0

    def get_max_length(self) -> int:
        """Return -1: the model need not know where the slots end."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Return what `get_max_length` does, for older transformers."""
        return -1

    def keep(self, text: int, first: int, offsets: Tensor) -> None:
        """Move a text's entries at `offsets` from slot `first` to the slots from `first` on."""
        for store in self._stores:
            moved = store[text].index_select(1, first + offsets.to(store.device))
            store[text, :, first : first + len(offsets)] = moved

    def wipe(self, text: int, first: int) -> None:
        """Set a text's entries from slot `first` on to 0."""
        for store in self._stores:
            store[text, :, first:] = 0


class AdapterCache(TextLengths, Cache):
    """What `treeopt.runtime.models.kv_cache.KVCache` is to the built-in model, in the form that transformers' models ask for."""

    def __init__(self, capacity: int, batch_size: int = 1) -> None:
        self._slots: list[LayerSlots] = []
        new_layer = partial(_new_layer, self._slots, capacity, batch_size)
        TextLengths.__init__(self, batch_size)
        Cache.__init__(self, layer_class_to_replicate=new_layer)  # type: ignore[arg-type]
        self.capacity = capacity

    def seek(self, start: int = 0) -> None:
        """Let the next pass write from slot length + start on."""
        for layer in self._slots:
            layer.used = self.length + start

    @torch.inference_mode()
    def keep(self, text: int, path: Sequence[int]) -> None:
        """Commit the tree nodes of a text at the offsets `path` from its length, rising from 0, and drop the others."""
        if path[-1] != len(path) - 1:  # otherwise they already stand where they belong
            offsets = torch.tensor(path)
            for layer in self._slots:
                layer.keep(text, self.lengths[text], offsets)
        self.lengths[text] += len(path)

    @torch.inference_mode()
    def _wipe(self) -> None:
        for layer in self._slots:
            for text, length in enumerate(self.lengths):
                layer.wipe(text, length)


def _new_layer(layers: list[LayerSlots], capacity: int, batch_size: int) -> LayerSlots:
    """Return one more layer, when the model first uses it."""
    layers.append(LayerSlots(capacity, batch_size))
    return layers[-1]
