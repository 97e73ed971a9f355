"""Reads EAGLE heads from folders: the tensors determine the kind of head, the configuration its norms and inputs."""

import warnings
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from treeopt.errors import InvalidValueError, TreeoptWarning
from treeopt.runtime.drafters.eagle.head import (
    Eagle1Input,
    Eagle3Input,
    EagleHead,
    FirstInput,
    MTPInput,
    StateFusion,
)
from treeopt.runtime.drafters.head_files import HeadFolder, HeadVocabulary
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.model import RequestedStates
from treeopt.runtime.models.transformer import Transformer

LAYER_IDS_FIELD = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
MTP_MODULE = "model.mtp_layers.0"
"""The first multi-token prediction (MTP) module in MiMo's checkpoints; engines reuse it for deeper tokens (Xiaomi, 2025)."""
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
    source = HeadFolder(folder, target, NESTED)
    if any(name.startswith(f"{MTP_MODULE}.") for name in source.tensors):
        _check_no_layer_ids(source, layer_ids)
        head = _load_mtp(source)
        source.check_all_read("an MTP module", prefix=f"{MTP_MODULE}.")
        return head
    if MASK_HIDDEN in source.tensors:
        raise source.tensor_error(
            MASK_HIDDEN, "expected an EAGLE head. Got P-EAGLE: load it with --drafter p-eagle=DIR."
        )
    head = EagleLoader(source).load(layer_ids)
    source.check_all_read("an EAGLE head")
    return head


def default_layer_ids(layers: int) -> tuple[int, ...]:
    """Return the ids that a head reads if its file lists none: an early, a middle and a late state (Li et al., 2025)."""
    return 2, layers // 2, layers - 3


class EagleLoader:
    """Reads the network of an EAGLE head, which a P-EAGLE head shares; raises as `load_eagle`."""

    def __init__(self, folder: HeadFolder) -> None:
        self._folder, self._target, self._tensors = folder, folder.target, folder.tensors
        self._sizes = _read_sizes(folder)
        self._first = "midlayer" if any(name.startswith("midlayer.") for name in folder.tensors) else "layers.0"
        self._eagle3 = f"{self._first}.hidden_norm.weight" in folder.tensors
        folder.refuse_kinds(OTHER_HEADS, "an EAGLE head")
        needed = f"{self._first}.hidden_norm.weight" if "lm_head.weight" in folder.tensors else "fc.weight"
        if not self._eagle3 and needed not in folder.tensors:
            reason = "this tensor is missing, which EAGLE heads have: take a complete checkpoint of one."
            raise folder.tensor_error(needed, reason)

    def load(self, layer_ids: tuple[int, ...] | None) -> EagleHead:
        folder, tensors, sizes, hidden = self._folder, self._tensors, self._sizes, self._sizes.hidden
        prefixes = [self._first, *(f"layers.{index}" for index in range(1, sizes.layers))]
        if "lm_head.weight" not in tensors:
            self._check_width("lm_head.weight")
        vocabulary = HeadVocabulary.read(folder)
        return EagleHead(
            name=f"EAGLE head {folder.path.name}",
            target=self._target,
            config=sizes,
            tokens=vocabulary.tokens,
            embedding=self._embedding(),
            fuse=self._fusion(layer_ids),
            make_input=self._first_input(),
            layers=tuple(
                folder.layer(sizes, prefix, 2 * hidden if self._eagle3 and prefix == self._first else hidden)
                for prefix in prefixes
            ),
            input_norms=tuple(tensors.get(f"{prefix}.input_layernorm.weight", (hidden,)) for prefix in prefixes[1:]),
            norm=tensors.get("norm.weight", (hidden,)) if self._eagle3 else None,
            normed_feedback=self._eagle3 and bool(folder.flag("norm_output")),
            output_layer=vocabulary.load_output(tensors, hidden),
        )

    def _embedding(self) -> Tensor:
        name = "embed_tokens.weight"
        if name in self._tensors:
            return self._tensors.get(name, (self._sizes.vocabulary, self._sizes.hidden))
        self._check_width(name)
        return self._target.weights.embedding

    def _check_width(self, name: str) -> None:
        """Raise InvalidValueError if a tensor of the target, which the head shares, does not fit."""
        because = f", because the head has no {name}"
        self._folder.check_size("hidden_size", self._sizes.hidden, self._target.config.hidden, because)

    def _fusion(self, layer_ids: tuple[int, ...] | None) -> StateFusion:
        folder, tensors, width = self._folder, self._tensors, self._target.config.hidden
        if not self._eagle3 or folder.flag("use_aux_hidden_state") is False:
            _check_no_layer_ids(folder, layer_ids)
            self._check_width("fc.weight of its own for the target's states")
            return StateFusion(requested_states=RequestedStates(last=True, all_tokens=True), config=self._sizes)
        columns = (tensors.shape("fc.weight") or (1,))[-1]
        if columns % width:
            raise InvalidValueError(
                f"fc.weight: expected states of {width} numbers, which {self._target.name} has. "
                f"Got {columns} columns: take a head that was trained on this target."
            )
        layer_ids = self._layer_ids(columns // width, layer_ids)
        norms = [f"fc_norm.{index}.weight" for index in range(len(layer_ids))]
        separate_norms = folder.flag("fc_norm") or norms[0] in tensors
        joint_norm = folder.flag("norm_before_fc") or "input_norm.weight" in tensors
        if separate_norms and joint_norm:
            raise folder.error(
                "norm_before_fc",
                "expected no fc_norm with it: states are normed one by one or together. Got both: leave one out.",
            )
        return StateFusion(
            requested_states=RequestedStates(layer_ids=layer_ids, all_tokens=True),
            config=self._sizes,
            each_norm=tuple(tensors.get(name, (width,)) for name in norms) if separate_norms else (),
            norm=tensors.get("input_norm.weight", (columns,)) if joint_norm else None,
            fc=folder.linear("fc", self._sizes.hidden, columns),
        )

    def _layer_ids(self, count: int, layer_ids: tuple[int, ...] | None) -> tuple[int, ...]:
        layers, path = len(self._target.weights.layers), self._folder.config_path
        default = default_layer_ids(layers)
        if layer_ids is None:
            layer_ids = self._folder.layer_ids(LAYER_IDS_FIELD)
            if layer_ids == tuple(layer_id + 1 for layer_id in default):
                layer_ids = default  # saved for an engine that reads the ids as they are
        if layer_ids is None:
            layer_ids = default
            warnings.warn(
                TreeoptWarning(
                    f"{path}: {LAYER_IDS_FIELD}: is missing, so the hidden states with layer ids {layer_ids} are read. "
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

    def _first_input(self) -> FirstInput:
        folder, hidden = self._folder, self._sizes.hidden
        if not self._eagle3:
            return Eagle1Input(fc=folder.linear("fc", hidden, 2 * hidden))
        normed = folder.flag("norm_before_residual")
        if normed is None and folder.speculators:
            warnings.warn(
                TreeoptWarning(
                    f"{folder.config_path}: norm_before_residual: is missing, and is taken as false, which engines differ "
                    "in. Where few tokens are accepted, add it as true."
                ),
                stacklevel=4,
            )
        return Eagle3Input(
            config=self._sizes,
            embedding_norm=self._tensors.get(f"{self._first}.input_layernorm.weight", (hidden,)),
            hidden_norm=self._tensors.get(f"{self._first}.hidden_norm.weight", (hidden,)),
            normed_residual=bool(normed),
        )


def _read_sizes(folder: HeadFolder) -> ModelConfig:
    kinds = folder.stored_sizes.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        raise folder.error(
            "layer_types", "expected full attention in every layer. Got sliding attention: take another checkpoint."
        )
    return folder.read_sizes()


def _load_mtp(folder: HeadFolder) -> EagleHead:
    """Read the module in the target's own folder; embedding and output layer are the target's."""
    config, target, tensors = replace(_read_sizes(folder), layers=1), folder.target, folder.tensors
    hidden = config.hidden

    def norm(name: str) -> Tensor:
        return tensors.get(f"{MTP_MODULE}.{name}_layernorm.weight", (hidden,))

    return EagleHead(
        name=f"MTP module {folder.path.name}",
        target=target,
        config=config,
        tokens=config.vocabulary,
        embedding=target.weights.embedding,
        first_embedding_read=False,
        fuse=StateFusion(requested_states=RequestedStates(last=True, all_tokens=True), config=config),
        make_input=MTPInput(
            config=config,
            hidden_norm=norm("hidden"),
            embedding_norm=norm("token"),
            fc=folder.linear(f"{MTP_MODULE}.input_proj", hidden, 2 * hidden),
            input_norm=norm("input"),
        ),
        layers=(folder.layer(config, MTP_MODULE, hidden),),
        input_norms=(),
        norm=norm("final"),
        normed_feedback=True,
        output_layer=target.logits,
    )


def _check_no_layer_ids(folder: HeadFolder, layer_ids: tuple[int, ...] | None) -> None:
    """Raise InvalidValueError for layer ids of a head that reads the last state."""
    if layer_ids is not None:
        raise InvalidValueError(
            f"layers: expected none, because the head in {folder.path} reads the target's last state. Got {layer_ids}: "
            "leave out --eagle-layers."
        )
