"""One pass of a model over nodes of a tree, behind a text whose length changes every step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Bool, Int64, Integers
from treeopt.runtime.models.mask import TreeMask
from treeopt.runtime.models.model import NOTHING, LanguageModel, Output, TextCache, TextRows, Wants, reads_ragged
from treeopt.trees import TokenTree

NOT_FED = -1
"""Of a node, in place of how many were fed in a step before it."""

Pass = Callable[[Tensor], Output]
"""From tokens, int64 (rows,), to their logits and states."""


@dataclass(frozen=True, kw_only=True)
class PassNodes:
    """The nodes of a tree that one pass feeds."""

    visible: Bool
    """bool (rows, columns): the nodes, fed before or now, that each may attend to."""
    depth: Integers
    """(rows,): depth of each fed node."""
    start: int = 0
    """Nodes fed before in this step."""

    @cached_property
    def mask(self) -> Bool | None:
        """`visible`; None where each node may attend to all."""
        return None if self.visible.all() else self.visible

    @cached_property
    def parents(self) -> Int64:
        """(rows,): how many nodes were fed before the parent of each, the last that it sees but itself; 0 of the root."""
        above = self.visible.copy()
        rows, columns = above.shape
        above[np.arange(rows), self.start + np.arange(rows)] = False
        last = columns - 1 - above[:, ::-1].argmax(1)
        parents: Int64 = np.where(above.any(1), last, 0)
        return parents

    def depth_and_mask(
        self, capacity: int, *, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, TreeMask | None]:
        """Return what a pass over one text alone takes: depths, and a mask behind up to `capacity` tokens, None for none."""
        depth = torch.tensor(self.depth, dtype=torch.int64, device=device)
        if self.mask is None:
            return depth, None
        visible = torch.tensor(self.mask)  # a copy, because torch warns of what cannot be written to
        return depth, TreeMask(visible, capacity, dtype=dtype, device=device)

    @classmethod
    def whole(cls, tree: TokenTree) -> "PassNodes":
        """Return all nodes of a tree at once."""
        return cls(visible=tree.ancestor_mask, depth=tree.depth)


class Passes(Protocol):
    """Makes passes of one model over one cache."""

    def make(self, passes: Sequence[PassNodes]) -> list[Pass]:
        """Return passes for texts of any length; to be called between steps."""

    def once(self, nodes: PassNodes) -> Pass:
        """Return a pass behind the text as it is now, which costs least where it is never needed again."""

    def clean(self) -> None:
        """Forget what stands behind the text, where a pass left something that is not finite."""


class SharedPass(ABC):
    """A pass over one text that others, over other texts, may be one with, so that weights are read once."""

    @abstractmethod
    def __call__(self, tokens: Tensor) -> Output:
        """Return the logits and states after tokens, int64 (rows,)."""

    @abstractmethod
    def joins(self, other: Pass) -> bool:
        """Return whether one pass can be this and another."""

    @abstractmethod
    def together(self, passes: Sequence[Self], tokens: Sequence[Tensor]) -> list[Output]:
        """Return what passes that this one joins, itself among them, give after the tokens of each, from a single one."""


class TreePass(SharedPass):
    """Feeds some nodes of a tree to a model.

    Args:
        model, cache: where they are fed to; the cache's text may be up to `capacity` tokens long.
        nodes: what is fed.
        capacity: longest text.
        wants: hidden states.
    """

    def __init__(
        self, model: LanguageModel, cache: TextCache, nodes: PassNodes, *, capacity: int, wants: Wants = NOTHING
    ) -> None:
        self.model = model
        self.wants = wants
        self._cache = cache
        self._nodes = nodes
        self._capacity = capacity
        self._visible = nodes.mask
        self._alone: tuple[Tensor, TreeMask | None] | None = None  # depths and mask, for a pass over this text alone

    def __call__(self, tokens: Tensor) -> Output:
        """Return the logits and states after tokens, int64 (rows,)."""
        length, start = self._cache.length, self._nodes.start
        depth, mask = self._alone = self._alone or self._nodes.depth_and_mask(
            self._capacity, dtype=self.model.dtype, device=self.model.device
        )
        behind = None if mask is None else mask.behind(length)
        return self.model.forward(tokens, length + depth, self._cache, behind, start=start, wants=self.wants)

    def joins(self, other: Pass) -> bool:
        """See `SharedPass`: passes over one `RaggedModel` do."""
        return isinstance(other, TreePass) and other.model is self.model and reads_ragged(self.model)

    def together(self, passes: Sequence[Self], tokens: Sequence[Tensor]) -> list[Output]:
        assert reads_ragged(self.model)  # else it joins nothing
        rows = [each.rows(fed) for each, fed in zip(passes, tokens, strict=True)]
        return self.model.forward_ragged(rows, self.wants)

    def rows(self, tokens: Tensor) -> TextRows:
        """Return what the pass feeds in a pass over several texts."""
        return TextRows(tokens, self._nodes.depth, self._cache, self._visible, self._nodes.start)


@dataclass(frozen=True, slots=True)
class TreePasses:
    """Makes passes that run operation by operation."""

    model: LanguageModel
    cache: TextCache
    capacity: int
    """Longest text."""
    wants: Wants = NOTHING

    def make(self, passes: Sequence[PassNodes]) -> list[Pass]:
        return [TreePass(self.model, self.cache, nodes, capacity=self.capacity, wants=self.wants) for nodes in passes]

    def once(self, nodes: PassNodes) -> Pass:
        return TreePass(self.model, self.cache, nodes, capacity=self.cache.length, wants=self.wants)

    def clean(self) -> None:
        self.cache.wipe()
