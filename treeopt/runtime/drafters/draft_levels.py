"""The levels of a static tree: the nodes that each draft pass feeds, and how their children are sampled."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Integers
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.nodes import NOT_FED, PassNodes
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.sample_children import index_children, select_children, top_tokens
from treeopt.trees import TokenTree

CACHED_TREES = 16
"""Trees whose passes are kept."""


class NodeView:
    """Some nodes of every sequence in a buffer; a tensor view if they are adjacent, which is faster than an index."""

    def __init__(self, buffer: Tensor, nodes: Integers) -> None:
        first, last = int(nodes[0]), int(nodes[-1])
        self._buffer = buffer
        self._view = buffer[:, first : last + 1] if last - first + 1 == len(nodes) else None
        self._views = None if self._view is None else self._view.unbind()
        self._nodes = torch.from_numpy(nodes).to(buffer.device)

    def read(self) -> Sequence[Tensor]:
        """Return the entries of each sequence."""
        return self._buffer[:, self._nodes].unbind() if self._views is None else self._views

    def write(self, values: Tensor) -> None:
        if self._view is None:
            self._buffer[:, self._nodes] = values
        else:
            self._view.copy_(values)


class DraftBuffers:
    """Memory for the trees of a batch, shared by all tree shapes.

    Args:
        sequences: largest batch.
        nodes: of the largest tree.
        internal: nodes with children, at most.
        rule: verification rule, which determines how children are sampled.
        sampling: what children are sampled from; greedy takes the top tokens, whatever the rule.
        vocabulary: V.
        device: of the draft model.
    """

    def __init__(
        self,
        sequences: int,
        nodes: int,
        internal: int,
        *,
        rule: Rule,
        sampling: Sampling,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        self.sequences, self.internal, self.rule, self.sampling = sequences, internal, rule, sampling
        self.random = rule.random_drafts and not sampling.greedy
        columns = vocabulary if self.random else 1
        self.tokens = torch.empty(sequences * nodes, dtype=torch.int64, device=device)
        self.probs = torch.zeros((sequences * nodes, columns), device=device)
        self.largest = torch.zeros(sequences * internal, dtype=torch.float64, device=device)


class DraftLevelSampler:
    """Feeds the internal nodes of one level, and samples the level below from the logits after them.

    Args:
        buffers: memory and rule.
        fed: tokens of the level's internal nodes.
        probs: rows of these nodes.
        scores: (B, w), of these nodes.
        counts: w numbers of children.
        below: int64 (B, c), the tokens of the level below.
    """

    def __init__(
        self,
        buffers: DraftBuffers,
        *,
        fed: NodeView,
        probs: NodeView,
        scores: Tensor,
        counts: Sequence[int],
        below: Tensor,
    ) -> None:
        self._random, self._draw, self._sampling = buffers.random, buffers.rule.draw, buffers.sampling
        self._fed, self._probs, self._scores, self._below = fed, probs, scores, below
        self._children = children = index_children(counts, below.device)
        if self._random:  # compile the kernels now, not in the first step
            even = torch.ones((1, len(counts), 2 * children.max_children), device=below.device)
            self._draw(even, children, [torch.Generator(below.device)])

    def fed_tokens(self) -> Sequence[Tensor]:
        """Return the tokens that each sequence feeds, int64 (w,)."""
        return self._fed.read()

    def fill(self, logits: Tensor, generators: Sequence[torch.Generator]) -> None:
        """Sample the level below from logits (B * w, V); write the distributions, or the largest logits."""
        logits = logits.view(len(generators), -1, logits.shape[-1])
        if self._random:
            probs = distribution(logits, self._sampling)
            self._probs.write(probs)
            self._below.copy_(self._draw(probs, self._children, generators))
        else:
            largest, tokens = top_tokens(logits, self._children.max_children)
            self._scores.copy_(largest)
            self._below.copy_(select_children(tokens, self._children))


class TreeBatch:
    """The same tree for each sequence of a batch, in shared buffers, and the samplers of its levels, the root's first.

    Args:
        tree: the tree.
        sequences: batch size.
        buffers: with room for the batch; other trees may use them in between.
    """

    def __init__(self, tree: TokenTree, sequences: int, buffers: DraftBuffers) -> None:
        internal, shape = np.flatnonzero(tree.child_counts), (sequences, tree.nodes)
        self._tokens = buffers.tokens[: sequences * tree.nodes].view(shape)
        self._roots = self._tokens[:, 0]
        self._probs = buffers.probs[: sequences * tree.nodes].view(*shape, -1)
        self._largest = buffers.largest[: sequences * len(internal)].view(sequences, len(internal))
        self.tokens = self._tokens.unbind()
        """int64 (n,) of each sequence."""
        self.probs = self._probs.unbind() if buffers.random else (None,) * sequences
        """float32 (n, V) of each sequence: what the children of each internal node were sampled from."""
        self.scores = (self._probs[..., 0] if buffers.random else self._largest).unbind()
        """float (k,) of each sequence: a number for each of `scored_nodes`, finite if the distribution after it is."""
        self.scored_nodes: list[int] = list(range(tree.nodes)) if buffers.random else internal.tolist()
        self.levels = self._level_samplers(tree, buffers)

    def clear(self) -> None:
        """Zero the probabilities of another tree: those of leaves are read, but never written."""
        self._probs.zero_()

    def begin(self, roots: Sequence[int]) -> None:
        self._roots.copy_(torch.tensor(roots))

    def _level_samplers(self, tree: TokenTree, buffers: DraftBuffers) -> list[DraftLevelSampler]:
        counts, first_score, samplers = tree.child_counts, 0, []
        for level, below in pairwise(tree.levels):
            nodes = level.start + np.flatnonzero(counts[level])
            sampler = DraftLevelSampler(
                buffers,
                fed=NodeView(self._tokens, nodes),
                probs=NodeView(self._probs, nodes),
                scores=self._largest[:, first_score : first_score + len(nodes)],
                counts=counts[nodes].tolist(),
                below=self._tokens[:, below],
            )
            samplers.append(sampler)
            first_score += len(nodes)
        return samplers


@lru_cache(maxsize=CACHED_TREES)
def level_passes(tree: TokenTree) -> tuple[PassNodes, ...]:
    """Return the attention metadata of the internal nodes of each level, which are fed one level after the other."""
    internal = np.flatnonzero(tree.child_counts)
    visible, depth = tree.ancestor_mask[np.ix_(internal, internal)], tree.depth[internal]
    edges = np.searchsorted(depth, np.arange(tree.max_depth + 1)).tolist()
    return tuple(
        PassNodes(visible=visible[start:stop, :stop], depth=depth[start:stop], start=start)
        for start, stop in pairwise(edges)
    )


@lru_cache(maxsize=CACHED_TREES)
def feed_indices(tree: TokenTree) -> list[int]:
    """Return the feed index of each node in a step, NOT_FED for leaves."""
    internal = tree.child_counts > 0
    indices: list[int] = np.where(internal, internal.cumsum() - 1, NOT_FED).tolist()
    return indices
