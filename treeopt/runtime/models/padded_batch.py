"""Padding of sequences with different numbers of tokens and slots to one batch.

sequence:    0                 1                 …
rows:        n tokens each; shorter sequences are padded
columns:     KV slots of the longest sequence; a mask hides those that a sequence does not have
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.runtime.models.model import (
    ForwardModel,
    Output,
    Outputs,
    RequestedStates,
    SequenceInput,
    concatenate_outputs,
)


class PaddedBatch(NamedTuple):
    """The shape of sequences that are padded to the same number of tokens and slots."""

    sequences: int
    """Including those that the pass leaves out."""
    tokens: int
    """Per sequence, padding included."""
    kv_length: int
    """Padded KV length in slots."""

    @classmethod
    def of(cls, inputs: Sequence[SequenceInput], sequences: int) -> "PaddedBatch":
        """Return the smallest batch of `sequences` sequences that contains all tokens."""
        tokens = max(sequence.nodes.rows for sequence in inputs)
        return cls(sequences, tokens, max(sequence.slots.stop for sequence in inputs))


class PaddedPass(NamedTuple):
    """A pass over the first sequences of a store, each padded to the same number of rows.

    A replayed graph repeats the operations of the capture on these tensors, whose contents differ by then.  So a pass
    must not read them on the host, and what it takes from the host may depend on `batch` alone.
    """

    store: Any
    """Keys and values of the sequences; each has one more slot than its capacity, to which padding is written."""
    batch: PaddedBatch
    tokens: Tensor
    """int64 (rows,), sequence after sequence; on rows of padding any token."""
    positions: Tensor
    """int64 (rows,); 0 on rows of padding."""
    slots: Tensor
    """int64 (rows,): where each row writes its keys and values, in the slots of its sequence."""
    sequence: Tensor
    """int64 (rows,): index of each row's sequence in the store."""
    lengths: Tensor
    """int64 (sequences,): committed tokens; 0 for sequences that the pass leaves out."""
    mask: Tensor
    """Additive attention mask (sequences, 1, tokens, kv_length)."""
    features: Tensor | None
    """(rows, width): what a drafter's head reads along with the tokens; rows without features hold earlier ones."""


class CapturableModel(ForwardModel, Protocol):
    """A model whose passes can be captured, unless its `captures` is False."""

    captures: bool

    def run_padded(self, padded: PaddedPass, requested_states: RequestedStates) -> Output:
        """Return logits and states of all rows, padding included."""


def compute_positions(inputs: Sequence[SequenceInput]) -> Int64:
    """Return the position of each token in its sequence, sequence after sequence."""
    return np.concatenate([sequence.cache.length + sequence.nodes.depth for sequence in inputs], dtype=np.int64)


def index_slots(inputs: Sequence[SequenceInput]) -> tuple[Tensor, Tensor]:
    """Return the index of each token's sequence in its store, and the token's slot, both int64 (tokens,)."""
    indices = [sequence.cache.index for sequence in inputs for _ in sequence.slots]
    return torch.tensor(indices), torch.tensor([slot for sequence in inputs for slot in sequence.slots])


def index_padding(
    batch: PaddedBatch, inputs: Sequence[SequenceInput], numbers: Sequence[int], device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Return the padded row of each token, and the token of each padded row; None for both without padding.

    Rows of padding repeat token 0.  `numbers` are those of the inputs in the batch.
    """
    rows: list[int] = []
    for sequence, number in zip(inputs, numbers, strict=True):
        start = number * batch.tokens
        rows += range(start, start + sequence.nodes.rows)
    if rows == list(range(batch.sequences * batch.tokens)):
        return None, None
    padded_index = torch.tensor(rows)
    token_index = torch.zeros(batch.sequences * batch.tokens, dtype=torch.int64)
    token_index[padded_index] = torch.arange(len(rows))
    return padded_index.to(device), token_index.to(device)


def build_mask(
    batch: PaddedBatch,
    inputs: Sequence[SequenceInput],
    numbers: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """Return the additive attention mask, or None if each token attends to every slot.

    Its shape is (sequences, 1, tokens, kv_length), or (sequences, 1, 1, kv_length) if all tokens of a sequence attend
    to the same slots.  `numbers` are those of the inputs in the batch.
    """
    same_for_all_tokens = all(sequence.nodes.sees_all for sequence in inputs)
    if same_for_all_tokens and all(sequence.slots.stop == batch.kv_length for sequence in inputs):
        return None
    hidden = np.zeros((batch.sequences, 1 if same_for_all_tokens else batch.tokens, batch.kv_length), np.bool_)
    for sequence, number in zip(inputs, numbers, strict=True):
        rows, nodes, end = hidden[number], sequence.nodes, sequence.slots.stop
        rows[:, end:] = True
        if not nodes.sees_all:
            np.logical_not(nodes.visible, out=rows[: nodes.rows, end - nodes.visible.shape[1] : end])
    on_device = torch.from_numpy(hidden).to(device)[:, None]
    return torch.zeros(on_device.shape, dtype=dtype, device=device).masked_fill_(on_device, float("-inf"))


def last_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the last row of every sequence in a packed tensor (all rows, …), as (sequences, …)."""
    if rows.shape[0] == len(sizes):
        return rows
    if len(sizes) == 1:
        return rows[-1:]
    ends = np.cumsum(sizes) - 1
    return rows[torch.from_numpy(ends).to(rows.device)]


def last_outputs(outputs: Outputs) -> Outputs:
    """Return the outputs of the last token of every sequence."""
    sizes = outputs.sizes
    if all(size == 1 for size in sizes):
        return outputs
    return Outputs(outputs.whole.map(lambda rows: last_rows(rows, sizes)), [1] * len(sizes))


def run_by_store(inputs: Sequence[SequenceInput], run: Callable[[Sequence[SequenceInput]], Outputs]) -> Outputs:
    """Run one pass over the sequences of each cache store; return the outputs in the order of `inputs`."""
    by_store: dict[int, list[int]] = {}
    for number, sequence in enumerate(inputs):
        by_store.setdefault(id(sequence.cache.store), []).append(number)
    if len(by_store) == 1:
        return run(inputs)
    results: dict[int, Output] = {}
    for numbers in by_store.values():
        results.update(zip(numbers, run([inputs[number] for number in numbers]), strict=True))
    ordered = [results[number] for number in range(len(inputs))]
    return concatenate_outputs([Outputs(output, [output.logits.shape[0]]) for output in ordered])
