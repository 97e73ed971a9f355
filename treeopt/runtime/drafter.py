"""The draft model at work: a tree's tokens, level by level, from passes over its internal nodes only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.runtime.mask import TreeMask
from treeopt.runtime.sampling import draw, likeliest, probabilities
from treeopt.runtime.transformer import Transformer
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLevel:
    """What one draft pass needs to know: it feeds a level's internal nodes and draws the level below."""

    fed: Tensor
    """int64 (w,): the level's internal nodes."""
    start: int
    """Internal nodes fed before, in this step."""
    depth: int
    counts: Tensor
    """int64 (w,): children wanted of each."""
    most: int
    drawn: slice
    """Nodes of the level below, whose tokens are drawn."""
    mask: TreeMask


class Draft(NamedTuple):
    """A drafted tree."""

    tokens: Tensor
    """int64 (n,): node 0 is the root."""
    probs: Tensor | None
    """float32 (n, V): the draft's law after each internal node; None at temperature 0, where it is not needed."""


class ModelDrafter:
    """Drafts a static tree with a small model that shares the target's vocabulary.

    The draft model's cache holds the committed text but for `pending`, the tokens it has not seen: the root, and
    before it the accepted leaf, which was never fed because it had no children.
    """

    def __init__(self, model: Transformer, tree: TokenTree, *, rule: str, temperature: float, capacity: int) -> None:
        self.model = model
        self.tree = tree
        self._rule = rule
        self._temperature = temperature
        self._cache = model.new_cache(capacity + tree.nodes)
        self._internal = {int(node): i for i, node in enumerate(np.flatnonzero(tree.child_counts))}
        self._levels = _levels(tree, model, capacity)
        self._chain_of_two = _mask(np.tril(np.ones((2, 2), np.bool_)), model, capacity)
        self._probs = torch.zeros((tree.nodes, model.config.vocabulary), device=model.device)
        self._pending: list[int] = []

    def start(self, tokens: Sequence[int]) -> None:
        """Begin a text whose last token is the root."""
        self._cache.clear()
        self.model.prefill(torch.tensor(tokens[:-1], device=self.model.device), self._cache)
        self._pending = [tokens[-1]]

    @torch.inference_mode()
    def propose(self, generator: torch.Generator | None) -> Draft:
        """Return the tokens of a whole tree below the root."""
        tokens = torch.empty(self.tree.nodes, dtype=torch.int64, device=self.model.device)
        tokens[0] = self._pending[-1]
        for level in self._levels:
            logits = self._feed_root() if level.depth == 0 else self._feed(level, tokens)
            tokens[level.drawn] = self._draw(level, logits, generator)
        return Draft(tokens, self._probs if self._temperature > 0 else None)

    def accept(self, path: Sequence[int], tokens: Sequence[int], bonus: int) -> None:
        """Move on to a new root: keep the fed nodes of the accepted path and remember what was not fed."""
        self._cache.keep([self._internal[node] for node in path if node in self._internal])
        leaf = [] if path[-1] in self._internal else [tokens[path[-1]]]
        self._pending = [*leaf, bonus]

    def _feed_root(self) -> Tensor:
        """Feed what is pending; the root is its last token, and only its logits are wanted."""
        count = len(self._pending)
        pending = torch.tensor(self._pending, device=self.model.device)
        positions = torch.arange(self._cache.length, self._cache.length + count, device=self.model.device)
        mask = None if count == 1 else self._chain_of_two.behind(self._cache.length)
        logits = self.model.forward(pending, positions, self._cache, mask)
        self._cache.length += count - 1  # all but the root is committed text
        return logits[-1:]

    def _feed(self, level: DraftLevel, tokens: Tensor) -> Tensor:
        length = self._cache.length
        positions = torch.full_like(level.fed, length + level.depth)
        return self.model.forward(
            tokens[level.fed], positions, self._cache, level.mask.behind(length), start=level.start
        )

    def _draw(self, level: DraftLevel, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        if self._temperature == 0:
            return likeliest(logits, level.counts, level.most)
        law = probabilities(logits, self._temperature)
        self._probs[level.fed] = law
        return draw(self._rule, law, level.counts, generator)


def _levels(tree: TokenTree, model: Transformer, capacity: int) -> list[DraftLevel]:
    """Return the passes of a tree, root level first."""
    counts = tree.child_counts
    internal = np.flatnonzero(counts)
    among_internal = tree.ancestor_mask[np.ix_(internal, internal)]
    levels: list[DraftLevel] = []
    start = 0
    for depth, (level, below) in enumerate(pairwise(tree.levels)):
        fed = internal[(internal >= level.start) & (internal < level.stop)]
        stop = start + len(fed)
        levels.append(
            DraftLevel(
                fed=torch.from_numpy(fed).to(model.device),
                start=start,
                depth=depth,
                counts=torch.from_numpy(counts[fed].astype(np.int64)).to(model.device),
                most=int(counts[fed].max()),
                drawn=below,
                mask=_mask(among_internal[start:stop, :stop], model, capacity),
            )
        )
        start = stop
    return levels


def _mask(visible: np.ndarray[tuple[int, int], np.dtype[np.bool_]], model: Transformer, capacity: int) -> TreeMask:
    return TreeMask(torch.from_numpy(visible.copy()), capacity, dtype=model.dtype, device=model.device)
