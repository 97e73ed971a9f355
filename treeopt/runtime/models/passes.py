"""One pass of a model over nodes of a tree, behind a text whose length changes every step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Bool, Integers
from treeopt.runtime.models.mask import TreeMask
from treeopt.runtime.models.model import HiddenModel, LanguageModel, TextCache

Pass = Callable[[Tensor], Tensor]
"""From tokens, int64 (rows,), to logits (rows, V)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassNodes:
    """The nodes of a tree that one pass feeds."""

    visible: Bool
    """bool (rows, columns): the nodes, fed before or now, that each may attend to."""
    depth: Integers
    """(rows,): depth of each fed node."""
    start: int = 0
    """Nodes fed before in this step."""


class Passes(Protocol):
    """Makes passes of one model over one cache."""

    def make(self, passes: Sequence[PassNodes]) -> list[Pass]:
        """Return the passes of a tree; to be called between steps."""

    def clean(self) -> None:
        """Forget what stands behind the text, where a pass left something that is not finite."""


class Read(NamedTuple):
    """What a model says of the nodes of a pass."""

    logits: Tensor
    """(rows, V)."""
    hidden: Tensor | None
    """(rows, hidden); None where the model keeps them to itself."""


class TreePass:
    """Feeds some nodes of a tree to a model.

    Args:
        model, cache: where they are fed to; the cache's text may be up to `capacity` tokens long.
        visible: bool (rows, columns), the nodes, fed before or now, that each may attend to.
        depth: (rows,) of each fed node.
        start: nodes fed before in this step.
        capacity: longest text.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: TextCache,
        *,
        visible: Bool,
        depth: Integers,
        start: int = 0,
        capacity: int,
    ) -> None:
        self._model = model
        self._cache = cache
        self._start = start
        self._depth = torch.tensor(depth, dtype=torch.int64, device=model.device)
        nodes = torch.from_numpy(np.require(visible, requirements="W"))  # torch warns of what cannot be written
        self._mask = TreeMask(nodes, capacity, dtype=model.dtype, device=model.device)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return logits (rows, V) after tokens, int64 (rows,)."""
        length = self._cache.length
        mask = self._mask.behind(length)
        return self._model.forward(tokens, length + self._depth, self._cache, mask, start=self._start)

    def read(self, tokens: Tensor) -> Read:
        """Return the logits after tokens, int64 (rows,), with the hidden states that they are made of."""
        if not isinstance(self._model, HiddenModel):
            return Read(self(tokens), None)
        length = self._cache.length
        mask = self._mask.behind(length)
        hidden = self._model.hidden(tokens, length + self._depth, self._cache, mask, start=self._start)
        return Read(self._model.logits(hidden), hidden)


@dataclass(frozen=True, slots=True)
class TreePasses:
    """Makes passes that run operation by operation."""

    model: LanguageModel
    cache: TextCache
    capacity: int
    """Longest text."""

    def make(self, passes: Sequence[PassNodes]) -> list[Pass]:
        """See `Passes`."""
        return [
            TreePass(
                self.model,
                self.cache,
                visible=nodes.visible,
                depth=nodes.depth,
                start=nodes.start,
                capacity=self.capacity,
            )
            for nodes in passes
        ]

    def clean(self) -> None:
        """See `Passes`; here nothing is to do, because a pass sees no slot that was not fed in its step."""
