"""Decoding with dynamic trees: in every step the draft model grows a tree where it is sure of itself (Li et al., 2024)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.errors import InvalidValueError
from treeopt.runtime.cache import KVCache
from treeopt.runtime.decode_loop import check_vocabularies, text_limit
from treeopt.runtime.drafting import Outcome, Proposal
from treeopt.runtime.drafting_decoder import DraftingDecoder
from treeopt.runtime.dynamic_growth import Children, Growth, IntArray
from treeopt.runtime.transformer import Transformer
from treeopt.runtime.tree_pass import PassNodes, TreePass
from treeopt.trees.dynamic_tree import DynamicTree


class DynamicDecoder(DraftingDecoder):
    """Decodes one text at a time with the EAGLE-2 style trees of a draft model.

    Args:
        target: the model whose text is wanted.
        draft: the draft model; its probabilities are those of temperature 1, whatever the target's.
        tree: how the trees grow.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's law that is kept, above 0 and at most 1.
        top_k: tokens of the target's law that are kept, the likeliest; 0 keeps all.
        seed: of all randomness; the same seed and the same texts give the same tokens.
        max_text_tokens: longest text, prompt included; at most and by default what both models were trained for.

    Raises InvalidValueError for values out of range and models whose vocabularies differ in size.
    """

    def __init__(
        self,
        target: Transformer,
        draft: Transformer,
        tree: DynamicTree,
        *,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        max_text_tokens: int | None = None,
    ) -> None:
        check_vocabularies(target, draft)
        trained = min(target.config.max_positions, draft.config.max_positions)
        longest = text_limit(max_text_tokens, trained)
        limits = {"top_k": (target.config.vocabulary, "vocabulary"), "depth": (trained, "trained length")}
        for name, (most, what) in limits.items():
            if getattr(tree, name) > most:
                raise InvalidValueError(
                    f"tree: expected a {name} of at most {most}, the {what}. Got {getattr(tree, name)}."
                )
        super().__init__(
            target,
            DynamicDrafter(draft, tree, capacity=longest),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            max_text_tokens=longest,
        )


class DynamicDrafter:
    """Grows the tree of every step with a small model that shares the target's vocabulary.

    The draft model's cache holds the committed text but for `pending`, the tokens it has not seen: the root, and
    before it the accepted leaf, where that was not fed.

    Args:
        model: the draft model.
        tree: how trees grow.
        capacity: longest text.
    """

    def __init__(self, model: Transformer, tree: DynamicTree, *, capacity: int) -> None:
        self.model = model
        self.tree = tree
        self.max_nodes = tree.nodes
        self._cache = model.new_cache(capacity + sum(tree.draft_widths))
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
        """Return the tree below the root, drafted in `depth` passes."""
        growth = Growth(self.tree, self._feed_root())
        for _ in range(self.tree.depth - 1):
            growth.add(self._feed(*growth.beams()))
        grown = growth.best()
        self._tokens, self._fed = [*self._pending, *grown.tokens.tolist()], grown.fed.tolist()
        return Proposal(grown.tree, torch.tensor(self._tokens))

    def accept(self, outcome: Outcome) -> None:
        """Move on to a new root: keep the fed nodes of the accepted path and remember what was not fed."""
        fed = [self._fed[node] for node in outcome.path if self._fed[node] >= 0]
        self._cache.keep(fed)
        self._pending = [*(self._tokens[node] for node in outcome.path[len(fed) :]), outcome.committed[-1]]

    def _feed_root(self) -> Children:
        """Feed what is pending; the root is its last token, and only its children are wanted."""
        count = len(self._pending)
        chain = PassNodes(visible=np.tri(count, dtype=np.bool_), depth=np.arange(count))
        children = self._feed(np.array(self._pending), chain)
        self._cache.length += count - 1
        del self._pending[:-1]
        return Children(children.log_probs[-1:], children.tokens[-1:])

    def _feed(self, tokens: IntArray, nodes: PassNodes) -> Children:
        return feed(self.model, self._cache, tokens, nodes, children=self.tree.top_k)


def feed(model: Transformer, cache: KVCache, tokens: IntArray, nodes: PassNodes, *, children: int) -> Children:
    """Feed nodes of a tree to a draft model and return so many of the likeliest tokens after each.

    Their log-probabilities are float32, at temperature 1.
    """
    logits = _pass(model, cache, nodes)(torch.from_numpy(tokens).to(model.device))
    log_probs, likeliest = logits.float().log_softmax(-1).topk(children)
    return Children(log_probs.cpu().numpy(), likeliest.cpu().numpy())


def _pass(model: Transformer, cache: KVCache, nodes: PassNodes) -> TreePass:
    """Return a pass for the text as long as it is now."""
    return TreePass(model, cache, visible=nodes.visible, depth=nodes.depth, start=nodes.start, capacity=cache.length)
