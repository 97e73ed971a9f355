"""Runs the passes of a model; on a CUDA device it captures each shape as a graph, which serves every tree of that shape.

A replayed graph sees only the contents of its buffers change.  So tokens, positions, slots, lengths and the nodes that
each token attends to are in buffers, and the mask is computed from them on the device.  That leaves (sequences, padded
tokens per sequence, padded KV length) as the shape of a pass: static and dynamic trees, draft levels, heads and batches
share graphs.
"""

import gc
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.errors import InvalidValueError, TreeoptWarning
from treeopt.runtime.models.model import (
    NO_STATES,
    ForwardModel,
    Output,
    Outputs,
    RequestedStates,
    SequenceInput,
    concatenate,
)
from treeopt.runtime.models.nodes import PassNodes, build_device_mask
from treeopt.runtime.models.padded_batch import CapturableModel, PaddedBatch, PaddedPass

SHORTEST_KV_LENGTH = 256
TOKEN_STEP = 8
"""Tokens per sequence are padded to a multiple of this, fewer to a power of two."""
MOST_GRAPHS = 64
"""Graphs per runner; passes of further shapes run operation by operation."""
MOST_ROW_INDICES = 256

Work = Callable[[], None]
Places = tuple[tuple[int, int], ...]
"""Index of each sequence of a pass in the store, and its number of tokens."""


class GraphPool:
    """Device memory that graphs share: one is replayed at a time, and its results are copied out at once.

    On other devices than CUDA nothing is captured, and a replay calls the function; tests use this.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            self._handle = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(device)

    def capture(self, work: Work) -> Work:
        """Capture a function, running it at least once; return a function that replays it on the device."""
        if self._device.type != "cuda":
            work()
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):  # the first call initialises libraries, which must not be captured
                work()
            current.wait_stream(self._stream)
            # thread_local: other threads, such as those that serve requests, may call the device during the capture
            capture = torch.cuda.graph(graph, pool=self._handle, stream=self._stream, capture_error_mode="thread_local")
            with _pause_garbage_collection(), capture:
                work()
        return graph.replay


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing graphs of deleted decoders during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def make_graph_pool(device: torch.device, cuda_graphs: bool | None = None) -> GraphPool | None:
    """Return a pool if passes should be captured, by default on a CUDA device; else None."""
    enabled = device.type == "cuda" if cuda_graphs is None else cuda_graphs
    return GraphPool(device) if enabled else None


class Runner:
    """Runs passes of one model over any of its sequences, each of which is fed at most `max_nodes` nodes in a step.

    A pool captures a pass as a graph when its shape comes first; without one, passes run operation by operation.
    """

    total_captures: ClassVar[int] = 0
    """Captures so far, of all runners: a pass with a capture takes several times as long as one without."""

    def __init__(
        self,
        model: ForwardModel,
        *,
        max_nodes: int,
        requested_states: RequestedStates = NO_STATES,
        pool: GraphPool | None = None,
    ) -> None:
        self.model, self.requested_states = model, requested_states
        self._max_nodes = max_nodes
        self._pool = pool if getattr(model, "captures", False) else None
        self._store: Callable[[], Any] = lambda: None
        """A weak reference: after a larger batch has new caches, the memory of the old ones is free."""
        self._kv_lengths: list[int] = []
        self._buffers: dict[tuple[int, int], PassBuffers] = {}
        self._replays: dict[PaddedBatch, Work] = {}

    @property
    def captured(self) -> list[PaddedBatch]:
        """Captured shapes, oldest first."""
        return list(self._replays)

    def forward(self, inputs: Sequence[SequenceInput], *, last_only: bool = False) -> Outputs:
        """Return what `LanguageModel.forward` does; the next pass of a captured shape overwrites the results."""
        shape = None if self._pool is None else self._find_shape(inputs)
        if shape is None:
            return self.model.forward(inputs, self.requested_states, last_only=last_only)
        return self._replay(shape, inputs, last_only)

    def _find_shape(self, inputs: Sequence[SequenceInput]) -> PaddedBatch | None:
        """Return the shape of a pass that has a graph or gets one, else None."""
        store = inputs[0].cache.store
        needed = max(sequence.slots.stop for sequence in inputs)
        most_nodes = max(sequence.nodes.start + sequence.nodes.rows for sequence in inputs)
        if needed > store.capacity:
            raise InvalidValueError(f"cache: expected room for {needed} tokens. Got {store.capacity}.")
        if most_nodes > self._max_nodes or any(sequence.cache.store is not store for sequence in inputs):
            return None
        if store is not self._store():  # graphs use the memory that they were captured with
            self._store, self._kv_lengths = ref(store), padded_kv_lengths(store.capacity)
            self._buffers.clear()
            self._replays.clear()
        last_index = max(sequence.cache.index for sequence in inputs)
        sequences = min(store.sequences, 1 << last_index.bit_length())
        kv_length = self._kv_lengths[bisect_left(self._kv_lengths, needed)]
        shape = PaddedBatch(sequences, padded_tokens(max(sequence.nodes.rows for sequence in inputs)), kv_length)
        if shape in self._replays:
            return shape
        return shape if len(self._replays) < MOST_GRAPHS else None

    @torch.inference_mode()
    def _replay(self, shape: PaddedBatch, inputs: Sequence[SequenceInput], last_only: bool) -> Outputs:
        assert self._pool is not None
        size = shape.sequences, shape.tokens
        buffers = self._buffers.get(size)
        if buffers is None:
            model = cast("CapturableModel", self.model)  # as its `captures` declares
            buffers = PassBuffers(model, self._store(), size, self._max_nodes, self.requested_states)
            self._buffers[size] = buffers
        places = buffers.load(inputs)
        replay = self._replays.get(shape)
        if replay is None:
            Runner.total_captures += 1
            try:
                replay = self._replays[shape] = self._pool.capture(lambda: buffers.run(shape))
            except RuntimeError as error:
                self._pool = None
                warnings.warn(_capture_warning(self.model.name, error), stacklevel=2)
                return self.model.forward(inputs, self.requested_states, last_only=last_only)
        replay()
        return buffers.outputs(places, last_only=last_only)


class PassBuffers:
    """The buffers of passes of one shape but for the KV length; graphs read and write them, so they never move.

    Absent sequences, and rows that a sequence does not need, are padding: they write to an unused slot and attend to
    every node, so that all numbers are finite.
    """

    def __init__(
        self,
        model: CapturableModel,
        store: Any,
        size: tuple[int, int],
        columns: int,
        requested_states: RequestedStates,
    ) -> None:
        self._model, self._store, self._requested_states = model, ref(store), requested_states
        self._capacity: int = store.capacity
        self._sequences, self._tokens = size
        self._columns = columns
        rows, device = self._sequences * self._tokens, model.device
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._numbers = torch.zeros(2 * rows + self._sequences, dtype=torch.int64, device=device)
        self._positions, self._slots, self._lengths = self._numbers.split([rows, rows, self._sequences])
        self._visible = torch.ones((self._sequences, self._tokens, columns), dtype=torch.bool, device=device)
        self._loaded: list[object] = [None] * self._sequences
        self._sequence = torch.arange(self._sequences, device=device).repeat_interleave(self._tokens)
        self._features: Tensor | None = None
        self._output: Output | None = None
        self._rows: dict[tuple[Places, bool], slice | Tensor] = {}

    def load(self, inputs: Sequence[SequenceInput]) -> Places:
        """Write the tokens of a pass to the buffers, and return where they are."""
        shape = self._sequences, self._tokens
        positions, slots = np.zeros(shape, np.int64), np.full(shape, self._capacity, np.int64)
        lengths: Int64 = np.zeros(self._sequences, np.int64)
        places = tuple((sequence.cache.index, sequence.nodes.rows) for sequence in inputs)
        new_nodes: list[PassNodes | None] = [None] * self._sequences
        for cache, _, nodes, _ in inputs:
            index, count, first = cache.index, nodes.rows, cache.length + nodes.start
            positions[index, :count] = cache.length + nodes.depth
            slots[index, :count] = np.arange(first, first + count)
            lengths[index] = cache.length
            new_nodes[index] = nodes
        numbers = np.concatenate([positions.ravel(), slots.ravel(), lengths])
        self._numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
        for index, sequence_nodes in enumerate(new_nodes):
            if sequence_nodes is not self._loaded[index]:
                self._loaded[index] = self  # differs from any nodes, in case of an interrupt before the next line ends
                self._write_visible(index, sequence_nodes)
                self._loaded[index] = sequence_nodes
        self._write(self.tokens, [sequence.tokens for sequence in inputs], places)
        features = [sequence.features for sequence in inputs if sequence.features is not None]
        if features:
            if self._features is None:
                self._features = features[0].new_zeros((len(self.tokens), features[0].shape[1]))
            counts = [len(rows) for rows in features]
            if any(counts):
                indices = (sequence.cache.index for sequence in inputs)
                self._write(self._features, features, tuple(zip(indices, counts, strict=True)))
        return places

    def run(self, shape: PaddedBatch) -> None:
        """Compute logits and states of all rows into the output buffers."""
        padded = PaddedPass(
            store=self._store(),
            batch=shape,
            tokens=self.tokens,
            positions=self._positions,
            slots=self._slots,
            sequence=self._sequence,
            lengths=self._lengths,
            mask=build_device_mask(self._visible, self._lengths, shape.kv_length, self._model.dtype),
            features=self._features,
        )
        output = self._model.run_padded(padded, self._requested_states)
        if self._output is None:  # in the call before the first capture
            self._output = output.map(torch.clone)
        for buffer, tensor in zip(_tensors(self._output), _tensors(output), strict=True):
            buffer.copy_(tensor)

    def outputs(self, places: Places, *, last_only: bool) -> Outputs:
        """Return the outputs of a pass, of the last token of each sequence or of all."""
        assert self._output is not None  # a pass was run
        rows = self._find_rows(places, last_only=last_only)
        sizes = [1 if last_only else count for _, count in places]
        return Outputs(self._output.map(lambda tensor: tensor[rows]), sizes)

    def _find_rows(self, places: Places, *, last_only: bool = False) -> slice | Tensor:
        """Return the rows of the tokens in the buffers, a slice if they follow each other."""
        rows = self._rows.get((places, last_only))
        if rows is None:
            if len(self._rows) >= MOST_ROW_INDICES:
                self._rows.clear()
            ranges = [range(index * self._tokens, index * self._tokens + count) for index, count in places]
            numbers = [row for each in ranges for row in (each[-1:] if last_only else each)]
            contiguous = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            rows = (
                slice(numbers[0], numbers[-1] + 1)
                if contiguous
                else torch.tensor(numbers).to(self.tokens.device, non_blocking=True)
            )
            self._rows[places, last_only] = rows
        return rows

    def _write_visible(self, index: int, nodes: PassNodes | None) -> None:
        visible = self._visible[index]
        visible.fill_(True)
        if nodes is not None:
            visible[: nodes.rows] = nodes.visible_on(visible.device, self._columns)

    def _write(self, buffer: Tensor, parts: Sequence[Tensor], places: Places) -> None:
        packed, rows = concatenate(parts), self._find_rows(places)
        if isinstance(rows, slice):
            buffer[rows].copy_(packed, non_blocking=True)
        else:
            buffer[rows] = packed.to(buffer.device, non_blocking=True)


def _tensors(output: Output) -> list[Tensor]:
    states = output.states
    if states is None:
        return [output.logits]
    return [output.logits, *states.layers, *([] if states.last is None else [states.last])]


def _capture_warning(name: str, error: RuntimeError) -> TreeoptWarning:
    reason = " ".join(str(error).split())[:200]
    return TreeoptWarning(
        f"{name}: expected a pass that can be captured as a CUDA graph. Got {reason!r}, and passes run operation by "
        "operation: pass cuda_graphs=False to leave the attempt out."
    )


def padded_kv_lengths(capacity: int) -> list[int]:
    """Return the padded KV lengths of a cache: few, because each has its own graphs, and at most twice the needed length.

    >>> padded_kv_lengths(2000)
    [256, 512, 1024, 2000]
    """
    lengths = [SHORTEST_KV_LENGTH]
    while lengths[-1] < capacity:
        lengths.append(2 * lengths[-1])
    return [*lengths[:-1], capacity]


def padded_tokens(count: int) -> int:
    """Return the padded number of tokens of a sequence: few numbers share graphs, and few rows take as long as one.

    >>> [padded_tokens(count) for count in (1, 3, 5, 9, 65)]
    [1, 4, 8, 16, 72]
    """
    return min(1 << (count - 1).bit_length(), -(-count // TOKEN_STEP) * TOKEN_STEP)
