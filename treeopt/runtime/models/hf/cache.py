"""The cache of a transformers model: a view of preallocated keys and values during one pass."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from treeopt.runtime.models.kv_cache import KVStore
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.padded_batch import PaddedBatch, PaddedPass, index_slots


def cache_argument(model: Any) -> str:
    """Return the name of a model's argument for its cache, which transformers 5.24 renamed."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@dataclass(frozen=True, slots=True)
class PassSlots:
    """Where a pass writes its tokens in a store, and which slots it reads."""

    sequences: slice | Tensor
    """Indices in the store, ascending."""
    batch: PaddedBatch
    sequence: Tensor | None
    """int64 (tokens,): index of each token's sequence in the store; None for a single sequence."""
    slot: Tensor
    """int64 (tokens,)."""
    padded_index: Tensor | None
    """int64 (tokens,): row of each token in the padded batch; None without padding."""

    @classmethod
    def of(cls, inputs: Sequence[SequenceInput], batch: PaddedBatch, padded_index: Tensor | None = None) -> "PassSlots":
        """Return the slots of a pass over sequences of one store."""
        ascending = sorted(sequence.cache.index for sequence in inputs)
        contiguous = ascending[-1] - ascending[0] == len(ascending) - 1
        sequences = slice(ascending[0], ascending[-1] + 1) if contiguous else torch.tensor(ascending)
        token_sequence, slot = index_slots(inputs)
        return cls(sequences, batch, None if len(inputs) == 1 else token_sequence, slot, padded_index)

    @classmethod
    def of_padded(cls, padded: PaddedPass) -> "PassSlots":
        """Return the slots of all rows of a pass that is captured, padding included."""
        return cls(slice(padded.batch.sequences), padded.batch, padded.sequence, padded.slots, None)

    def write(self, entries: Tensor, new: Tensor) -> Tensor:
        """Write new keys or values, (sequences, heads, n, size), and return the slots that the pass reads."""
        kv_length = self.batch.kv_length
        if self.sequence is None:
            entries[self.sequences, :, kv_length - self.batch.tokens : kv_length] = new
        else:
            rows = new.transpose(1, 2).flatten(0, 1)  # (sequences * n, heads, size)
            if self.padded_index is not None:
                rows = rows[self.padded_index.to(rows.device)]
            entries[self.sequence.to(entries.device), :, self.slot.to(entries.device)] = rows
        return entries[:, :, :kv_length][self.sequences]


class PassLayer(CacheLayerMixin):
    """One layer of a `PassCache`; to the model it is a cache that grows."""

    is_sliding = False

    def __init__(self, store: KVStore, index: int, slots: PassSlots) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._store, self._index, self._slots = store, index, slots
        self._used = slots.batch.kv_length - slots.batch.tokens
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        if self._index not in self._store.layers:
            self._store.add_layer(self._index, key_states, value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the keys and values of the pass; return those of all slots up to the padded KV length."""
        self.lazy_initialization(key_states, value_states)
        keys, values = self._store.layers[self._index]
        return self._slots.write(keys, key_states), self._slots.write(values, value_states)

    def get_seq_length(self) -> int:
        """Return the slots before those of the pass."""
        return self._used

    def get_mask_sizes(self, query: int | Tensor) -> tuple[int, int]:
        """Return the KV length and its first slot; older transformers pass the positions of the new tokens."""
        return self._used + (query if isinstance(query, int) else len(query)), 0

    def get_max_length(self) -> int:
        return -1  # no limit, as far as the model is concerned

    def get_max_cache_shape(self) -> int:
        return -1  # the name in older transformers


class PassCache(Cache):
    """The store of a pass as the cache of a transformers model."""

    def __init__(self, store: KVStore, slots: PassSlots) -> None:
        indices = count()

        def new_layer() -> PassLayer:
            return PassLayer(store, next(indices), slots)

        super().__init__(layer_class_to_replicate=new_layer)  # type: ignore[arg-type]
        # a model asks for the used slots before it reaches a layer that `Cache` would create on demand
        self.layers.extend(new_layer() for _ in range(max(store.layers, default=-1) + 1))
