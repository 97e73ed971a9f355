"""What heads on the target share: their folders, vocabularies and layers, the roots they draft from, and static trees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import HiddenStates, RequestedStates, concatenate
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Layer, Transformer
from treeopt.runtime.models.weights import build_layer
from treeopt.trees import TokenTree

OutputLayer = Callable[[Tensor], Tensor]
"""From states (n, inputs) to logits (n, V)."""


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


class HeadDrafter:
    """Drafts from the root and the target's last hidden state before it; subclasses define `_draft`."""

    sampled = False
    requested_states = RequestedStates(last=True)

    def __init__(self) -> None:
        self._sequences: dict[int, tuple[int, Tensor | None]] = {}
        """Of each sequence, the root and the hidden state before it, (1, hidden); None for a sequence of one token."""

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self._sequences[sequence] = tokens[-1], None if states is None else states.last

    @torch.inference_mode()
    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the drafts of a batch, by one call of `_draft`; the root alone for a sequence of one token."""
        batch = [self._sequences[sequence] for sequence in sequences]
        ready = [(root, hidden) for root, hidden in batch if hidden is not None]
        drafts = iter(
            self._draft([root for root, _ in ready], concatenate([hidden for _, hidden in ready])) if ready else ()
        )
        return [Proposal(ROOT_ONLY, torch.tensor([root])) if hidden is None else next(drafts) for root, hidden in batch]

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        """Move to the new roots: each was sampled from the hidden state of the last accepted node."""
        for sequence, step in zip(sequences, steps, strict=True):
            assert step.states is not None  # heads request them
            self._sequences[sequence] = step.tokens[-1], step.states.row(step.path[-1]).last

    def end(self, sequence: int) -> None:
        self._sequences.pop(sequence, None)

    def _draft(self, roots: list[int], hidden: Tensor) -> list[Proposal]:
        """Return the drafts below n roots, given the hidden states before them, (n, hidden)."""
        raise NotImplementedError


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
        self._count = max(1, int(tree.child_counts.max()))  # tokens that are needed at each depth
        self._name = name
        indices = (tree.depth[1:] - 1) * self._count + tree.rank[1:]
        self._indices = torch.from_numpy(indices.astype(np.int64)).to(device)
        self._first_nodes = [level.start for level in tree.levels[:-1]]

    def fill(self, roots: Sequence[int], logits: Tensor) -> list[Proposal]:
        """Return the filled tree below each of n roots, given the logits (n, levels, V) at each depth."""
        largest, likeliest = logits.topk(self._count)
        children = likeliest.flatten(1)[:, self._indices]
        tokens = torch.cat([children.new_tensor(roots)[:, None], children], 1)
        return [
            Proposal(self.tree, row, scores=Scores(self._name, scores, self._first_nodes))
            for row, scores in zip(tokens, largest[:, : self.tree.max_depth, 0], strict=True)
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


@dataclass(frozen=True)
class HeadVocabulary:
    """The target's tokens that a head predicts."""

    tokens: int
    """Number of them."""
    ids: Tensor | None
    """int64 (tokens,): the target's token for each of the head's; None if all are numbered alike."""
    target: Transformer

    @classmethod
    def read(cls, folder: Path, tensors: TensorReader, target: Transformer) -> "HeadVocabulary":
        """Read the vocabulary of a head: `d2t` contains the offset of each of its tokens; raises as `_target_ids`."""
        vocabulary = target.config.vocabulary
        tokens = next((stored_rows(tensors, name) for name in ("lm_head.weight", "d2t") if name in tensors), vocabulary)
        if tokens == vocabulary and "d2t" not in tensors:
            return cls(tokens, None, target)
        ids = _target_ids(folder, tensors.get_integers("d2t", (tokens,)), vocabulary)
        return cls(tokens, None if torch.equal(ids, torch.arange(vocabulary)) else ids.to(target.device), target)

    def load_output(self, tensors: TensorReader, hidden: int) -> OutputLayer:
        """Return the head's own output layer, or the target's for the tokens that the head predicts."""
        if "lm_head.weight" in tensors:
            return self.spread(Linear(tensors.get("lm_head.weight", (self.tokens, hidden))))
        if self.ids is None:
            return self.target.logits
        return self.spread(lambda states: self.target.logits(states)[:, self.ids])

    def spread(self, output: OutputLayer) -> OutputLayer:
        """Return a layer over the target's tokens from one over the head's: -inf for tokens that it does not predict."""
        if self.ids is None:
            return output
        return lambda states: self._spread(output(states))

    def _spread(self, logits: Tensor) -> Tensor:
        spread = logits.new_full((len(logits), self.target.config.vocabulary), float("-inf"))
        spread[:, self.ids] = logits
        return spread


def _target_ids(folder: Path, offsets: Tensor, vocabulary: int) -> Tensor:
    """Return the target's tokens, given the offset of each from the head's token.

    Raises FormatError for tokens outside the vocabulary, and for one that appears twice.
    """
    ids = offsets + torch.arange(len(offsets))
    outside = ((ids < 0) | (ids >= vocabulary)).nonzero()[:, 0]
    if len(outside):
        first = int(outside[0])
        raise FormatError(
            folder,
            "d2t",
            f"expected offsets to tokens from 0 to {vocabulary - 1}. Got {int(offsets[first])} at {first}, which is "
            f"token {int(ids[first])}: are these ids? Subtract each one's own number.",
        )
    values, counts = ids.unique(return_counts=True)
    if len(values) < len(ids):
        twice = int(values[counts > 1][0])
        raise FormatError(
            folder,
            "d2t",
            f"expected different tokens. Got token {twice} more than once: take a complete checkpoint of a head.",
        )
    return ids


def stored_rows(tensors: TensorReader, name: str) -> int:
    """Return the rows of a stored tensor; 1 for a single number, whose shape is refused when it is read."""
    return (tensors.shape(name) or (1,))[0]


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
