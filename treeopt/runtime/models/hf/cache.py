"""Keys and values of a transformers model in preallocated slots, with the tree's nodes after the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from treeopt.runtime.models.grid import Grid, Span
from treeopt.runtime.models.model import SequenceCache


class LayerStore:
    """One layer's keys and values, each (sequences, heads, capacity, size), made by the first pass in the model's shapes.

    They begin as zeros, because a pass over several sequences reads slots that it hides.
    """

    def __init__(self, sequences: int, capacity: int) -> None:
        self._sequences, self._capacity = sequences, capacity
        self.entries: tuple[Tensor, ...] = ()
        """Keys and values; none before the first pass."""

    def for_states(self, *states: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values of all sequences, with room for such as these, each (batch, heads, n, size)."""
        if not self.entries:
            self.entries = tuple(
                each.new_zeros((self._sequences, each.shape[1], self._capacity, each.shape[3])) for each in states
            )
        return self.entries


class AdapterStore:
    """The entries of sequences side by side in all layers, which are made when the model first uses them."""

    def __init__(self, sequences: int, capacity: int) -> None:
        self.sequences, self.capacity = sequences, capacity
        self.layers: list[LayerStore] = []

    def layer(self, number: int) -> LayerStore:
        """Return those of a layer, 0 first."""
        missing = number + 1 - len(self.layers)
        self.layers += [LayerStore(self.sequences, self.capacity) for _ in range(missing)]
        return self.layers[number]

    def entries(self, place: int) -> list[Tensor]:
        """Return a sequence's keys and values in all layers, each (heads, capacity, size)."""
        return [entries[place] for layer in self.layers for entries in layer.entries]

    def caches(self) -> list["AdapterCache"]:
        """Return a cache for each sequence."""
        return [AdapterCache(self, place) for place in range(self.sequences)]


class AdapterCache(SequenceCache):
    """The keys and values of one sequence.

    Args:
        store: where they lie.
        place: of the sequence there.
    """

    def __init__(self, store: AdapterStore, place: int) -> None:
        super().__init__(store.capacity)
        self.store, self.place = store, place

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        if path[-1] != len(path) - 1:  # otherwise they already stand where they belong
            first, offsets = self.length, torch.tensor(path)
            for own in self.store.entries(self.place):
                own[:, first : first + len(path)] = own.index_select(1, first + offsets.to(own.device))
        self.length += len(path)

    @torch.inference_mode()
    def _zero_nodes(self) -> None:
        for own in self.store.entries(self.place):
            own[:, self.length :] = 0


@dataclass(frozen=True, slots=True)
class PassSlots:
    """Where a pass writes the tokens of sequences side by side, and how many slots it sees of each."""

    sequences: slice | Tensor
    """Places in the store, in rising order."""
    grid: Grid
    sequence: Tensor | None
    """int64 (tokens,): the place of each token's sequence; None for one sequence."""
    slot: Tensor
    """int64 (tokens,)."""
    in_grid: Tensor | None
    """int64 (tokens,): the place of each among the rows of the pass; None where they are these rows."""

    @classmethod
    def of(cls, places: Sequence[int], spans: Sequence[Span], grid: Grid, in_grid: Tensor | None) -> "PassSlots":
        """Return those of sequences at places of a store.

        Args:
            places: of each sequence.
            spans: of each sequence, placed by the order of these places.
            grid: that holds the spans.
            in_grid: the place of each token in it; None where they are the same.
        """
        rising = sorted(places)
        side_by_side = rising[-1] - rising[0] == len(rising) - 1
        several = len(places) > 1
        numbers = [place for place, span in zip(places, spans, strict=True) for _ in span.slots] if several else []
        return cls(
            slice(rising[0], rising[-1] + 1) if side_by_side else torch.tensor(rising),
            grid,
            torch.tensor(numbers) if several else None,
            torch.tensor([slot for span in spans for slot in span.slots]),
            in_grid,
        )

    def write(self, entries: Tensor, new: Tensor) -> Tensor:
        """Write what a pass brings, (sequences, heads, n, size), and return the slots that it sees."""
        seen, extent = entries[self.sequences], self.grid.extent
        if self.sequence is None:
            seen[:, :, extent - self.grid.tokens : extent] = new
        else:
            rows = new.transpose(1, 2).flatten(0, 1)  # (sequences * n, heads, size)
            if self.in_grid is not None:
                rows = rows[self.in_grid.to(rows.device)]
            entries[self.sequence.to(entries.device), :, self.slot.to(entries.device)] = rows
            seen = entries[self.sequences]
        return seen[:, :, :extent]


class PassLayer(CacheLayerMixin):
    """A layer's slots as the model sees them in a pass: a cache that grows."""

    is_sliding = False

    def __init__(self, store: LayerStore, slots: PassSlots) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._store, self._slots = store, slots
        self._used = slots.grid.extent - slots.grid.tokens
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room for keys and values shaped like these, each (batch, heads, n, size)."""
        self._store.for_states(key_states, value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values after each text; return those of as many slots of each as the longest has."""
        self.lazy_initialization(key_states, value_states)
        keys, values = (
            self._slots.write(entries, new)
            for entries, new in zip(self._store.entries, (key_states, value_states), strict=True)
        )
        return keys, values

    def get_seq_length(self) -> int:
        """Return the slots before those of the pass."""
        return self._used

    def get_mask_sizes(self, query: int | Tensor) -> tuple[int, int]:
        """Return how many slots so many new tokens attend over, and the first; older transformers give their places."""
        return self._used + (query if isinstance(query, int) else len(query)), 0

    def get_max_length(self) -> int:
        """Return -1: the model need not know where the slots end."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Return what `get_max_length` does, for older transformers."""
        return -1


class PassCache(Cache):
    """What a pass over sequences reads and writes, in the form that transformers' models ask for."""

    def __init__(self, store: AdapterStore, slots: PassSlots) -> None:
        numbers = count()

        def new_layer() -> PassLayer:
            return PassLayer(store.layer(next(numbers)), slots)

        super().__init__(layer_class_to_replicate=new_layer)  # type: ignore[arg-type]
        # a model asks how many slots are used before it reaches a layer that it would make by itself
        self.layers.extend(new_layer() for _ in range(len(store.layers)))
