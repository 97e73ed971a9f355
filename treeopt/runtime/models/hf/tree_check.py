"""Whether a model computes in one tree pass what it computes for each path alone: tried once, when it is loaded."""

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from treeopt.errors import TreeoptError
from treeopt.runtime.models.hf.sizes import ADVICE
from treeopt.runtime.models.model import Feed, LanguageModel, SequenceCache, feed_text
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree

TREE = TokenTree([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9])
"""Three children, two below each, one below each of those: nodes lie up to 15 slots behind the root, 3 levels deep."""
KEPT = (0, 2, 7, 13)
"""A path whose nodes all move but the root."""
TEXT_TOKENS = 8
CHECKED_WINDOW = 3
"""Sliding window in tokens for the second check: it slides within the text, and the deepest nodes no longer see the root."""
EXACT, ROUNDED = 1e-3, 0.2
"""Share of the context effect by which the passes may differ, in float32 and in anything that rounds more.

Rounding to float32 shows as some 1e-6, to bfloat16 as 0.01 in the bundled target and up to 0.08 in 48 layers of random
weights. Biases that go by the place in the cache show as 0.3, masks and positions that are ignored as 0.6 and more.
"""


class CheckedModel(LanguageModel, Protocol):
    """A model that can also be run as its maker does."""

    def text_logits(self, texts: Tensor) -> Tensor:
        """Return logits (batch, n, V) of texts, int64 (batch, n), with no mask or cache of ours."""


def check_tree_mask(model: CheckedModel, *, tolerance: float, refusal: str = "cannot take a tree mask") -> float:
    """Return by how much tree passes differ from path-by-path passes, as a share of the context effect.

    A text is prefilled and a tree fed in three parts, a path of it is kept, the same tree is fed in one pass behind it,
    and after another `keep` a single token.  All logits are compared with plain passes over each path's text.  The
    context effect is how much the logits after equal tokens at equal depths differ below different parents: what a
    tree mask has to keep apart.

    Args:
        model: the model.
        tolerance: most of the difference, as a share of the context effect.
        refusal: what an error reports about the model.

    Raises TreeoptError when the difference (root mean square) is above `tolerance`, when logits depend so little on
    the text that nothing can be told, and when the model raises anything.
    """
    try:
        passes, references = _passes(model)
    except Exception as error:  # whatever an unknown model may raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise TreeoptError(f"{model.name}: {refusal}: its check ended with {reason}. {ADVICE}") from error
    effect, token_effect = _effects(references[0])
    if effect <= torch.finfo(model.dtype).eps * token_effect:
        raise TreeoptError(
            f"{model.name}: cannot tell whether it takes a tree mask: its logits depend on the last token only. "
            "Expected a trained model."
        )
    largest = max(rms(difference(*pair)) for pair in zip(passes, references, strict=True)) / effect
    if not largest <= tolerance:  # NaN is refused too
        raise TreeoptError(
            f"{model.name}: {refusal}: a tree pass differs from path-by-path passes by "
            f"{100 * largest:.1f} % of what a token's parent changes. Expected at most {100 * tolerance:g} %. "
            f"{ADVICE}"
        )
    return largest


@torch.inference_mode()
def _passes(model: CheckedModel) -> tuple[list[Tensor], list[Tensor]]:
    """Return the logits (n, V) of each pass, and what they should be."""
    vocabulary = model.config.vocabulary
    tokens = torch.randperm(max(vocabulary, 32), generator=torch.Generator().manual_seed(0))[:32] % vocabulary
    text, rest = tokens[:TEXT_TOKENS].tolist(), tokens[TEXT_TOKENS:].tolist()
    nodes = _tree_tokens(rest)
    kept = [nodes[node] for node in KEPT]
    (cache,) = model.new_caches(len(text) + len(kept) + TREE.nodes + 1, 1)
    model.prefill(torch.tensor(text, device=model.device), cache)
    parts = pairwise([0, 4, 5, TREE.nodes])  # one node alone too: it does not see its parent's siblings
    passes = [torch.cat([_feed(model, cache, nodes, first, end) for first, end in parts])]
    cache.keep(KEPT)
    passes.append(_feed(model, cache, nodes, 0, TREE.nodes))
    cache.keep(KEPT)
    after = [*text, *kept, *kept]
    passes.append(model.forward([feed_text(cache, torch.tensor(rest[-1:], device=model.device))]).logits)
    return [logits.float() for logits in passes], _references(model, text, [*text, *kept], nodes, [*after, rest[-1]])


def _feed(model: CheckedModel, cache: SequenceCache, tokens: list[int], first: int, end: int) -> Tensor:
    """Return the logits of the tree's nodes from `first` to `end`, those before already fed."""
    nodes = PassNodes(depth=TREE.depth[first:end], visible=TREE.ancestor_mask[first:end, :end], start=first)
    fed = torch.tensor(tokens[first:end], device=model.device)
    return model.forward([Feed(cache, fed, nodes)]).logits


def _tree_tokens(tokens: list[int]) -> list[int]:
    """Return the token of each node: the root's, then one for each depth and rank, the same below every parent."""
    return [tokens[0], *tokens[1:4], *tokens[4:6] * 3, *tokens[6:8] * 3]


def _references(model: CheckedModel, *texts_and_nodes: list[int]) -> list[Tensor]:
    """Return the logits after each node behind two texts, and after the last text, all from one plain pass."""
    first, second, nodes, last = texts_and_nodes
    paths = [path[path >= 0].tolist() for path in TREE.leaf_paths]
    rows = [[*text, *(nodes[node] for node in path)] for text in (first, second) for path in paths]
    rows.append(last)
    longest = max(map(len, rows))
    padded = [[*row, *[0] * (longest - len(row))] for row in rows]  # what follows a token does not change its logits
    logits = model.text_logits(torch.tensor(padded, device=model.device)).float()
    found = []
    for index, text in enumerate((first, second)):
        places = {
            node: (index * len(paths) + row, len(text) + depth)
            for row, path in enumerate(paths)
            for depth, node in enumerate(path)
        }
        found.append(torch.stack([logits[places[node]] for node in range(TREE.nodes)]))
    return [*found, logits[-1, len(last) - 1 : len(last)]]


def _effects(reference: Tensor) -> tuple[float, float]:
    """Return how much logits (n, V) differ below different parents after equal tokens, and between different tokens."""
    below = reference[4:].view(2, 3, 2, -1)  # depth, first ancestor, rank
    contexts, tokens = difference(below[:, 1:], below[:, :-1]), difference(below[:, :, 1:], below[:, :, :-1])
    return rms(contexts), rms(tokens)


def difference(these: Tensor, those: Tensor) -> Tensor:
    """Return the difference, 0 where both are the same infinity, as for tokens that a model never says."""
    return (these - those).where(these != those, 0)


def rms(values: Tensor) -> float:
    """Return the root mean square."""
    return float(values.double().square().mean().sqrt())
