"""Attention of a pass: where its keys and values are written, and which slots each token attends to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.nodes import hide_before_window
from treeopt.runtime.models.padded_batch import (
    PaddedBatch,
    PaddedPass,
    build_mask,
    compute_positions,
    index_padding,
    index_slots,
)

BLOCK_ROWS = 512
"""Tokens of a long prompt per attention call if it needs a mask, whose size grows with them."""
MOST_PADDING = 2.0
"""Sequences attend in one batch if its scores are at most this multiple of their own scores."""
CALL_BYTES = 2**17
"""On a CPU an extra call takes as long as reading this many bytes of a layer's cache; measured on one core of an AMD EPYC."""


class PassAttention(Protocol):
    """Attention metadata of the tokens of a pass."""

    @property
    def rotations(self) -> Tensor:
        """Of each token's position."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write a layer's keys and values, and return the attention output, shaped like `query`.

        Each is (batch, heads, n, head_size), with fewer heads of keys and values.  Tokens of several sequences are
        packed into one batch.
        """

    def with_window(self, window: int) -> "PassAttention":
        """Return the attention of layers with a sliding window, in tokens: each token and the `window` - 1 before it."""


def build_attention(inputs: Sequence[SequenceInput]) -> PassAttention:
    """Return the attention of the packed tokens of a pass.

    Sequences of one store attend in one call, padded to the longest, without moving a committed slot.  They attend one
    by one if their caches are in different stores, or if reading the padding would take longer than the extra calls.
    """
    if len(inputs) == 1:
        return SequenceAttention.of(inputs[0])
    store = inputs[0].cache.store
    if all(sequence.cache.store is store for sequence in inputs):
        indices = [sequence.cache.index for sequence in inputs]
        batch = PaddedBatch.of(inputs, max(indices) + 1 - min(indices))
        if _batch_is_faster(batch, inputs, store.layers[0][0]):
            return BatchedAttention.of(inputs, min(indices), batch)
    return PerSequenceAttention([SequenceAttention.of(sequence) for sequence in inputs])


class SequenceAttention(NamedTuple):
    """The attention of one sequence."""

    cache: KVCache
    rotations: Tensor
    """Of each token's position."""
    slots: slice
    """Where keys and values are written."""
    mask: Tensor | None = None
    """Over the slots from `first` on."""
    causal: bool = False
    """Whether each token attends to all tokens before it and to no others."""
    first: int = 0
    """First slot that any token attends to."""
    window: int | None = None
    """Sliding window of a causal pass, in tokens."""

    @classmethod
    def of(cls, sequence: SequenceInput) -> "SequenceAttention":
        cache, nodes = sequence.cache, sequence.nodes
        slots = slice(sequence.slots.start, sequence.slots.stop)
        keys = cache.layers[0][0]
        if nodes.is_chain and nodes.start == 0 and (slots.start == 0 or nodes.rows > BLOCK_ROWS):
            return cls(cache, cache.rotations[slots], slots, causal=nodes.rows > 1)
        mask = nodes.mask_after(cache.length, dtype=keys.dtype, device=keys.device)
        return cls(cache, cache.rotations[cache.length + nodes.depth_on(keys.device)], slots, mask)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's keys and values; arguments as for `attend`."""
        keys, values = self.cache.layers[layer]
        keys[:, :, self.slots] = key
        values[:, :, self.slots] = value

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.write(layer, key, value)
        keys, values = (entries[:, :, self.first : self.slots.stop] for entries in self.cache.layers[layer])
        if self.causal:
            return attend_causally(query, keys, values, self.window)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, enable_gqa=True)

    def with_window(self, window: int) -> "SequenceAttention":
        kv_length = self.slots.stop
        if kv_length <= window:
            return self
        if self.causal:
            return self._replace(window=window)
        if self.mask is None:
            return self._replace(first=kv_length - window)
        first = max(0, self.cache.length + 1 - window)
        return self._replace(first=first, mask=hide_before_window(self.mask[:, first:], window))


class PerSequenceAttention:
    """Sequences attend one by one, without padding."""

    def __init__(self, sequences: Sequence[SequenceAttention]) -> None:
        self.rotations = torch.cat([sequence.rotations for sequence in sequences])
        self._sequences = sequences
        self._sizes = [sequence.slots.stop - sequence.slots.start for sequence in sequences]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = zip(*(tensor.split(self._sizes, 2) for tensor in (query, key, value)), strict=True)
        outputs = [sequence.attend(layer, *part) for sequence, part in zip(self._sequences, parts, strict=True)]
        return torch.cat(outputs, 2)

    def with_window(self, window: int) -> "PerSequenceAttention":
        return PerSequenceAttention([sequence.with_window(window) for sequence in self._sequences])


@dataclass(slots=True, kw_only=True)
class BatchedAttention:
    """Sequences of one store attend in one call over a padded batch."""

    store: KVStore
    first: int = 0
    """Index of the batch's first sequence in the store; the others follow it."""
    batch: PaddedBatch
    rotations: Tensor
    """Of each token's position."""
    slots: Tensor
    """int64 (tokens * key_value_heads,), from `slots_by_head`."""
    mask: Tensor | None
    """(sequences, 1, n or 1, kv_length), or None if each token attends to every slot."""
    padded_index: Tensor | None = None
    """Row of each token in the padded batch; None without padding."""
    token_index: Tensor | None = None
    """Token of each row of the padded batch; None without padding."""

    @classmethod
    def of(cls, inputs: Sequence[SequenceInput], first: int, batch: PaddedBatch) -> "BatchedAttention":
        store, numbers = inputs[0].cache.store, [sequence.cache.index - first for sequence in inputs]
        keys, (sequence, slot) = store.layers[0][0], index_slots(inputs)
        padded_index, token_index = index_padding(batch, inputs, numbers, keys.device)
        return cls(
            store=store,
            first=first,
            batch=batch,
            rotations=store.rotations[torch.from_numpy(compute_positions(inputs)).to(keys.device)],
            slots=slots_by_head(store, sequence, slot).to(keys.device),
            mask=build_mask(batch, inputs, numbers, dtype=keys.dtype, device=keys.device),
            padded_index=padded_index,
            token_index=token_index,
        )

    @classmethod
    def of_padded(cls, padded: PaddedPass) -> "BatchedAttention":
        """Return the attention of a pass over a `KVStore` that can be captured."""
        store = padded.store
        return cls(
            store=store,
            batch=padded.batch,
            rotations=store.rotations[padded.positions],
            slots=slots_by_head(store, padded.sequence, padded.slots),
            mask=padded.mask,
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        first, (sequences, tokens, kv_length) = self.first, self.batch
        heads, size = query.shape[1], query.shape[3]
        for entries, new in zip(self.store.layers[layer], (key, value), strict=True):
            entries.view(-1, size).index_copy_(0, self.slots, new[0].transpose(0, 1).reshape(-1, size))
        keys, values = (entries[first : first + sequences, :, :kv_length] for entries in self.store.layers[layer])
        rows = query[0].transpose(0, 1)
        rows = rows if self.token_index is None else rows[self.token_index]
        # query heads that share keys become rows of one head, so that the keys are read once
        folded = rows.reshape(sequences, tokens, heads, -1).transpose(1, 2)
        folded = folded.reshape(sequences, keys.shape[1], -1, size)
        if self.mask is not None and self.mask.shape[2] not in (1, folded.shape[2]):  # in the first layer
            self.mask = self.mask.repeat(1, 1, heads // keys.shape[1], 1)
        output = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self.mask)
        # not a view: GPU kernels return the token dimension before the heads
        output = output.reshape(sequences, heads, tokens, size).transpose(1, 2).reshape(-1, heads, size)
        output = output if self.padded_index is None else output[self.padded_index]
        return output.transpose(0, 1)[None]

    def with_window(self, window: int) -> "BatchedAttention":
        kv_length = self.batch.kv_length
        if kv_length <= window:
            return self
        mask = self.mask
        if mask is None:
            mask = self.store.layers[0][0].new_zeros((1, 1, 1, kv_length))
        return replace(self, mask=hide_before_window(mask, window))


class UncachedAttention(NamedTuple):
    """Causal attention over whole sequences, whose keys and values are not stored."""

    rotations: Tensor
    """Of each token's position."""
    window: int | None = None
    """Sliding window in tokens."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # noqa: ARG002
        return attend_causally(query, key, value, self.window)

    def with_window(self, window: int) -> "UncachedAttention":
        return self._replace(window=window)


def slots_by_head(store: KVStore, sequence: Tensor, slot: Tensor) -> Tensor:
    """Return the row of each token and head in a layer's entries, viewed as (rows, head_size), int64 (tokens * heads,).

    `sequence` is the index of each token's sequence, and `slot` the token's, both int64 (tokens,).
    """
    _, heads, slots, _ = store.layers[0][0].shape
    by_head = torch.arange(0, heads * slots, slots, device=slot.device)
    return ((sequence * (heads * slots) + slot)[:, None] + by_head).flatten()


def attend_causally(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """Return the attention output of the last n tokens of a sequence of m.

    The query is (batch, heads, n, head_size), keys and values are (batch, key_value_heads, m, head_size).
    """
    count, length = query.shape[2], keys.shape[2]
    if count == length and (window is None or count <= window):
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    positions = torch.arange(length, device=query.device)
    before, blocks = length - count, []
    for start in range(0, count, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, count)
        first = 0 if window is None else max(0, before + start + 1 - window)
        rows, columns = slice(before + start, before + end), slice(first, before + end)
        visible = positions[columns] <= positions[rows, None]
        if window is not None:
            visible &= positions[columns] > positions[rows, None] - window
        blocks.append(
            F.scaled_dot_product_attention(
                query[:, :, start:end], keys[:, :, columns], values[:, :, columns], attn_mask=visible, enable_gqa=True
            )
        )
    return torch.cat(blocks, 2)


def _batch_is_faster(batch: PaddedBatch, inputs: Sequence[SequenceInput], keys: Tensor) -> bool:
    """Return whether one call over a padded batch is faster than one per sequence, given the keys of a layer."""
    padded_scores = batch.sequences * batch.tokens * batch.kv_length
    kv_lengths = [sequence.slots.stop for sequence in inputs]
    scores = sum(sequence.nodes.rows * length for sequence, length in zip(inputs, kv_lengths, strict=True))
    if padded_scores > MOST_PADDING * scores:
        return False
    padding_slots = batch.sequences * batch.kv_length - sum(kv_lengths)
    slot_bytes = 2 * keys.shape[1] * keys.shape[3] * keys.element_size()
    return keys.device.type != "cpu" or padding_slots * slot_bytes <= CALL_BYTES * (len(inputs) - 1)
