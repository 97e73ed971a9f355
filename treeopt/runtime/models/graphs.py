"""Passes as CUDA graphs: a pass is captured once for its shape and replayed for every tree that has this shape.

A graph can be replayed only where nothing but the contents of its buffers changes.  So the length of the text lies in a
buffer, attention goes over an extent of slots with a mask made from the length, and what a tree says about its nodes is
copied into buffers too.  All that is left of a pass's shape is (rows, extent).
"""

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.mask import static_mask
from treeopt.runtime.models.model import NOTHING, LanguageModel, Output, StaticModel, TextCache, Wants
from treeopt.runtime.models.passes import Pass, Passes, PassNodes, TreePass, TreePasses

FIRST_EXTENT = 256
"""Slots that the passes of short texts attend over."""

Work = Callable[[], None]


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
            with _no_collection(), torch.cuda.graph(graph, pool=self._handle, stream=self._stream):
                work()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage where it is: graphs of a decoder that is gone must not be freed during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Placement(NamedTuple):
    """What a tree says about the nodes of a pass, on the device."""

    depth: Tensor
    """int64 (rows,)."""
    offset: Tensor
    """int64 (rows,): slots from the end of the text to each node's."""
    visible: Tensor
    """bool (rows, columns)."""

    @property
    def rows(self) -> int:
        """Tokens fed."""
        return len(self.depth)


class StaticPass:
    """A pass over so many rows in buffers that keep their places: what is captured.

    `length`, int64 (), is a buffer too, which holds the committed tokens; `placement` is of the first nodes to be fed.
    """

    def __init__(
        self, model: StaticModel, cache: TextCache, length: Tensor, placement: Placement, wants: Wants = NOTHING
    ) -> None:
        self._model = model
        self._cache = cache
        self._length = length
        self._loaded = placement
        self._placement = Placement(*(each.clone() for each in placement))
        self._wants = wants
        self._buffers: list[Tensor] = []
        self.tokens = torch.zeros(placement.rows, dtype=torch.int64, device=model.device)
        self.output = Output(self.tokens)

    def load(self, placement: Placement) -> None:
        """Take other nodes."""
        if placement is not self._loaded:
            for buffer, content in zip(self._placement, placement, strict=True):
                buffer.copy_(content)
            self._loaded = placement

    def run(self, extent: int) -> None:
        """Write logits and states of the tokens, which attend over so many slots, into `output`."""
        nodes = self._placement
        mask = static_mask(nodes.visible, self._length, extent, self._model.dtype)
        found = self._model.forward_static(
            self.tokens, self._length + nodes.depth, self._cache, self._length + nodes.offset, mask, self._wants
        )
        if not self._buffers:  # made by the call before the first capture, in the shapes that the model gives
            self.output = _copied(found)
            self._buffers = _tensors(self.output)
        for buffer, content in zip(self._buffers, _tensors(found), strict=True):
            buffer.copy_(content)


class PassGraphs:
    """Makes passes of one model over one cache that replay graphs; the logits of a pass last until the next one.

    Args:
        model, cache: where tokens are fed to.
        columns: most nodes fed in a step.
        pool: where the graphs work.
    """

    def __init__(
        self, model: StaticModel, cache: TextCache, *, columns: int, pool: GraphPool, wants: Wants = NOTHING
    ) -> None:
        self._model = model
        self._cache = cache
        self._columns = columns
        self._pool = pool
        self._wants = wants
        self._extents = extents(cache.capacity)
        self._length = torch.zeros((), dtype=torch.int64, device=model.device)
        self._static: dict[int, StaticPass] = {}
        self._replays: dict[tuple[int, int], Work] = {}

    @property
    def captured(self) -> list[tuple[int, int]]:
        """Shapes (rows, extent) in the order they were captured."""
        return list(self._replays)

    @torch.inference_mode()
    def make(self, passes: Sequence[PassNodes]) -> list[Pass]:
        """Return the passes of a tree, after capturing the shapes that no tree had before, the largest first.

        A capture writes to slots behind the text, so that it may come between two steps but not within one.
        """
        placements = [self._place(nodes) for nodes in passes]
        for each in placements:  # true nodes: one that saw nothing would leave NaN in the cache
            if each.rows not in self._static:
                self._static[each.rows] = StaticPass(self._model, self._cache, self._length, each, self._wants)
        # a text may end longer than it was to be, and then all the tree's room is not left behind it
        self._length.fill_(min(self._cache.length, self._cache.capacity - self._columns))
        shapes = {(each.rows, extent) for each in placements for extent in self._extents if each.rows <= extent}
        for rows, extent in sorted(shapes - self._replays.keys(), key=prod, reverse=True):
            self._replays[rows, extent] = self._pool.capture(partial(self._static[rows].run, extent))
        return [
            partial(self._run, placement, nodes.start + placement.rows)
            for placement, nodes in zip(placements, passes, strict=True)
        ]

    def once(self, nodes: PassNodes) -> Pass:
        """See `Passes`: nothing is captured for it."""
        return TreePass(self._model, self._cache, nodes, capacity=self._cache.length, wants=self._wants)

    def clean(self) -> None:
        """See `Passes`: a mask hides a slot by adding to its score, and NaN stays NaN whatever is added."""
        self._cache.wipe()

    @torch.inference_mode()
    def _run(self, placement: Placement, fed: int, tokens: Tensor) -> Output:
        """Return logits and states after tokens, which with those before are `fed` nodes of this step."""
        static = self._static[placement.rows]
        slots = self._cache.length + fed
        if slots > self._cache.capacity:
            raise InvalidValueError(f"cache: expected room for {slots} tokens. Got {self._cache.capacity}.")
        static.load(placement)
        static.tokens.copy_(tokens)
        self._length.fill_(self._cache.length)
        self._replays[placement.rows, self._extents[bisect_left(self._extents, slots)]]()
        return static.output

    def _place(self, nodes: PassNodes) -> Placement:
        device = self._model.device
        rows, columns = nodes.visible.shape
        visible = torch.zeros((rows, self._columns), dtype=torch.bool)
        visible[:, :columns] = torch.from_numpy(nodes.visible.copy())
        return Placement(
            depth=torch.tensor(nodes.depth, dtype=torch.int64, device=device),
            offset=torch.arange(nodes.start, nodes.start + rows, device=device),
            visible=visible.to(device),
        )


def _tensors(output: Output) -> list[Tensor]:
    states = output.states
    if states is None:
        return [output.logits]
    return [output.logits, *states.boundaries, *([] if states.last is None else [states.last])]


def _copied(output: Output) -> Output:
    states = output.states
    return Output(output.logits.clone(), None if states is None else states.mapped(torch.clone))


def extents(capacity: int) -> list[int]:
    """Return the extents of a cache: few, since each has its graphs, and at most twice what a text needs.

    >>> extents(2000)
    [256, 512, 1024, 2000]
    """
    found = [FIRST_EXTENT]
    while found[-1] < capacity:
        found.append(2 * found[-1])
    return [*found[:-1], capacity]


def pool_for(device: torch.device, cuda_graphs: bool | None = None) -> GraphPool | None:
    """Return a pool where passes are to be captured, by default on a CUDA device, else None."""
    wanted = device.type == "cuda" if cuda_graphs is None else cuda_graphs
    return GraphPool(device) if wanted else None


def passes_over(
    model: LanguageModel,
    cache: TextCache,
    *,
    capacity: int,
    max_nodes: int,
    pool: GraphPool | None,
    wants: Wants = NOTHING,
) -> Passes:
    """Return what makes the passes over a cache for texts up to `capacity` tokens: with a pool, as graphs."""
    if pool is None or not isinstance(model, StaticModel):
        return TreePasses(model, cache, capacity, wants)
    return PassGraphs(model, cache, columns=max_nodes, pool=pool, wants=wants)
