"""What heads on the target share: their folders, vocabularies and layers, the roots they draft from, and static trees."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal, Step
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.finite import Scores
from treeopt.runtime.models.model import HiddenStates, RequestedStates, concatenate
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Layer, Transformer
from treeopt.runtime.models.weights import build_layer
from treeopt.trees import TokenTree


class HeadFolder:
    """A folder with treeopt's own heads: `config.json` with their kind and sizes, and their weights.

    Args:
        folder: with both files.
        kind: expected kind of head.
        target: the model that the heads were trained for.

    Raises TreeoptError if a file is missing, FormatError naming the field that is wrong, InvalidValueError for heads of
    a target of another size.
    """

    fields: Fields
    """The other fields of `config.json`."""
    tensors: TensorReader
    """On the target's device and in its dtype."""

    def __init__(self, folder: Path | str, kind: str, target: Transformer) -> None:
        path = Path(folder) / "config.json"
        self.fields = Fields(path, read_object(path))
        stored_kind = self.fields.text("kind")
        if stored_kind != kind:
            raise self.fields.error("kind", f"expected {kind!r}. Got {stored_kind!r}: are these other heads?")
        sizes = {"hidden_size": target.config.hidden, "vocabulary": target.config.vocabulary}
        for name, expected in sizes.items():
            size = self.fields.integer(name)
            if size != expected:
                raise InvalidValueError(
                    f"{name}: expected heads for {expected}, which {target.name} has. "
                    f"Got {size}: take heads that were trained on this target."
                )
        self.tensors = TensorReader.open_folder(Path(folder), device=target.device, dtype=target.dtype)


class HeadSequences:
    """The root of each sequence, and the target's last hidden state before it, (1, hidden)."""

    def __init__(self) -> None:
        self._sequences: dict[int, tuple[int, Tensor | None]] = {}

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self._sequences[sequence] = tokens[-1], None if states is None else states.last

    def propose(self, sequences: Sequence[int], draft: Callable[[list[int], Tensor], list[Proposal]]) -> list[Proposal]:
        """Return the drafts of a batch, by one call of `draft`; the root alone for a sequence of one token.

        Args:
            sequences: their numbers.
            draft: from n roots and the hidden states before them, (n, hidden), to n drafts.
        """
        batch = [self._sequences[sequence] for sequence in sequences]
        ready = [(root, hidden) for root, hidden in batch if hidden is not None]
        drafts = iter(draft([root for root, _ in ready], concatenate([hidden for _, hidden in ready])) if ready else [])
        return [Proposal(ROOT_ONLY, torch.tensor([root])) if hidden is None else next(drafts) for root, hidden in batch]

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        """Move to the new roots: each was sampled from the hidden state of the last accepted node."""
        for sequence, step in zip(sequences, steps, strict=True):
            assert step.states is not None  # heads request them
            self._sequences[sequence] = step.tokens[-1], step.states.row(step.path[-1]).last

    def end(self, sequence: int) -> None:
        self._sequences.pop(sequence, None)


class MarginalTree:
    """A static tree filled from one ranking of tokens for each depth: a node of depth d and rank r has the r-th at d.

    Args:
        name: of the head, for warnings.
        tree: the tree.
        levels: depths that the head predicts.
        tokens: tokens that the head predicts.
        device: of the head.

    Raises InvalidValueError for a tree with more levels, or more children of a node than tokens.
    """

    def __init__(self, name: str, tree: TokenTree, *, levels: int, tokens: int, device: torch.device) -> None:
        check_tree(name, tree, levels=levels, tokens=tokens)
        self.tree = tree
        self.count = max(1, int(tree.child_counts.max()))
        """Tokens that are needed at each depth."""
        self._name = name
        indices = (tree.depth[1:] - 1) * self.count + tree.rank[1:]
        self._indices = torch.from_numpy(indices.astype(np.int64)).to(device)
        self._first_nodes = [level.start for level in tree.levels[:-1]]

    def fill(self, roots: Sequence[int], logits: Tensor, likeliest: Tensor) -> list[Proposal]:
        """Return the filled tree below each root.

        Args:
            roots: tokens of n roots.
            logits: (n, levels), the largest logit at each depth.
            likeliest: int64 (n, levels, count), the most likely tokens at each depth.
        """
        children = likeliest.flatten(1)[:, self._indices]
        tokens = torch.cat([children.new_tensor(roots)[:, None], children], 1)
        return [
            Proposal(self.tree, row, scores=Scores(self._name, scores, self._first_nodes))
            for row, scores in zip(tokens, logits[:, : self.tree.max_depth], strict=True)
        ]


def check_tree(name: str, tree: TokenTree, *, levels: int, tokens: int) -> None:
    """Raise InvalidValueError for a tree with more levels, or more children of a node, than a head predicts."""
    widest = int(tree.child_counts.max())
    if tree.max_depth > levels:
        raise InvalidValueError(f"tree: expected at most {levels} levels, the depth of {name}. Got {tree.max_depth}.")
    if widest > tokens:
        raise InvalidValueError(f"tree: expected at most {tokens} children of a node, the vocabulary. Got {widest}.")


def check_target(target: object) -> None:
    """Raise InvalidValueError for a target that treeopt does not run itself."""
    if not isinstance(target, Transformer):
        raise InvalidValueError(
            "target: expected one that treeopt runs itself, whose states and embedding a head reads. "
            f"Got {type(target).__name__}: load the target without --backend, or draft with something else.",
            field="target",
        )


def zero_states(target: Transformer, requested: RequestedStates, tokens: int) -> HiddenStates:
    """Return zero hidden states of a target at `tokens` tokens, for timing."""
    zeros = torch.zeros((tokens, target.config.hidden), dtype=target.dtype, device=target.device)
    return HiddenStates((zeros,) * len(requested.layer_ids), zeros if requested.last else None)


def target_ids(
    folder: Path, tensors: TensorReader, head_vocabulary: int, vocabulary: int, device: torch.device
) -> Tensor | None:
    """Return the target's token for each of the head's, int64 (head_vocabulary,); None if all are numbered alike.

    The tensor `d2t` contains the offset of each.

    Raises FormatError for tokens outside the vocabulary, and for one that appears twice.
    """
    offsets = tensors.get_integers("d2t", (head_vocabulary,))
    ids = offsets + torch.arange(head_vocabulary)
    outside = ((ids < 0) | (ids >= vocabulary)).nonzero()[:, 0]
    if len(outside):
        first = int(outside[0])
        raise FormatError(
            folder,
            "d2t",
            f"expected offsets to tokens from 0 to {vocabulary - 1}. Got {int(offsets[first])} at {first}, which is "
            f"token {int(ids[first])}: are these ids? Subtract each one's own number.",
        )
    if len(ids.unique()) < head_vocabulary:
        values, counts = ids.unique(return_counts=True)
        twice = int(values[counts > 1][0])
        raise FormatError(
            folder,
            "d2t",
            f"expected different tokens. Got token {twice} more than once: take a complete checkpoint of a head.",
        )
    return None if torch.equal(ids, torch.arange(vocabulary)) else ids.to(device)


def spread_logits(logits: Tensor, ids: Tensor, vocabulary: int) -> Tensor:
    """Return the target's logits (n, vocabulary) from a head's (n, Vd): -inf for tokens that it does not predict."""
    spread = logits.new_full((len(logits), vocabulary), float("-inf"))
    spread[:, ids] = logits
    return spread


def load_head_layer(tensors: TensorReader, config: ModelConfig, prefix: str, inputs: int) -> Layer:
    """Return a decoder layer whose attention reads `inputs` numbers, with the biases and norms that are stored."""
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    stored = replace(
        config,
        query_key_value_bias=f"{attention}.q_proj.bias" in tensors,
        output_bias=f"{attention}.o_proj.bias" in tensors,
        mlp_bias=f"{mlp}.gate_proj.bias" in tensors or f"{mlp}.down_proj.bias" in tensors,
        head_norms=f"{attention}.q_norm.weight" in tensors,
    )
    return build_layer(tensors, stored, prefix, inputs=inputs)
