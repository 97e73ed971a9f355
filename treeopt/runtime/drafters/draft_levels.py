"""The levels of a static tree as draft passes: what each feeds, and how the children below it are sampled."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Integers
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.passes import Pass, Passes, PassNodes
from treeopt.runtime.models.together import Passing, RowsCall, RowsFunction
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.sample_children import Places, arrivals, chosen, fill_speeds, likeliest_of_rows, places
from treeopt.trees import TokenTree

KEPT_FUNCTIONS = 64
Sampler = Callable[[Tensor, torch.Generator], Passing[Tensor]]
"""From the logits (w, V) of a level's internal nodes to their children, int64 (c,)."""


class Window:
    """Some rows of a buffer: a view where they are neighbours, because that is quicker."""

    def __init__(self, buffer: Tensor, rows: Integers) -> None:
        first, last = int(rows[0]), int(rows[-1])
        self._buffer = buffer
        self._view = buffer[first : last + 1] if last - first + 1 == len(rows) else None
        self._rows = torch.from_numpy(rows).to(buffer.device)

    def read(self) -> Tensor:
        """Return the rows."""
        return self._buffer[self._rows] if self._view is None else self._view

    def write(self, rows: Tensor) -> None:
        """Write over the rows."""
        if self._view is None:
            self._buffer[self._rows] = rows
        else:
            self._view.copy_(rows)


@dataclass(frozen=True, slots=True)
class DraftLevel:
    """One draft pass: it feeds a level's internal nodes, and the level below is sampled."""

    run: Pass
    fed: Window
    """Tokens of the level's internal nodes."""
    sample: Sampler
    children: Tensor
    """int64 (c,): where the tokens of the level below go."""


class DraftBuffers:
    """Where one text's trees are drafted into, whichever they are.

    Args:
        nodes: of the largest tree.
        rule: the verification rule, which says how children are sampled.
        sampling: what they are sampled from; greedy takes the likeliest, whatever the rule.
        vocabulary: V.
        device: of the draft model.
    """

    def __init__(self, nodes: int, *, rule: Rule, sampling: Sampling, vocabulary: int, device: torch.device) -> None:
        self.rule, self.sampling = rule, sampling
        self.random = rule.random_drafts and not sampling.greedy
        columns = vocabulary if self.random else 1
        self.tokens = torch.empty(nodes, dtype=torch.int64, device=device)
        self.probs = torch.zeros((nodes, columns), device=device)
        self.speeds = torch.ones((nodes, columns), dtype=torch.float64, device=device)
        self.largest = torch.zeros(nodes, dtype=torch.float64, device=device)


class TreeDraft:
    """A tree in the buffers that it is drafted into, and its levels, root level first.

    Args:
        tree: the tree.
        passes: of the draft model.
        buffers: of at least as many nodes; other trees may be drafted into them in between.
    """

    def __init__(self, tree: TokenTree, passes: Passes, buffers: DraftBuffers) -> None:
        self._rule = buffers.rule
        self._sampling = buffers.sampling
        self._random = buffers.random
        internal = np.flatnonzero(tree.child_counts)
        self.fed = np.full(tree.nodes, -1)
        """Of each node, how many are fed before it, -1 where it is not fed."""
        self.fed[internal] = np.arange(len(internal))
        self.tokens = buffers.tokens[: tree.nodes]
        self.root = self.tokens[:1]
        self._probs = buffers.probs[: tree.nodes]
        self._speeds = buffers.speeds[: len(internal)]
        self._largest = buffers.largest[: len(internal)]
        self.probs = self._probs if self._random else None
        """float32 (n, V): what the children of each internal node were sampled from."""
        self.scores = self._probs[:, 0] if self._random else self._largest
        """float (k,): numbers of `scored` nodes that are finite where the distributions after them are."""
        self.scored: list[int] = list(range(tree.nodes)) if self._random else internal.tolist()
        self.levels = self._levels(tree, passes.make(_level_nodes(tree)))

    def clear(self) -> None:
        """Forget what another tree left: nothing is sampled after a node without children."""
        self._probs.zero_()

    def fill_noise(self, generator: torch.Generator) -> None:
        """Make the noise of all levels at once."""
        if self._random:
            fill_speeds(self._speeds, generator)

    def _levels(self, tree: TokenTree, runs: list[Pass]) -> list[DraftLevel]:
        counts, device = tree.child_counts, self.tokens.device
        found = []
        for run, level, below in zip(runs, tree.levels[:-1], tree.levels[1:], strict=True):
            nodes = level.start + np.flatnonzero(counts[level])
            wanted = places(counts[nodes].tolist(), device)
            found.append(DraftLevel(run, Window(self.tokens, nodes), self._sampler(nodes, wanted), self.tokens[below]))
        return found

    def _sampler(self, nodes: Integers, wanted: Places) -> Sampler:
        """Return how the children of some nodes are sampled."""
        first = int(self.fed[nodes[0]])
        rows = slice(first, first + len(nodes))
        if not self._random:
            return _likeliest(self._largest[rows], wanted)
        window, speeds = Window(self._probs, nodes), self._speeds[rows]
        if wanted.most == 1 or self._rule.race:
            return _race(window, speeds, self._sampling, wanted)
        return _by_rule(window, self._sampling, self._rule, wanted)


def _likeliest(scores: Tensor, wanted: Places) -> Sampler:
    """Return the sampler that takes the likeliest children and keeps the largest logit after each node."""
    function = _likeliest_rows(wanted.most)

    def sample(logits: Tensor, generator: torch.Generator) -> Passing[Tensor]:  # noqa: ARG001
        largest, children = yield RowsCall(function, (logits,))
        scores.copy_(largest)
        return chosen(children, wanted)

    return sample


def _race(window: Window, speeds: Tensor, sampling: Sampling, wanted: Places) -> Sampler:
    """Return the sampler whose children win an exponential race, which writes the distributions to a window."""
    function = _race_rows(sampling, wanted.most)

    def sample(logits: Tensor, generator: torch.Generator) -> Passing[Tensor]:  # noqa: ARG001
        probs, children = yield RowsCall(function, (logits, speeds))
        window.write(probs)
        return chosen(children, wanted)

    return sample


def _by_rule(window: Window, sampling: Sampling, rule: Rule, wanted: Places) -> Sampler:
    """Return the sampler that draws as a rule does, which writes the distributions to a window."""
    function = _distribution_rows(sampling)

    def sample(logits: Tensor, generator: torch.Generator) -> Passing[Tensor]:
        (probs,) = yield RowsCall(function, (logits,))
        window.write(probs)
        return rule.draw(probs, wanted, generator)

    return sample


# The same function for all texts, so that they share a call of it.


@lru_cache(maxsize=KEPT_FUNCTIONS)
def _likeliest_rows(count: int) -> RowsFunction:
    return lambda logits: likeliest_of_rows(logits, count)


@lru_cache(maxsize=KEPT_FUNCTIONS)
def _race_rows(sampling: Sampling, count: int) -> RowsFunction:
    def race(logits: Tensor, speeds: Tensor) -> tuple[Tensor, Tensor]:
        probs = distribution(logits, sampling)
        return probs, likeliest_of_rows(arrivals(probs, speeds, count), count)[1]

    return race


@lru_cache(maxsize=KEPT_FUNCTIONS)
def _distribution_rows(sampling: Sampling) -> RowsFunction:
    return lambda logits: (distribution(logits, sampling),)


def _level_nodes(tree: TokenTree) -> list[PassNodes]:
    """Return the internal nodes of each level that has any, as they are fed one level after the other."""
    internal = np.flatnonzero(tree.child_counts)
    visible, depth = tree.ancestor_mask[np.ix_(internal, internal)], tree.depth[internal]
    edges = np.searchsorted(depth, np.arange(tree.max_depth + 1)).tolist()
    return [
        PassNodes(visible=visible[start:stop, :stop], depth=depth[start:stop], start=start)
        for start, stop in pairwise(edges)
    ]
