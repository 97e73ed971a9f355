"""The draft model at work: a tree's tokens, level by level, from passes over its internal nodes only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Integers
from treeopt.records.sampling import Sampling
from treeopt.runtime.models.graphs import GraphPool, passes_over
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.passes import Pass, PassNodes
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.distributions import law
from treeopt.runtime.rules.sample_children import (
    Places,
    fill_speeds,
    first_arrivals,
    likeliest_scored,
    places,
    without_replacement,
)
from treeopt.trees import TokenTree, chain


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

    def fill(self, make: Callable[[Tensor | None], Tensor]) -> Tensor:
        """Write over the rows what `make` makes, in place where it can be, and return it."""
        rows = make(self._view)
        if self._view is None:
            self._buffer[self._rows] = rows
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLevel:
    """One draft pass: it feeds a level's internal nodes, and the level below is drawn."""

    run: Pass
    fed: Window
    """Tokens of the level's internal nodes."""
    laws: Window
    """The draft's laws after them."""
    scores: Tensor
    """float64 (w,): where the largest logit after each goes, where children are not sampled."""
    speeds: Tensor
    """float64 (w, V): the noise to draw their children with."""
    wanted: Places
    drawn: Tensor
    """int64 (c,): where the tokens of the level below go."""


class Draft(NamedTuple):
    """A drafted tree."""

    tokens: Tensor
    """int64 (n,): node 0 is the root."""
    probs: Tensor | None
    """float32 (n, V): the draft's law after each internal node; None where children are not drawn at random."""
    scores: Tensor | None
    """float (k,): numbers that are all finite where all distributions are; None where nothing is drafted."""


class ModelDrafter:
    """Drafts a static tree with a small model that shares the target's vocabulary.

    The draft model's cache holds the committed text but for `pending`, the tokens it has not seen: the root, and
    before it the accepted leaf, which was never fed because it had no children.  With a tree of the root alone nothing
    is fed, and what is pending grows.

    Args:
        model: the draft model.
        tree: the tree.
        rule: the verification rule, which says how children are drawn.
        sampling: what law they are drawn from; greedy takes the likeliest, whatever the rule.
        capacity: longest text.
        max_nodes: nodes of the largest tree; by default this tree's.
        pool: where passes are captured as graphs, or None to run them operation by operation.
    """

    def __init__(
        self,
        model: LanguageModel,
        tree: TokenTree,
        *,
        rule: Rule,
        sampling: Sampling,
        capacity: int,
        max_nodes: int | None = None,
        pool: GraphPool | None = None,
    ) -> None:
        max_nodes = tree.nodes if max_nodes is None else max_nodes
        self.model = model
        self._draw = rule.draw
        self._random = rule.random_drafts and not sampling.greedy
        self._sampling = sampling
        self._cache = model.new_cache(capacity + max_nodes)
        self._passes = passes_over(model, self._cache, capacity=capacity, max_nodes=max_nodes, pool=pool)
        self._pending: list[int] = []
        self.change_tree(tree)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree from the next step on."""
        device = self.model.device
        self.tree = tree
        self._internal = {int(node): i for i, node in enumerate(np.flatnonzero(tree.child_counts))}
        self._tokens = torch.empty(tree.nodes, dtype=torch.int64, device=device)
        self._root = self._tokens[:1]
        columns = self.model.config.vocabulary if self._random else 1
        self._probs = torch.zeros((tree.nodes, columns), device=device)
        self._speeds = torch.ones((len(self._internal), columns), dtype=torch.float64, device=device)
        self._largest = torch.zeros(len(self._internal), dtype=torch.float64, device=device)
        self._levels, self._root_runs = self._make_passes()

    def start(self, tokens: Sequence[int]) -> None:
        """Begin a text whose last token is the root."""
        self._cache.clear()
        self.model.prefill(torch.tensor(tokens[:-1], device=self.model.device), self._cache)
        self._pending = [tokens[-1]]

    @torch.inference_mode()
    def propose(self, generator: torch.Generator | None) -> Draft:
        """Return the tokens of a whole tree below the root, in a buffer that the next call writes over."""
        self._root.fill_(self._pending[-1])
        if self._random:
            fill_speeds(self._speeds, generator)
        for level in self._levels:
            logits = self._feed_root() if level is self._levels[0] else level.run(level.fed.read())
            level.drawn.copy_(self._children(level, logits, generator))
        if self._random:
            return Draft(self._tokens, self._probs, self._probs[:, 0])
        return Draft(self._tokens, None, self._largest)

    def usable_nodes(self, scores: Sequence[float]) -> int:
        """Return how many nodes, in level order, are left of a draft whose scores are not all finite.

        The draft ends with the first level after which a distribution is not finite, in all its branches.  What
        decides this was sampled before the level below it was, so that the text keeps the target's distribution; to
        drop the whole draft would take those away in which the draft model met certain tokens.
        """
        first = next(index for index, score in enumerate(scores) if not isfinite(score))
        node = first if self._random else list(self._internal)[first]
        usable: int = self.tree.levels[int(self.tree.depth[node])].stop
        return usable

    def clean(self) -> None:
        """Forget what is not finite behind the text, after a step in which something was not."""
        self._passes.clean()

    def accept(self, path: Sequence[int], tokens: Sequence[int], bonus: int) -> None:
        """Move on to a new root: keep the fed nodes of the accepted path and remember what was not fed."""
        fed = [self._internal[node] for node in path if node in self._internal]
        if fed:
            self._cache.keep(fed)
        self._pending[-1:] = [*(tokens[node] for node in path[len(fed) :]), bonus]

    def _children(self, level: DraftLevel, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        if not self._random:
            scores, children = likeliest_scored(logits, level.wanted)
            level.scores.copy_(scores)
            return children
        weights = level.laws.fill(lambda rows: law(logits, self._sampling, rows))
        if level.wanted.most == 1 or self._draw is without_replacement:  # noise is made for all levels at once
            return first_arrivals(weights, level.speeds, level.wanted)
        return self._draw(weights, level.wanted, generator)

    def _feed_root(self) -> Tensor:
        """Feed what is pending; the root is its last token, and only its logits are wanted."""
        while len(self._pending) > 2:  # after steps with a tree of the root alone
            self._feed_pending(2)
            self._commit_pending(2)
        logits = self._feed_pending(len(self._pending))
        self._commit_pending(len(self._pending) - 1)
        return logits[-1:]

    def _feed_pending(self, count: int) -> Tensor:
        tokens = torch.tensor(self._pending[:count]).to(self.model.device, non_blocking=True)
        return self._root_runs[count - 1](tokens)

    def _commit_pending(self, count: int) -> None:
        self._cache.length += count
        del self._pending[:count]

    def _make_passes(self) -> tuple[list[DraftLevel], list[Pass]]:
        """Return the draft levels, root level first, and the passes over the last one and two of what is pending."""
        counts, levels, device = self.tree.child_counts, self.tree.levels, self.model.device
        pair = chain(1)
        *level_runs, pair_run = self._passes.make(
            [*_level_nodes(self.tree), PassNodes(visible=pair.ancestor_mask, depth=pair.depth)]
        )
        drafted = []
        for run, level, below in zip(level_runs, levels[:-1], levels[1:], strict=True):
            fed = level.start + np.flatnonzero(counts[level])
            first = self._internal[int(fed[0])]
            drafted.append(
                DraftLevel(
                    run=run,
                    fed=Window(self._tokens, fed),
                    laws=Window(self._probs, fed),
                    scores=self._largest[first : first + len(fed)],
                    speeds=self._speeds[first : first + len(fed)],
                    wanted=places(counts[fed].tolist(), device),
                    drawn=self._tokens[below],
                )
            )
        return drafted, [*level_runs[:1], pair_run]


def _level_nodes(tree: TokenTree) -> list[PassNodes]:
    """Return the internal nodes of each level that has any, as they are fed one level after the other."""
    internal = np.flatnonzero(tree.child_counts)
    visible, depth = tree.ancestor_mask[np.ix_(internal, internal)], tree.depth[internal]
    edges = np.searchsorted(depth, np.arange(tree.max_depth + 1)).tolist()
    return [
        PassNodes(visible=visible[start:stop, :stop], depth=depth[start:stop], start=start)
        for start, stop in pairwise(edges)
    ]
