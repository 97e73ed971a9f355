"""Reading heads on the target from folders: configurations, vocabularies, layers, and what must not be left unread."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import CONFIG, ModelConfig, parse_config
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Layer, Transformer
from treeopt.runtime.models.weights import build_layer

UNUSED = re.compile(r"t2d|verifier_.*|(.*\.)?rotary_emb\.inv_freq")
"""Tensors that heads are stored with, but do not need: the inverse of d2t, parts of the target, and rotations."""
SPECULATORS = "transformer_layer_config"
"""The sizes of a head in the layout of speculators."""
OutputLayer = Callable[[Tensor], Tensor]
"""From states (n, inputs) to logits (n, V)."""


class HeadFolder:
    """A folder with a head: its `config.json`, its weights, and the target that it was trained for.

    A field may also be in the mapping `nested`, and yields to those outside; null stands for no field.  Weights are
    read onto the target's device, in its dtype.  Nothing in the folder is executed.

    Raises InvalidValueError for a target that treeopt does not run itself, TreeoptError if a file is missing,
    FormatError for one that cannot be read.
    """

    def __init__(self, path: Path | str, target: Transformer, nested: str = "") -> None:
        if not isinstance(target, Transformer):
            raise InvalidValueError(
                "target: expected one that treeopt runs itself, whose states and embedding a head reads. "
                f"Got {type(target).__name__}: choose a drafter without heads.",
                field="target",
            )
        self.path, self.target = Path(path), target
        self.config_path = self.path / CONFIG
        self.content = read_object(self.config_path)
        self.tensors = TensorReader.open_folder(self.path, device=target.device, dtype=target.dtype)
        self.speculators = SPECULATORS in self.content
        """Whether the sizes are in a mapping of their own."""
        inner = self.content.get(nested) or {}
        if not isinstance(inner, dict):
            raise self.error(nested, f"expected fields with names. Got {inner!r:.60}.")
        self._values = {name: value for name, value in (*inner.items(), *self.content.items()) if value is not None}

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

    def mask_token(self, tokens: int, names: Sequence[str] = ("mask_token_id",)) -> int:
        """Return the token of a mask, below `tokens`, from the first of the fields that the file has."""
        for name in names:
            token = self.integer(name)
            if token is not None:
                if not 0 <= token < tokens:
                    raise self.error(name, f"expected a token from 0 to {tokens - 1}. Got {token}.")
                return token
        raise self.error(names[0], "expected the token of a mask. It is missing: add the one of the training.")

    def error(self, name: str, reason: str) -> FormatError:
        """Return the error for a field of `config.json`."""
        return FormatError(self.config_path, name, reason)

    def tensor_error(self, name: str, reason: str) -> FormatError:
        return FormatError(self.path, name, reason)

    def own_fields(self, kind: str) -> Fields:
        """Return the other fields of treeopt's own heads.

        Raises FormatError for heads of another kind, InvalidValueError for those of a target of another size.
        """
        fields = Fields(self.config_path, self.content)
        stored_kind = fields.text("kind")
        if stored_kind != kind:
            raise fields.error("kind", f"expected {kind!r}. Got {stored_kind!r}: are these other heads?")
        self.check_size("hidden_size", fields.integer("hidden_size"), self.target.config.hidden)
        self.check_size("vocabulary", fields.integer("vocabulary"), self.target.config.vocabulary)
        return fields

    @property
    def stored_sizes(self) -> dict[str, Any]:
        """The fields of the sizes."""
        sizes = self.content[SPECULATORS] if self.speculators else self.content
        if not isinstance(sizes, dict):
            raise self.error(SPECULATORS, f"expected fields with names. Got {sizes!r:.60}.")
        return sizes

    def read_sizes(self) -> ModelConfig:
        """Return the sizes of the head's layers; raises InvalidValueError for another vocabulary than the target's.

        The architecture is ignored, because the tensors show which biases and norms a head has.
        """
        target = self.target.config
        content = {"vocab_size": target.vocabulary, **self.stored_sizes, "architectures": ["LlamaForCausalLM"]}
        config = parse_config(self.config_path, content)
        self.check_size("vocab_size", config.vocabulary, target.vocabulary)
        # heads are trained on short sequences and used on longer ones
        return replace(config, max_positions=target.max_positions)

    def layer_ids(self, name: str) -> tuple[int, ...] | None:
        """Return hidden-state layer ids of the target, 0 the embedding; None if the file lists none.

        `speculators` lists them.  Others list layers whose output is read, one less.
        """
        listed = self.get(name)
        if listed is None:
            return None
        if not isinstance(listed, list) or not listed or not all(type(layer) is int for layer in listed):
            raise self.error(name, f"expected a list of layers. Got {listed!r:.60}.")
        return tuple(listed) if self.speculators else tuple(layer + 1 for layer in listed)

    def check_size(self, name: str, size: int, expected: int, because: str = "") -> None:
        """Raise InvalidValueError for a size that differs from the target's."""
        if size != expected:
            raise InvalidValueError(
                f"{name}: expected {expected}, which {self.target.name} has{because}. Got {size}: take a head that was "
                "trained on this target."
            )

    def refuse_kinds(self, kinds: Mapping[str, str], expected: str, ignored: str = "") -> None:
        """Raise FormatError for a tensor of another kind of head; `ignored` may precede the prefixes of its name."""
        for name in self.tensors:
            for prefix, kind in kinds.items():
                if name.removeprefix(ignored).startswith(prefix):
                    raise self.tensor_error(name, f"expected {expected}. Got {kind}: take another checkpoint.")

    def check_all_read(self, kind: str, *, prefix: str = "") -> None:
        """Raise FormatError naming a tensor that was not read although it may change what the head predicts."""
        for name in self.tensors.unread:
            if name.startswith(prefix) and not UNUSED.fullmatch(name):
                reason = (
                    f"expected tensors of {kind}. This one is of another network, or of more layers than config.json "
                    "lists: take another checkpoint."
                )
                raise self.tensor_error(name, reason)

    def linear(self, name: str, outputs: int, inputs: int) -> Linear:
        """Return a product with the bias that is stored, if any."""
        bias = f"{name}.bias"
        return Linear(
            self.tensors.get(f"{name}.weight", (outputs, inputs)),
            self.tensors.get(bias, (outputs,)) if bias in self.tensors else None,
        )

    def layer(self, config: ModelConfig, prefix: str, inputs: int) -> Layer:
        """Return a decoder layer whose attention reads `inputs` numbers, with the biases and norms that are stored."""
        attention, mlp, tensors = f"{prefix}.self_attn", f"{prefix}.mlp", self.tensors
        stored = replace(
            config,
            query_key_value_bias=f"{attention}.q_proj.bias" in tensors,
            output_bias=f"{attention}.o_proj.bias" in tensors,
            mlp_bias=f"{mlp}.gate_proj.bias" in tensors or f"{mlp}.down_proj.bias" in tensors,
            head_norms=f"{attention}.q_norm.weight" in tensors,
        )
        return build_layer(tensors, stored, prefix, inputs=inputs)


@dataclass(frozen=True)
class HeadVocabulary:
    """The target's tokens that a head predicts."""

    tokens: int
    ids: Tensor | None
    """int64 (tokens,): the target's token for each of the head's; None if all are numbered alike."""
    target: Transformer

    @classmethod
    def read(cls, folder: HeadFolder) -> "HeadVocabulary":
        """Read the vocabulary of a head: `d2t` contains the offset of each of its tokens.

        Raises FormatError for more tokens than the target has, and as `_target_ids`.
        """
        tensors, target = folder.tensors, folder.target
        vocabulary = target.config.vocabulary
        name = next((name for name in ("lm_head.weight", "d2t") if name in tensors), None)
        tokens = vocabulary if name is None else stored_rows(tensors, name)
        if name is not None and tokens > vocabulary:
            reason = f"expected at most {vocabulary} rows, the tokens of {target.name}. Got {tokens}"
            raise folder.tensor_error(name, f"{reason}: take a head that was trained on this target.")
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


def _target_ids(folder: HeadFolder, offsets: Tensor, vocabulary: int) -> Tensor:
    """Return the target's tokens, given offsets from the head's; FormatError for unknown and repeated ones."""
    ids = offsets + torch.arange(len(offsets))
    outside = ((ids < 0) | (ids >= vocabulary)).nonzero()[:, 0]
    if len(outside):
        first = int(outside[0])
        raise folder.tensor_error(
            "d2t",
            f"expected offsets to tokens from 0 to {vocabulary - 1}. Got {int(offsets[first])} at {first}, which is "
            f"token {int(ids[first])}: are these ids? Subtract each one's own number.",
        )
    values, counts = ids.unique(return_counts=True)
    if len(values) < len(ids):
        twice = int(values[counts > 1][0])
        reason = f"expected different tokens. Got token {twice} more than once: take a complete checkpoint of a head."
        raise folder.tensor_error("d2t", reason)
    return ids


def stored_rows(tensors: TensorReader, name: str) -> int:
    """Return the rows of a stored tensor; 1 for a single number, whose shape is refused when it is read."""
    return (tensors.shape(name) or (1,))[0]
