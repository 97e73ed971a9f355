"""Reads EAGLE heads from folders: the tensors determine the kind of head, the configuration its norms and inputs."""

import warnings
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError, TreeoptWarning
from treeopt.runtime.drafters.eagle.config import LAYER_IDS_FIELD, EagleConfig, default_layer_ids, read_config
from treeopt.runtime.drafters.eagle.head import (
    Eagle1Input,
    Eagle3Input,
    EagleHead,
    EagleOutput,
    LayerInput,
    StateFusion,
)
from treeopt.runtime.drafters.eagle.mtp import MODULE, load_mtp
from treeopt.runtime.drafters.head_files import HeadVocabulary, check_all_read, check_target, load_head_layer
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import RequestedStates
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer

MASK_HIDDEN = "mask_hidden"
"""Tensor that P-EAGLE heads have, and no others."""
OTHER_HEADS = {
    "markov_": "DSpark (--drafter dspark=DIR)",
    "hidden_norm.": "DFlash (--drafter dflash=DIR)",
    "mtp": "MTP of another kind",
}
"""Prefixes of tensor names in heads of other kinds."""


def load_eagle(folder: Path | str, target: Transformer, *, layer_ids: tuple[int, ...] | None = None) -> EagleHead:
    """Read a head: EAGLE-3 as SafeAILab, SpecForge, speculators or Model-Optimizer save it, EAGLE-1/2, or MiMo's MTP module from the target's folder.

    Args:
        folder: with `config.json` and `model.safetensors` or `pytorch_model.bin`; nothing in it is executed.
        target: the model that the head was trained for.
        layer_ids: hidden-state layer ids of the target that an EAGLE-3 head reads, 0 the embedding, in the order of
            training; by default those of `config.json`, or 2, L // 2 and L - 3 with a warning. Other heads read the
            last state, and take none.

    Raises TreeoptError if a file is missing, FormatError naming the field or tensor that is wrong, InvalidValueError
    for a head of another target, and for a target that treeopt does not run itself.
    """
    check_target(target)
    folder = Path(folder)
    tensors = TensorReader.open_folder(folder, device=target.device, dtype=target.dtype)
    if any(name.startswith(f"{MODULE}.") for name in tensors):
        _check_no_layer_ids(folder, layer_ids)
        head = load_mtp(folder, target, tensors)
        check_all_read(folder, tensors, "an MTP module", prefix=f"{MODULE}.")
        return head
    if MASK_HIDDEN in tensors:
        raise FormatError(
            folder, MASK_HIDDEN, "expected an EAGLE head. Got P-EAGLE: load it with --drafter p-eagle=DIR."
        )
    head = HeadLoader(folder, target, read_config(folder, target), tensors).load(layer_ids)
    check_all_read(folder, tensors, "an EAGLE head")
    return head


class HeadLoader:
    """Reads the network of an EAGLE head, which a P-EAGLE head shares; raises as `load_eagle`."""

    def __init__(self, folder: Path, target: Transformer, config: EagleConfig, tensors: TensorReader) -> None:
        self._folder = folder
        self._target = target
        self._config = config
        self._layers = config.layers
        self._tensors = tensors
        self._first = "midlayer" if any(name.startswith("midlayer.") for name in tensors) else "layers.0"
        self._eagle3 = f"{self._first}.hidden_norm.weight" in tensors
        self._check_kind()

    def load(self, layer_ids: tuple[int, ...] | None) -> EagleHead:
        tensors, layers = self._tensors, self._layers
        hidden = layers.hidden
        prefixes = [self._first, *(f"layers.{index}" for index in range(1, layers.layers))]
        if "lm_head.weight" not in tensors:
            self._check_width("lm_head.weight")
        vocabulary = HeadVocabulary.read(self._folder, tensors, self._target)
        return EagleHead(
            name=f"EAGLE head {self._folder.name}",
            target=self._target,
            config=layers,
            tokens=vocabulary.tokens,
            embedding=self._embedding(),
            fuse=self._fusion(layer_ids),
            make_input=self._layer_input(),
            layers=tuple(
                load_head_layer(
                    tensors, layers, prefix, 2 * hidden if self._eagle3 and prefix == self._first else hidden
                )
                for prefix in prefixes
            ),
            input_norms=tuple(tensors.get(f"{prefix}.input_layernorm.weight", (hidden,)) for prefix in prefixes[1:]),
            output=EagleOutput(
                config=layers,
                norm=tensors.get("norm.weight", (hidden,)) if self._eagle3 else None,
                normed_feedback=self._eagle3 and self._config.norm_output,
                layer=vocabulary.load_output(tensors, hidden),
            ),
        )

    def _check_kind(self) -> None:
        for prefix, kind in OTHER_HEADS.items():
            if any(name.startswith(prefix) for name in self._tensors):
                raise FormatError(
                    self._folder, prefix.rstrip("._"), f"expected an EAGLE head. Got {kind}: take another checkpoint."
                )
        if self._eagle3:
            return
        needed = f"{self._first}.hidden_norm.weight" if "lm_head.weight" in self._tensors else "fc.weight"
        if needed not in self._tensors:
            reason = "this tensor is missing, which EAGLE heads have: take a complete checkpoint of one."
            raise FormatError(self._folder, needed, reason)

    def _embedding(self) -> Tensor:
        target, layers, name = self._target, self._layers, "embed_tokens.weight"
        if name in self._tensors:
            return self._tensors.get(name, (layers.vocabulary, layers.hidden))
        self._check_width(name)
        return target.weights.embedding

    def _check_width(self, name: str) -> None:
        """Raise InvalidValueError if a tensor of the target, which the head shares, does not fit."""
        if self._layers.hidden != self._target.config.hidden:
            raise InvalidValueError(
                f"hidden_size: expected {self._target.config.hidden}, which {self._target.name} has, because the head "
                f"has no {name}. Got {self._layers.hidden}: take a head that was trained on this target."
            )

    def _fusion(self, layer_ids: tuple[int, ...] | None) -> StateFusion:
        tensors, hidden, width = self._tensors, self._layers.hidden, self._target.config.hidden
        if not self._eagle3 or self._config.last_state:
            _check_no_layer_ids(self._folder, layer_ids)
            self._check_width("fc.weight of its own for the target's states")
            return StateFusion(requested_states=RequestedStates(last=True, all_tokens=True), config=self._layers)
        columns = (tensors.shape("fc.weight") or (1,))[-1]
        if columns % width:
            raise InvalidValueError(
                f"fc.weight: expected states of {width} numbers, which {self._target.name} has. "
                f"Got {columns} columns: take a head that was trained on this target."
            )
        layer_ids = self._layer_ids(columns // width, layer_ids)
        norms = [f"fc_norm.{index}.weight" for index in range(len(layer_ids))]
        separate_norms = self._config.fc_norm or norms[0] in tensors
        joint_norm = self._config.norm_before_fc or "input_norm.weight" in tensors
        if separate_norms and joint_norm:
            raise FormatError(
                self._config.path,
                "norm_before_fc",
                "expected no fc_norm with it: states are normed one by one or together. Got both: leave one out.",
            )
        return StateFusion(
            requested_states=RequestedStates(layer_ids=layer_ids, all_tokens=True),
            config=self._layers,
            each_norm=tuple(tensors.get(name, (width,)) for name in norms) if separate_norms else (),
            norm=tensors.get("input_norm.weight", (columns,)) if joint_norm else None,
            fc=self._linear("fc", hidden, columns),
        )

    def _layer_ids(self, count: int, layer_ids: tuple[int, ...] | None) -> tuple[int, ...]:
        layers = len(self._target.weights.layers)
        if layer_ids is None:
            layer_ids = self._config.layer_ids
        if layer_ids is None:
            layer_ids = default_layer_ids(layers)
            warnings.warn(
                TreeoptWarning(
                    f"{self._config.path}: {LAYER_IDS_FIELD}: is missing, so the hidden states with layer ids {layer_ids} are read. "
                    "If few tokens are accepted, name in that field, or with --eagle-layers (layer_ids= in Python), those "
                    "that the head was trained on."
                ),
                stacklevel=4,
            )
        if len(layer_ids) != count or not all(0 <= layer_id <= layers for layer_id in layer_ids):
            raise InvalidValueError(
                f"layers: expected {count} hidden-state layer ids from 0 to {layers}, which fc.weight reads of "
                f"{self._target.name}. Got {layer_ids}: take a head that was trained on this target, or name its layer ids "
                "with --eagle-layers."
            )
        return layer_ids

    def _layer_input(self) -> Callable[[Tensor, Tensor], LayerInput]:
        tensors, hidden = self._tensors, self._layers.hidden
        if not self._eagle3:
            return Eagle1Input(fc=self._linear("fc", hidden, 2 * hidden))
        normed = self._config.norm_before_residual
        if normed is None and self._config.speculators:
            warnings.warn(
                TreeoptWarning(
                    f"{self._config.path}: norm_before_residual: is missing, and is taken as false, which engines differ "
                    "in. Where few tokens are accepted, add it as true."
                ),
                stacklevel=4,
            )
        return Eagle3Input(
            config=self._layers,
            embedding_norm=tensors.get(f"{self._first}.input_layernorm.weight", (hidden,)),
            hidden_norm=tensors.get(f"{self._first}.hidden_norm.weight", (hidden,)),
            normed_residual=bool(normed),
        )

    def _linear(self, name: str, outputs: int, inputs: int) -> Linear:
        tensors, bias = self._tensors, f"{name}.bias"
        return Linear(
            tensors.get(f"{name}.weight", (outputs, inputs)),
            tensors.get(bias, (outputs,)) if bias in tensors else None,
        )


def _check_no_layer_ids(folder: Path, layer_ids: tuple[int, ...] | None) -> None:
    """Raise InvalidValueError for layer ids of a head that reads the last state."""
    if layer_ids is not None:
        raise InvalidValueError(
            f"layers: expected none, because the head in {folder} reads the target's last state. Got {layer_ids}: leave out "
            "--eagle-layers."
        )
