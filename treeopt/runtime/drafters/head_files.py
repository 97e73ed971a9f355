"""Reading heads on the target from folders: configurations, vocabularies, layers, and what must not be left unread."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import CONFIG, ModelConfig
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Layer, Transformer
from treeopt.runtime.models.weights import build_layer

UNUSED = re.compile(r"t2d|verifier_.*|(.*\.)?rotary_emb\.inv_freq")
"""Tensors that heads are stored with, but do not need: the inverse of d2t, parts of the target, and rotations."""
OutputLayer = Callable[[Tensor], Tensor]
"""From states (n, inputs) to logits (n, V)."""


def open_heads(folder: Path, kind: str, target: Transformer) -> tuple[Fields, TensorReader]:
    """Open a folder with treeopt's own heads: return the other fields of its `config.json`, and its weights.

    Args:
        folder: with both files.
        kind: expected kind of head.
        target: the model that the heads were trained for; the weights are read onto its device, in its dtype.

    Raises TreeoptError if a file is missing, FormatError naming the field that is wrong, InvalidValueError for heads of
    a target of another size.
    """
    fields = Fields(folder / CONFIG, read_object(folder / CONFIG))
    stored_kind = fields.text("kind")
    if stored_kind != kind:
        raise fields.error("kind", f"expected {kind!r}. Got {stored_kind!r}: are these other heads?")
    for name, expected in (("hidden_size", target.config.hidden), ("vocabulary", target.config.vocabulary)):
        size = fields.integer(name)
        if size != expected:
            raise InvalidValueError(
                f"{name}: expected heads for {expected}, which {target.name} has. "
                f"Got {size}: take heads that were trained on this target."
            )
    return fields, TensorReader.open_folder(folder, device=target.device, dtype=target.dtype)


class NestedFields:
    """The fields of a published head's `config.json`, which may also be in a nested mapping; null stands for no field.

    Args:
        path: of the file, for errors.
        content: of the file; its own fields win over those of the mapping.
        nested: name of the mapping.

    Raises FormatError if the mapping is none.
    """

    def __init__(self, path: Path, content: dict[str, Any], nested: str) -> None:
        self._fields = Fields(path, content)
        inner = content.get(nested) or {}
        if not isinstance(inner, dict):
            raise self.error(nested, f"expected fields with names. Got {inner!r:.60}.")
        self._values = {name: value for name, value in (*inner.items(), *content.items()) if value is not None}

    def get(self, name: str) -> Any:
        """Return a field as it is stored; None if it is missing."""
        return self._values.get(name)

    def flag(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"expected true or false. Got {value!r:.60}.")
        return value

    def integer(self, name: str) -> int | None:
        value = self.get(name)
        if value is not None and type(value) is not int:
            raise self.error(name, f"expected a whole number. Got {value!r:.60}.")
        return value

    def error(self, name: str, reason: str) -> FormatError:
        return self._fields.error(name, reason)


def check_target(target: object) -> None:
    """Raise InvalidValueError for a target that treeopt does not run itself."""
    if not isinstance(target, Transformer):
        raise InvalidValueError(
            "target: expected one that treeopt runs itself, whose states and embedding a head reads. "
            f"Got {type(target).__name__}: choose a drafter without heads.",
            field="target",
        )


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
        """Read the vocabulary of a head: `d2t` contains the offset of each of its tokens.

        Raises FormatError for more tokens than the target has, and as `_target_ids`.
        """
        vocabulary = target.config.vocabulary
        name = next((name for name in ("lm_head.weight", "d2t") if name in tensors), None)
        tokens = vocabulary if name is None else stored_rows(tensors, name)
        if name is not None and tokens > vocabulary:
            raise FormatError(
                folder,
                name,
                f"expected at most {vocabulary} rows, the tokens of {target.name}. Got {tokens}: take a head that was "
                "trained on this target.",
            )
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


def check_all_read(folder: Path, tensors: TensorReader, kind: str, *, prefix: str = "") -> None:
    """Raise FormatError naming a tensor that was not read although it may change what the head predicts.

    Args:
        folder: of the head.
        tensors: from which the head was read.
        kind: of the head.
        prefix: of the head's tensors, if the folder contains others.
    """
    for name in tensors.unread:
        if name.startswith(prefix) and not UNUSED.fullmatch(name):
            raise FormatError(
                folder,
                name,
                f"expected tensors of {kind}. This one is of another network, or of more layers than config.json lists: "
                "take another checkpoint.",
            )


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
