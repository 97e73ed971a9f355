"""Keys and values of a transformers model in preallocated slots, with the tree's nodes behind the text."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from treeopt.runtime.models.text_lengths import TextLengths


class LayerStore:
    """One layer's keys and values, each (texts, heads, capacity, size), made by the first pass in the model's shapes.

    They begin as zeros, because a pass over several texts reads slots that it hides.
    """

    def __init__(self, texts: int, capacity: int) -> None:
        self._texts, self._capacity = texts, capacity
        self.entries: tuple[Tensor, ...] = ()
        """Keys and values; none before the first pass."""

    def for_states(self, *states: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values of all texts, with room for such as these, each (batch, heads, n, size)."""
        if not self.entries:
            self.entries = tuple(
                each.new_zeros((self._texts, each.shape[1], self._capacity, each.shape[3])) for each in states
            )
        return self.entries


class LayerStores:
    """The entries of some texts in all layers, which are made when the model first uses them."""

    def __init__(self, texts: int, capacity: int) -> None:
        self._new_layer = partial(LayerStore, texts, capacity)
        self._layers: list[LayerStore] = []

    def layer(self, number: int) -> LayerStore:
        """Return those of a layer, 0 first."""
        self._layers += [self._new_layer() for _ in range(number + 1 - len(self._layers))]
        return self._layers[number]

    def entries(self, text: int) -> list[Tensor]:
        """Return a text's keys and values in all layers, each (heads, capacity, size)."""
        return [entries[text] for layer in self._layers for entries in layer.entries]


class StoredLayer(CacheLayerMixin):
    """A layer's slots as the model sees them: a cache that grows, `used` slots long.

    Args:
        store: where the entries lie.
        used: slots that are seen before a pass.
    """

    is_sliding = False

    def __init__(self, store: LayerStore, used: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store, self.used = store, used
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room for keys and values shaped like these, each (batch, heads, n, size)."""
        self.store.for_states(key_states, value_states)
        self.is_initialized = True

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


class LayerSlots(StoredLayer):
    """The slots of some texts of one length, (batch, heads, capacity, size): what a pass brings goes behind the used ones."""

    def __init__(self, store: LayerStore, texts: slice, used: int) -> None:
        super().__init__(store, used)
        self._texts = texts

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values behind the used slots; return those of all slots used now."""
        self.lazy_initialization(key_states, value_states)
        keys, values = (each[self._texts] for each in self.store.entries)
        end = self.used + key_states.shape[2]
        keys[:, :, self.used : end] = key_states
        values[:, :, self.used : end] = value_states
        self.used = end
        return keys[:, :, :end], values[:, :, :end]


class TextSlots:
    """The slots of some texts in all layers, which are made when the model first uses them.

    Args:
        stores: where the entries lie.
        texts: places there.
    """

    def __init__(self, stores: LayerStores, texts: slice) -> None:
        self._stores, self._texts = stores, texts
        self._layers: list[LayerSlots] = []
        self._used = 0

    def new_layer(self) -> LayerSlots:
        """Return those of one more layer."""
        layer = LayerSlots(self._stores.layer(len(self._layers)), self._texts, self._used)
        self._layers.append(layer)
        return layer

    def seek(self, used: int) -> None:
        """Let the next pass see so many slots and write behind them."""
        self._used = used
        for layer in self._layers:
            layer.used = used


class AdapterCache(TextLengths, Cache):
    """What `treeopt.runtime.models.kv_cache.KVCache` is to the built-in model, in the form that transformers' models ask for.

    Args:
        capacity: tokens of each text, tree nodes included.
        batch_size: texts.
        stores: where their entries lie, beside those of others; by default alone.
        place: of the first text there.
    """

    def __init__(
        self, capacity: int, batch_size: int = 1, *, stores: LayerStores | None = None, place: int = 0
    ) -> None:
        self.capacity = capacity
        self.stores = LayerStores(batch_size, capacity) if stores is None else stores
        self.place = place
        self._slots = TextSlots(self.stores, slice(place, place + batch_size))
        TextLengths.__init__(self, batch_size)
        Cache.__init__(self, layer_class_to_replicate=self._slots.new_layer)  # type: ignore[arg-type]

    def texts(self) -> list["AdapterCache"]:
        """Return a cache for each text alone; they lie side by side in the memory of this one."""
        return [AdapterCache(self.capacity, stores=self.stores, place=place) for place in range(len(self.lengths))]

    def seek(self, start: int = 0) -> None:
        """Let the next pass write from slot length + start on."""
        self._slots.seek(self.length + start)

    @torch.inference_mode()
    def keep(self, text: int, path: Sequence[int]) -> None:
        """Commit the tree nodes of a text at the offsets `path` from its length, rising from 0, and drop the others."""
        if path[-1] != len(path) - 1:  # otherwise they already stand where they belong
            first, offsets = self.lengths[text], torch.tensor(path)
            for own in self.stores.entries(self.place + text):
                own[:, first : first + len(path)] = own.index_select(1, first + offsets.to(own.device))
        self.lengths[text] += len(path)

    @torch.inference_mode()
    def _wipe(self) -> None:
        for text, length in enumerate(self.lengths):
            for own in self.stores.entries(self.place + text):
                own[:, length:] = 0
