"""A draft model at work for trees that grow anew in every step: its cache, and what it has not seen of the text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.runtime.drafting import Outcome, Proposal
from treeopt.runtime.dynamic_growth import Children, Grown
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import LanguageModel, TextCache
from treeopt.runtime.models.passes import PassNodes, TreePass
from treeopt.trees import TokenTree


class GrowingDrafter(ABC):
    """The part of a `Drafter` that all growing trees share; the classes below say how a tree grows.

    The draft model's cache holds the committed text but for `pending`, the tokens it has not seen: the root, and
    before it the accepted leaf, where that was not fed.  Behind them stand the step's nodes, in the order of feeding.

    Args:
        model: the draft model; its probabilities are those of temperature 1, whatever the target's.
        cache: with room for the longest text and all nodes fed in a step.
        children: tokens wanted after each node.
        max_nodes: most nodes of a tree.
    """

    def __init__(self, model: LanguageModel, cache: TextCache, *, children: int, max_nodes: int) -> None:
        self.model = model
        self.max_nodes = max_nodes
        self._cache = cache
        self._children = children
        self._pending: list[int] = []
        self._tokens: list[int] = []
        self._fed: list[int] = []

    def start(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        """See `Drafter`."""
        del hidden
        self._cache.clear()
        text = torch.tensor(tokens[:-1], dtype=torch.int64, device=self.model.device)
        self.model.prefill(text, self._cache)
        self._pending = [tokens[-1]]

    @torch.inference_mode()
    def propose(self) -> Proposal:
        """Return the tree below the root; the root alone where a distribution on the way is not finite."""
        root = self._feed_root()
        grown = self._grow(root) if root.finite else None
        if grown is None:
            alone = Grown(TokenTree([-1]), np.empty(0, np.int64), np.zeros(1, np.int64))
            return self._propose(alone)._replace(scores=Scores(self.model.name, torch.tensor([torch.nan])))
        return self._propose(grown)

    @abstractmethod
    def _grow(self, root: Children) -> Grown | None:
        """Return the tree of a step, given the children of the root; None where those of a node are not finite."""

    def accept(self, outcome: Outcome) -> None:
        """Move on to a new root: keep the fed nodes of the accepted path and remember what was not fed."""
        fed = [self._fed[node] for node in outcome.path if self._fed[node] >= 0]
        self._cache.keep(fed)
        self._pending = [*(self._tokens[node] for node in outcome.path[len(fed) :]), outcome.committed[-1]]

    def _propose(self, grown: Grown) -> Proposal:
        """Return a grown tree, and remember what of it was fed."""
        self._tokens, self._fed = [*self._pending, *grown.tokens.tolist()], grown.fed.tolist()
        return Proposal(grown.tree, torch.tensor(self._tokens))

    def _feed_root(self) -> Children:
        """Feed what is pending; the root is its last token, and only its children are wanted."""
        count = len(self._pending)
        chain = PassNodes(visible=np.tri(count, dtype=np.bool_), depth=np.arange(count))
        children = self._feed(np.array(self._pending), chain)
        self._cache.length += count - 1
        del self._pending[:-1]
        return Children(children.log_probs[-1:], children.tokens[-1:])

    def _feed(self, tokens: Int64, nodes: PassNodes) -> Children:
        return feed(self.model, self._cache, tokens, nodes, children=self._children)


def feed(model: LanguageModel, cache: TextCache, tokens: Int64, nodes: PassNodes, *, children: int) -> Children:
    """Feed nodes of a tree to a draft model and return so many of the likeliest tokens after each.

    Their log-probabilities are float32, at temperature 1.
    """
    read = TreePass(model, cache, visible=nodes.visible, depth=nodes.depth, start=nodes.start, capacity=cache.length)
    log_probs, likeliest = read(torch.from_numpy(tokens).to(model.device)).float().log_softmax(-1).topk(children)
    return Children(log_probs.cpu().numpy(), likeliest.cpu().numpy())
