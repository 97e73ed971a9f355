"""Runs the passes of a model; on a CUDA device each shape is captured as a graph and replayed for every tree that has it.

A graph can be replayed only where nothing but the contents of its buffers changes. So tokens, positions, slots, lengths
and what each node sees lie in buffers, and the mask is made from them on the device. All that is left of a pass's shape is
(sequences, tokens of each, slots attended over): static and dynamic trees, draft levels, heads and batches share it.
"""

import gc
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.errors import InvalidValueError, TreeoptWarning
from treeopt.runtime.models.attention import Place, SideBySide, slots_by_head
from treeopt.runtime.models.grid import Grid
from treeopt.runtime.models.kv_cache import KVStore
from treeopt.runtime.models.model import NOTHING, Feed, ForwardModel, Output, Outputs, Wants, joined
from treeopt.runtime.models.nodes import PassNodes, mask_on_device

FIRST_EXTENT = 256
"""Slots that the passes of short texts attend over."""
MOST_GRAPHS = 64
"""Graphs of one runner; passes of further shapes run operation by operation."""

Work = Callable[[], None]


class CapturedModel(ForwardModel, Protocol):
    """A model whose passes can be captured."""

    def run(self, tokens: Tensor, place: Place, wants: Wants = NOTHING, *, inputs: Tensor | None = None) -> Output:
        """Return logits and states of tokens, int64 (rows,), at a place."""


class GraphPool:
    """Device memory that graphs share, since one is replayed at a time and its results are copied out at once.

    Elsewhere than on a CUDA device nothing is captured and replaying means calling, which is for tests.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            self._handle = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(device)

    def capture(self, work: Work) -> Work:
        """Return what replays the work on the device; the work is also done, once."""
        if self._device.type != "cuda":
            work()
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):  # a library's first call sets it up, which must not be captured
                work()
            current.wait_stream(self._stream)
            # thread_local: another thread may call the device meanwhile, such as one that serves other requests
            capture = torch.cuda.graph(graph, pool=self._handle, stream=self._stream, capture_error_mode="thread_local")
            with _no_collection(), capture:
                work()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause Python's garbage collector: graphs of a decoder that is gone must not be freed during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pool_for(device: torch.device, cuda_graphs: bool | None = None) -> GraphPool | None:
    """Return a pool where passes are to be captured, by default on a CUDA device, else None."""
    wanted = device.type == "cuda" if cuda_graphs is None else cuda_graphs
    return GraphPool(device) if wanted else None


class Shape(NamedTuple):
    """What a graph is for."""

    sequences: int
    """The first so many of the store."""
    tokens: int
    """Of each sequence."""
    extent: int
    """Slots attended over."""


class Runner:
    """Runs passes of one model over any of its sequences.

    Args:
        model: the model.
        max_nodes: most nodes that a sequence is fed in a step.
        wants: hidden states of every pass.
        pool: where passes are captured as graphs, the second time that their shape comes; None to run each operation by
            operation.
    """

    def __init__(
        self, model: ForwardModel, *, max_nodes: int, wants: Wants = NOTHING, pool: GraphPool | None = None
    ) -> None:
        self.model, self.wants = model, wants
        self._max_nodes = max_nodes
        self._pool = pool if getattr(model, "captures", False) else None
        self._store: KVStore | None = None
        self._extents: list[int] = []
        self._seen: Counter[Shape] = Counter()
        self._buffers: dict[tuple[int, int], PassBuffers] = {}
        self._replays: dict[Shape, Work] = {}

    @property
    def captured(self) -> list[Shape]:
        """Shapes in the order they were captured."""
        return list(self._replays)

    def forward(self, feeds: Sequence[Feed], *, last_only: bool = False) -> Outputs:
        """Return what `LanguageModel.forward` does; the results of a captured pass last until the next of its shape."""
        shape = None if self._pool is None else self._shape(feeds)
        if shape is None:
            return self.model.forward(feeds, self.wants, last_only=last_only)
        return self._replayed(shape, feeds, last_only)

    def _shape(self, feeds: Sequence[Feed]) -> Shape | None:
        """Return the shape of a pass that has a graph or gets one, else None."""
        store = feeds[0].cache.store
        needed = max(feed.cache.length + feed.nodes.start + feed.nodes.rows for feed in feeds)
        if needed > store.capacity:
            raise InvalidValueError(f"cache: expected room for {needed} tokens. Got {store.capacity}.")
        if any(feed.cache.store is not store or feed.nodes.start + feed.nodes.rows > self._max_nodes for feed in feeds):
            return None
        if store is not self._store:  # graphs read and write the memory that they were captured with
            self._store, self._extents = store, extents(store.capacity)
            self._seen.clear()
            self._buffers.clear()
            self._replays.clear()
        last_place = max(feed.cache.place for feed in feeds)
        sequences = min(store.sequences, 1 << last_place.bit_length())
        extent = self._extents[bisect_left(self._extents, needed)]
        shape = Shape(sequences, max(feed.nodes.rows for feed in feeds), extent)
        if shape in self._replays:
            return shape
        self._seen[shape] += 1
        return shape if self._seen[shape] > 1 and len(self._replays) < MOST_GRAPHS else None

    @torch.inference_mode()
    def _replayed(self, shape: Shape, feeds: Sequence[Feed], last_only: bool) -> Outputs:
        assert self._store is not None  # set with the shape
        assert self._pool is not None
        buffers = self._buffers.get(shape[:2])
        if buffers is None:
            model = cast("CapturedModel", self.model)  # which has `captures`
            buffers = PassBuffers(model, self._store, shape, self._max_nodes, self.wants)
            self._buffers[shape[:2]] = buffers
        rows = buffers.load(feeds)
        replay = self._replays.get(shape)
        if replay is None:
            try:
                replay = self._replays[shape] = self._pool.capture(lambda: buffers.run(shape.extent))
            except RuntimeError as error:
                self._pool = None
                warnings.warn(_not_captured(self.model.name, error), stacklevel=2)
                return self.model.forward(feeds, self.wants, last_only=last_only)
        replay()
        return buffers.outputs(rows, [feed.nodes.rows for feed in feeds], last_only)


class PassBuffers:
    """The buffers of passes over so many sequences and tokens, which stay where they are: what is captured reads them.

    Sequences without tokens in a pass, and rows that a sequence does not need, are padding: they write to a slot that
    nobody reads and see every node, so that all numbers are finite.
    """

    def __init__(self, model: CapturedModel, store: KVStore, shape: Shape, columns: int, wants: Wants) -> None:
        self._model, self._store, self._wants = model, store, wants
        self._sequences, self._tokens, _ = shape
        self._columns = columns
        rows, device = self._sequences * self._tokens, model.device
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._numbers = torch.zeros(2 * rows + self._sequences, dtype=torch.int64, device=device)
        self._positions, self._slots, self._lengths = self._numbers.split([rows, rows, self._sequences])
        self._visible = torch.ones((self._sequences, self._tokens, columns), dtype=torch.bool, device=device)
        self._loaded: list[object] = [None] * self._sequences
        self._sequence = torch.arange(self._sequences, device=device).repeat_interleave(self._tokens)
        self._inputs: Tensor | None = None
        self._output: Output | None = None

    def load(self, feeds: Sequence[Feed]) -> list[int]:
        """Write the tokens of a pass into the buffers, and return the row of each."""
        shape = self._sequences, self._tokens
        positions, slots = np.zeros(shape, np.int64), np.full(shape, self._store.capacity, np.int64)
        lengths: Int64 = np.zeros(self._sequences, np.int64)
        rows: list[int] = []
        loaded: list[PassNodes | None] = [None] * self._sequences
        for cache, _, nodes, _ in feeds:
            place, count, first = cache.place, nodes.rows, cache.length + nodes.start
            positions[place, :count] = cache.length + nodes.depth
            slots[place, :count] = np.arange(first, first + count)
            lengths[place] = cache.length
            loaded[place] = nodes
            rows += range(place * self._tokens, place * self._tokens + count)
        numbers = np.concatenate([positions.ravel(), slots.ravel(), lengths])
        self._numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
        for place, (before, nodes_now) in enumerate(zip(list(self._loaded), loaded, strict=True)):
            if nodes_now is not before:
                self._loaded[place] = self  # unlike any nodes, if an interruption comes in between
                self._see(place, nodes_now)
                self._loaded[place] = nodes_now
        self._write(self.tokens, [feed.tokens for feed in feeds], rows)
        inputs = [feed.inputs for feed in feeds if feed.inputs is not None]
        if inputs:
            if self._inputs is None:
                self._inputs = inputs[0].new_zeros((len(self.tokens), inputs[0].shape[1]))
            self._write(self._inputs, inputs, rows)
        return rows

    def run(self, extent: int) -> None:
        """Write logits and states of the tokens, which attend over so many slots, into buffers."""
        mask = mask_on_device(self._visible, self._lengths, extent, self._model.dtype)
        place = SideBySide(
            self._store,
            self._store.rotations[self._positions],
            Grid(0, self._sequences, self._tokens, extent),
            slots=slots_by_head(self._store, self._sequence, self._slots),
            mask=mask,
        )
        found = self._model.run(self.tokens, place, self._wants, inputs=self._inputs)
        if self._output is None:  # made by the call before the first capture, in the shapes that the model gives
            self._output = found.mapped(torch.clone)
        for buffer, content in zip(_tensors(self._output), _tensors(found), strict=True):
            buffer.copy_(content)

    def outputs(self, rows: list[int], sizes: list[int], last_only: bool) -> Outputs:
        """Return the results of rows, so many of each sequence."""
        assert self._output is not None  # a pass was run
        if last_only:
            rows, sizes = [rows[end - 1] for end in np.cumsum(sizes).tolist()], [1] * len(sizes)
        if rows == list(range(len(self.tokens))):
            return Outputs(self._output, sizes)
        index = torch.tensor(rows).to(self.tokens.device, non_blocking=True)
        return Outputs(self._output.mapped(lambda each: each[index]), sizes)

    def _see(self, place: int, nodes: PassNodes | None) -> None:
        """Write what the nodes of a sequence see."""
        visible = self._visible[place]
        visible.fill_(True)
        if nodes is not None:
            visible[: nodes.rows] = nodes.visible_on(visible.device, self._columns)

    def _write(self, buffer: Tensor, parts: Sequence[Tensor], rows: list[int]) -> None:
        """Write a row for each token of each sequence."""
        packed = joined(parts)
        if rows == list(range(len(buffer))):
            buffer.copy_(packed)
        else:
            index = torch.tensor(rows).to(buffer.device, non_blocking=True)
            buffer[index] = packed.to(buffer.device, non_blocking=True)


def _tensors(output: Output) -> list[Tensor]:
    states = output.states
    if states is None:
        return [output.logits]
    return [output.logits, *states.boundaries, *([] if states.last is None else [states.last])]


def _not_captured(name: str, error: RuntimeError) -> TreeoptWarning:
    reason = " ".join(str(error).split())[:200]
    return TreeoptWarning(
        f"{name}: expected a pass that can be captured as a CUDA graph. Got {reason!r}, and passes run operation by "
        "operation: pass cuda_graphs=False to leave the attempt out."
    )


def extents(capacity: int) -> list[int]:
    """Return the extents of a cache: few, since each has its graphs, and at most twice what a text needs.

    >>> extents(2000)
    [256, 512, 1024, 2000]
    """
    found = [FIRST_EXTENT]
    while found[-1] < capacity:
        found.append(2 * found[-1])
    return [*found[:-1], capacity]
