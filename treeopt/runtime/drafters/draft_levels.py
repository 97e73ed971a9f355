"""The levels of a static tree as draft passes: what each feeds, and how the children below it are sampled in all texts."""

from collections.abc import Callable, Sequence
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
from treeopt.runtime.rules.sample_children import Places, chosen, likeliest_of_rows, places
from treeopt.trees import TokenTree

KEPT_LEVELS = 16
"""Trees whose levels are stored."""

Sampler = Callable[[Tensor, Sequence[torch.Generator]], Tensor]
"""From the logits (texts, w, V) of a level's internal nodes, and the noise of each text, to their children (texts, c)."""


class Window:
    """Some nodes of every text in a buffer: a view where they are neighbours, because that is quicker."""

    def __init__(self, buffer: Tensor, nodes: Integers) -> None:
        first, last = int(nodes[0]), int(nodes[-1])
        self._buffer = buffer
        self._view = buffer[:, first : last + 1] if last - first + 1 == len(nodes) else None
        self._view_by_text = None if self._view is None else self._view.unbind()
        self._nodes = torch.from_numpy(nodes).to(buffer.device)

    def read(self) -> Sequence[Tensor]:
        """Return what stands at the nodes of each text."""
        return self._buffer[:, self._nodes].unbind() if self._view_by_text is None else self._view_by_text

    def write(self, values: Tensor) -> None:
        """Write over what stands at the nodes."""
        if self._view is None:
            self._buffer[:, self._nodes] = values
        else:
            self._view.copy_(values)


class DraftBuffers:
    """Where the trees of texts that are drafted together are drafted into, whichever they are.

    Args:
        texts: most texts.
        nodes: of the largest tree.
        internal: most nodes with children.
        rule: the verification rule, which says how children are sampled.
        sampling: what they are sampled from; greedy takes the likeliest, whatever the rule.
        vocabulary: V.
        device: of the draft model.
    """

    def __init__(
        self,
        texts: int,
        nodes: int,
        internal: int,
        *,
        rule: Rule,
        sampling: Sampling,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        self.texts, self.internal, self.rule, self.sampling = texts, internal, rule, sampling
        self.random = rule.random_drafts and not sampling.greedy
        self.columns = vocabulary if self.random else 1
        self.tokens = torch.empty(texts * nodes, dtype=torch.int64, device=device)
        self.probs = torch.zeros((texts * nodes, self.columns), device=device)
        self.largest = torch.zeros(texts * internal, dtype=torch.float64, device=device)


class LevelDraft:
    """What one draft pass of all texts is for: it feeds a level's internal nodes, and the level below is sampled.

    Args:
        fed: tokens of the level's internal nodes.
        sample: samples the level below.
        children: (texts, c), where its tokens go.
    """

    def __init__(self, fed: Window, sample: Sampler, children: Tensor) -> None:
        self._fed, self._sample, self._children = fed, sample, children

    def fed(self) -> Sequence[Tensor]:
        """Return what each text feeds, int64 (w,)."""
        return self._fed.read()

    def fill(self, logits: Tensor, noise: Sequence[torch.Generator]) -> None:
        """Sample the level below from logits (texts * w, V), with the noise of each text."""
        self._children.copy_(self._sample(logits.view(len(noise), -1, logits.shape[-1]), noise))


class TreeDrafts:
    """The tree of each of some texts in the buffers that it is drafted into, and the tree's levels, root level first.

    Args:
        tree: the tree.
        texts: how many.
        buffers: with room for as many; other trees may be drafted into them in between.
    """

    def __init__(self, tree: TokenTree, texts: int, buffers: DraftBuffers) -> None:
        self.texts = texts
        self._rule = buffers.rule
        self._sampling = buffers.sampling
        self._random = buffers.random
        internal, shape = np.flatnonzero(tree.child_counts), (texts, tree.nodes)
        self._tokens = buffers.tokens[: texts * tree.nodes].view(shape)
        self._roots = self._tokens[:, 0]
        self._probs = buffers.probs[: texts * tree.nodes].view(*shape, -1)
        self._largest = buffers.largest[: texts * len(internal)].view(texts, len(internal))
        self.tokens = self._tokens.unbind()
        """int64 (n,) of each text."""
        self.probs = self._probs.unbind() if self._random else (None,) * texts
        """float32 (n, V) of each text: what the children of each internal node were sampled from."""
        self.scores = (self._probs[..., 0] if self._random else self._largest).unbind()
        """float (k,) of each text: numbers of `scored` nodes that are finite where the distributions after them are."""
        self.scored: list[int] = list(range(tree.nodes)) if self._random else internal.tolist()
        self.levels = self._levels(tree)

    def clear(self) -> None:
        """Forget what another tree left: nothing is sampled after a node without children."""
        self._probs.zero_()

    def begin(self, roots: Sequence[int]) -> None:
        """Put the texts' roots in place."""
        self._roots.copy_(torch.tensor(roots))

    def _levels(self, tree: TokenTree) -> list[LevelDraft]:
        counts, device = tree.child_counts, self._tokens.device
        fed, found = 0, []
        for level, below in pairwise(tree.levels):
            nodes = level.start + np.flatnonzero(counts[level])
            wanted = places(counts[nodes].tolist(), device)
            if self._random:
                sample = _by_rule(Window(self._probs, nodes), self._sampling, self._rule, wanted)
            else:
                sample = _likeliest(self._largest[:, fed : fed + len(nodes)], wanted)
            found.append(LevelDraft(Window(self._tokens, nodes), sample, self._tokens[:, below]))
            fed += len(nodes)
        return found


def _likeliest(scores: Tensor, wanted: Places) -> Sampler:
    """Return the sampler that takes the likeliest children and keeps the largest logit after each node."""

    def sample(logits: Tensor, noise: Sequence[torch.Generator]) -> Tensor:  # noqa: ARG001
        largest, children = likeliest_of_rows(logits, wanted.most)
        scores.copy_(largest)
        return chosen(children, wanted)

    return sample


def _by_rule(window: Window, sampling: Sampling, rule: Rule, wanted: Places) -> Sampler:
    """Return the sampler that draws as a rule does, which writes the distributions to a window."""
    device, nodes = wanted.node.device, int(wanted.node[-1]) + 1
    # compiled now, not within the first step
    rule.draw(torch.ones((1, nodes, 2 * wanted.most), device=device), wanted, [torch.Generator(device)])

    def sample(logits: Tensor, noise: Sequence[torch.Generator]) -> Tensor:
        probs = distribution(logits, sampling)
        window.write(probs)
        return rule.draw(probs, wanted, noise)

    return sample


@lru_cache(maxsize=KEPT_LEVELS)
def level_nodes(tree: TokenTree) -> tuple[PassNodes, ...]:
    """Return the internal nodes of each level that has any, as they are fed one level after the other."""
    internal = np.flatnonzero(tree.child_counts)
    visible, depth = tree.ancestor_mask[np.ix_(internal, internal)], tree.depth[internal]
    edges = np.searchsorted(depth, np.arange(tree.max_depth + 1)).tolist()
    return tuple(
        PassNodes(visible=visible[start:stop, :stop], depth=depth[start:stop], start=start)
        for start, stop in pairwise(edges)
    )


@lru_cache(maxsize=KEPT_LEVELS)
def feed_indices(tree: TokenTree) -> list[int]:
    """Return the feed index of each node in a step, NOT_FED for those without children."""
    internal = tree.child_counts > 0
    found: list[int] = np.where(internal, internal.cumsum() - 1, NOT_FED).tolist()
    return found
