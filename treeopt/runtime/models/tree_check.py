"""Load-time checks that a tree pass equals path-by-path passes, and a batched pass equals one pass per sequence."""

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from treeopt.errors import TreeoptError
from treeopt.runtime.models.model import LanguageModel, SequenceCache, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree, chain

ADVICE = "Use a model with rotary or learned positions whose layers are all attention."
TREE = TokenTree([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9])
"""Three children, two below each, one below each of those: nodes are up to 15 slots after the root, 3 levels deep."""
COMMITTED_PATH = (0, 2, 7, 13)
"""A path whose nodes all move except the root."""
PREFIX_TOKENS = 8
CHECKED_WINDOW = 3
"""Sliding window in tokens for the second check: it slides within the prefix, and the deepest nodes no longer see the root."""
EXACT, ROUNDED = 1e-3, 0.2
"""Permitted difference between the passes as a fraction of the context effect: in float32, and in other dtypes.

Rounding to float32 shows as about 1e-6; to bfloat16 as 0.01 in the bundled target and up to 0.08 in 48 layers of random
weights.  Biases that depend on the slot show as 0.3, ignored masks or positions as 0.6 or more.
"""
BATCH = ((8, TREE), (3, chain(0)), (0, chain(2)))
"""Committed tokens of each sequence of the batch check, and the tree after them."""


class CheckableModel(LanguageModel, Protocol):
    """A model that can also run without treeopt's mask and cache."""

    def reference_logits(self, sequences: Tensor) -> Tensor:
        """Return logits (batch, n, V) of sequences, int64 (batch, n), without a mask or cache of treeopt."""


def check_tree_mask(model: CheckableModel, *, tolerance: float, refusal: str = "cannot take a tree mask") -> float:
    """Return the difference between tree passes and path-by-path passes, as a fraction of the context effect.

    After a prefill, a tree is fed in three parts and a path of it committed; then the same tree is fed in one pass, and
    after another commit a single token.  All logits are compared with plain passes over each path.  The context effect
    is the difference between the logits after equal tokens at equal depths below different parents, which a tree mask
    has to keep apart.

    Raises TreeoptError if the difference (root mean square) exceeds `tolerance`, if the logits depend too little on the
    context to decide, and if the model raises anything; `refusal` describes the failure.
    """
    try:
        passes, references = _run_tree_passes(model)
    except Exception as error:  # whatever an unknown model may raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise TreeoptError(f"{model.name}: {refusal}: its check ended with {reason}. {ADVICE}") from error
    effect, token_effect = _measure_effects(references[0])
    if effect <= torch.finfo(model.dtype).eps * token_effect:
        raise TreeoptError(
            f"{model.name}: cannot tell whether it takes a tree mask: its logits depend on the last token only. "
            "Expected a trained model."
        )
    largest = max(_rms(_difference(*pair)) for pair in zip(passes, references, strict=True)) / effect
    if not largest <= tolerance:  # also refuses NaN
        raise TreeoptError(
            f"{model.name}: {refusal}: a tree pass differs from path-by-path passes by "
            f"{100 * largest:.1f} % of what a token's parent changes. Expected at most {100 * tolerance:g} %. "
            f"{ADVICE}"
        )
    return largest


@torch.inference_mode()
def _run_tree_passes(model: CheckableModel) -> tuple[list[Tensor], list[Tensor]]:
    """Return the logits (n, V) of each pass, and their references."""
    vocabulary = model.config.vocabulary
    tokens = torch.randperm(max(vocabulary, 32), generator=torch.Generator().manual_seed(0))[:32] % vocabulary
    prefix, others = tokens[:PREFIX_TOKENS].tolist(), tokens[PREFIX_TOKENS:].tolist()
    nodes = _assign_tokens(others)
    committed = [nodes[node] for node in COMMITTED_PATH]
    (cache,) = model.new_caches(len(prefix) + len(committed) + TREE.nodes + 1, 1)
    model.prefill(torch.tensor(prefix, device=model.device), cache)
    parts = pairwise([0, 4, 5, TREE.nodes])  # also a single node, which does not see its parent's siblings
    passes = [torch.cat([_feed_nodes(model, cache, nodes, first, end) for first, end in parts])]
    cache.commit(COMMITTED_PATH)
    passes.append(_feed_nodes(model, cache, nodes, 0, TREE.nodes))
    cache.commit(COMMITTED_PATH)
    last_token = torch.tensor(others[-1:], device=model.device)
    passes.append(model.forward([SequenceInput.causal(cache, last_token)]).logits)
    sequence = [*prefix, *committed, *committed, others[-1]]
    references = _run_references(model, (prefix, [*prefix, *committed]), nodes, sequence)
    return [logits.float() for logits in passes], references


def _feed_nodes(model: CheckableModel, cache: SequenceCache, tokens: list[int], first: int, end: int) -> Tensor:
    """Return the logits of the tree's nodes from `first` to `end`; those before have been fed."""
    nodes = PassNodes(depth=TREE.depth[first:end], visible=TREE.ancestor_mask[first:end, :end], start=first)
    fed = torch.tensor(tokens[first:end], device=model.device)
    return model.forward([SequenceInput(cache, fed, nodes)]).logits


def _assign_tokens(tokens: list[int]) -> list[int]:
    """Return the token of each node: one for the root, and one per depth and rank, the same below every parent."""
    return [tokens[0], *tokens[1:4], *tokens[4:6] * 3, *tokens[6:8] * 3]


def _run_references(
    model: CheckableModel, prefixes: tuple[list[int], list[int]], nodes: list[int], sequence: list[int]
) -> list[Tensor]:
    """Return the logits after the tree's nodes below each of two prefixes, and after the sequence, from one plain pass."""
    paths = [path[path >= 0].tolist() for path in TREE.leaf_paths]
    rows = [[*prefix, *(nodes[node] for node in path)] for prefix in prefixes for path in paths]
    rows.append(sequence)
    longest = max(map(len, rows))
    padded = [[*row, *[0] * (longest - len(row))] for row in rows]  # later tokens do not change a token's logits
    logits = model.reference_logits(torch.tensor(padded, device=model.device)).float()
    references = []
    for index, prefix in enumerate(prefixes):
        entries = {
            node: (index * len(paths) + row, len(prefix) + depth)
            for row, path in enumerate(paths)
            for depth, node in enumerate(path)
        }
        references.append(torch.stack([logits[entries[node]] for node in range(TREE.nodes)]))
    return [*references, logits[-1, len(sequence) - 1 : len(sequence)]]


def _measure_effects(logits: Tensor) -> tuple[float, float]:
    """Return the RMS difference of logits (n, V) after equal tokens below different parents, and between tokens."""
    below = logits[4:].view(2, 3, 2, -1)  # depth, first ancestor, rank
    contexts, tokens = _difference(below[:, 1:], below[:, :-1]), _difference(below[:, :, 1:], below[:, :, :-1])
    return _rms(contexts), _rms(tokens)


def why_separate_passes(model: LanguageModel, *, tolerance: float) -> str | None:
    """Return why sequences need separate passes; None if a batched pass gives the same logits.

    For each sequence the difference (root mean square) may be `tolerance` times the difference between the logits after
    one token in the two longest contexts, which a batched pass has to keep apart.
    """
    try:
        batched, separate = _run_batch_passes(model)
    except Exception as error:  # noqa: BLE001, whatever an unknown model may raise
        return " ".join(f"its batched pass ended with {type(error).__name__}: {error}".split())[:300]
    effect = _rms(_difference(separate[0][0], separate[1][0]))
    differences = [_rms(_difference(*pair)) for pair in zip(batched, separate, strict=True)]
    if all(difference <= tolerance * effect for difference in differences):  # False for NaN
        return None
    return "its batched pass gives other logits than a pass over each sequence"


@torch.inference_mode()
def _run_batch_passes(model: LanguageModel) -> tuple[list[Tensor], list[Tensor]]:
    """Return the logits (n, V) after the nodes of each sequence, from one batched pass and from separate passes."""
    most = max(tree.nodes for _, tree in BATCH)
    generator, vocabulary = torch.Generator().manual_seed(1), model.config.vocabulary
    caches = model.new_caches(max(length for length, _ in BATCH) + most, len(BATCH))
    nodes = torch.randint(vocabulary, (most,), generator=generator).to(model.device)
    inputs = []
    for (length, tree), cache in zip(BATCH, caches, strict=True):
        model.prefill(torch.randint(vocabulary, (length,), generator=generator).to(model.device), cache)
        inputs.append(SequenceInput(cache, nodes[: tree.nodes], PassNodes.whole(tree)))
    separate = [model.forward([sequence])[0].logits.float() for sequence in inputs]
    return [output.logits.float() for output in model.forward(inputs)], separate


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b, 0 where both are the same infinity, as for tokens that a model never generates."""
    return (a - b).where(a != b, 0)


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())
