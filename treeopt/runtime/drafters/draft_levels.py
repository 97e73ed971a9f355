"""The level sampler: fills a static tree in each sequence of a batch, one level after the other."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Integers
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import ForwardModel
from treeopt.runtime.models.nodes import NOT_FED, PassNodes
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.sample_children import ChildIndices, index_children, select_children, top_tokens
from treeopt.trees import TokenTree

CACHED_TREES = 16
"""Trees whose levels are kept."""


class DraftLevel(NamedTuple):
    """The nodes of one depth that have children, and these children."""

    parents: slice | Tensor
    """Nodes; a slice if they are adjacent, which is faster than an index."""
    children: ChildIndices
    below: slice
    fed: PassNodes
    """The parents in the pass that feeds them, after those of the levels above."""


class _LevelViews(NamedTuple):
    """Parts of the sampler's buffers; None for parents that are not adjacent."""

    parent_tokens: Tensor | None
    parent_values: Tensor | None
    child_tokens: Tensor


class LevelSampler:
    """Fills one static tree at a time, in buffers that all trees share.

    The rule determines how children are sampled; greedy sampling takes the top tokens, whatever the rule.
    """

    def __init__(self, model: ForwardModel, *, rule: Rule, sampling: Sampling, max_nodes: int) -> None:
        self._name, self._device = model.name, model.device
        self._draw, self._sampling, self._max_nodes = rule.draw, sampling, max_nodes
        self._random = rule.random_drafts and not sampling.greedy
        self._columns = model.config.vocabulary if self._random else 1
        self._shape: tuple[TokenTree, int] | None = None
        self._allocate(1)
        if self._random:  # compile the kernels now, not in the first step
            device = model.device
            self._draw(torch.ones((1, 1, 2), device=device), index_children([2], device), [torch.Generator(device)])

    def begin(self, tree: TokenTree, roots: Sequence[int]) -> None:
        """Begin the tree below each root; the proposals made before are overwritten from now on."""
        shape = tree, len(roots)
        if shape != self._shape:
            if len(roots) > self._sequences:
                self._allocate(len(roots))
            rows = len(roots) * tree.nodes
            self._tokens = self._all_tokens[:rows].view(len(roots), tree.nodes)
            self._values = self._all_values[:rows].view(len(roots), tree.nodes, self._columns)
            self._values.zero_()  # those of leaves are read, but never written
            self._rows = list(
                zip(self._tokens.unbind(), self._values.unbind(), self._values[..., 0].unbind(), strict=True)
            )
            self._views: dict[int, _LevelViews] = {}
            self._shape = shape
        self._tree = tree
        self._tokens[:, 0].copy_(torch.tensor(roots))

    def tokens_of(self, level: DraftLevel) -> Tensor:
        """Return the tokens of a level's parents, int64 (sequences, w)."""
        tokens = self._view(level).parent_tokens
        return self._tokens[:, level.parents] if tokens is None else tokens

    def fill(self, level: DraftLevel, logits: Tensor, generators: Sequence[torch.Generator]) -> None:
        """Sample the children of a level, given the logits after its parents, (sequences, w, V) or (sequences * w, V)."""
        logits = logits.view(len(self._tokens), -1, logits.shape[-1])
        if self._random:
            values = distribution(logits, self._sampling)
            children = self._draw(values, level.children, generators)
        else:
            largest, tokens = top_tokens(logits, level.children.max_children)
            values, children = largest[..., None], select_children(tokens, level.children)
        view = self._view(level)
        if view.parent_values is None:
            self._values[:, level.parents] = values.to(self._values.dtype)
        else:
            view.parent_values.copy_(values)
        view.child_tokens.copy_(children)

    def proposals(self) -> list[Proposal]:
        """Return the filled trees, in buffers that the next `begin` overwrites."""
        scored = range(self._tree.nodes)
        return [
            Proposal(self._tree, tokens, values if self._random else None, scores=Scores(self._name, scores, scored))
            for tokens, values, scores in self._rows
        ]

    def _view(self, level: DraftLevel) -> "_LevelViews":
        """Return the views of a level in the current buffers; making them takes longer than using them."""
        view = self._views.get(level.below.start)
        if view is None:
            adjacent = isinstance(level.parents, slice)
            view = self._views[level.below.start] = _LevelViews(
                self._tokens[:, level.parents] if adjacent else None,
                self._values[:, level.parents] if adjacent else None,
                self._tokens[:, level.below],
            )
        return view

    def _allocate(self, sequences: int) -> None:
        rows = sequences * self._max_nodes
        self._all_tokens = torch.empty(rows, dtype=torch.int64, device=self._device)
        self._all_values = torch.empty((rows, self._columns), device=self._device)
        self._sequences = sequences


@lru_cache(maxsize=CACHED_TREES)
def draft_levels(tree: TokenTree, device: torch.device) -> tuple[DraftLevel, ...]:
    """Return the levels of a tree whose nodes have children, the root's first."""
    counts, internal = tree.child_counts, np.flatnonzero(tree.child_counts)
    visible, depth = tree.ancestor_mask[np.ix_(internal, internal)], tree.depth[internal]
    levels, start = [], 0
    for level, below in pairwise(tree.levels):
        parents = level.start + np.flatnonzero(counts[level])
        stop = start + len(parents)
        fed = PassNodes(visible=visible[start:stop, :stop], depth=depth[start:stop], start=start)
        children = index_children(counts[parents].tolist(), device)
        levels.append(DraftLevel(_index(parents, device), children, below, fed))
        start = stop
    return tuple(levels)


@lru_cache(maxsize=CACHED_TREES)
def feed_indices(tree: TokenTree) -> list[int]:
    """Return the feed index of each node in a step, NOT_FED for leaves."""
    internal = tree.child_counts > 0
    indices: list[int] = np.where(internal, internal.cumsum() - 1, NOT_FED).tolist()
    return indices


def _index(nodes: Integers, device: torch.device) -> slice | Tensor:
    first, last = int(nodes[0]), int(nodes[-1])
    adjacent = last - first + 1 == len(nodes)
    return slice(first, last + 1) if adjacent else torch.from_numpy(nodes).to(device)
