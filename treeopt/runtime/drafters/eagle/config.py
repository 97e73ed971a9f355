"""The configuration of an EAGLE head: sizes of its layers, its norms, and the target's hidden states that it reads."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treeopt.errors import InvalidValueError
from treeopt.files.json_file import read_object
from treeopt.runtime.drafters.head_files import NestedFields
from treeopt.runtime.models.config import CONFIG, ModelConfig, parse_config
from treeopt.runtime.models.transformer import Transformer

LAYER_IDS_FIELD = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
SPECULATORS = "transformer_layer_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """The fields of `config.json` that are read."""

    path: Path
    layers: ModelConfig
    """Of the head's own layers; vocabulary and longest sequence are the target's."""
    layer_ids: tuple[int, ...] | None
    """Hidden-state layer ids of the target, 0 the embedding; None if the file lists none."""
    norm_before_residual: bool | None
    """None if the file does not have it."""
    norm_before_fc: bool
    norm_output: bool
    fc_norm: bool
    last_state: bool
    """Whether an EAGLE-3 head reads the target's last state, as EAGLE-1 does, instead of those of `layer_ids`."""
    speculators: bool
    """Whether the sizes are in `transformer_layer_config`."""


def read_config(folder: Path, target: Transformer) -> EagleConfig:
    """Read the configuration of a head.

    Raises TreeoptError if it is missing, FormatError naming the field that is wrong, InvalidValueError for a head of
    another vocabulary.
    """
    path = folder / CONFIG
    content = read_object(path)
    fields = NestedFields(path, content, NESTED)
    speculators = SPECULATORS in content
    return EagleConfig(
        path=path,
        layers=_layers(path, fields, content, target, speculators=speculators),
        layer_ids=_layer_ids(fields, len(target.weights.layers), speculators=speculators),
        norm_before_residual=fields.flag("norm_before_residual"),
        norm_before_fc=bool(fields.flag("norm_before_fc")),
        norm_output=bool(fields.flag("norm_output")),
        fc_norm=bool(fields.flag("fc_norm")),
        last_state=fields.flag("use_aux_hidden_state") is False,
        speculators=speculators,
    )


def _layers(
    path: Path, fields: NestedFields, content: dict[str, Any], target: Transformer, *, speculators: bool
) -> ModelConfig:
    """Return the sizes; the architecture is ignored, because the tensors show which biases and norms a head has."""
    sizes = content[SPECULATORS] if speculators else content
    if not isinstance(sizes, dict):
        raise fields.error(SPECULATORS, f"expected fields with names. Got {sizes!r}.")
    kinds = sizes.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        raise fields.error(
            "layer_types", "expected full attention in every layer. Got sliding attention: take another checkpoint."
        )
    source = f"{path}: {SPECULATORS}" if speculators else path
    config = parse_config(source, {**sizes, "architectures": ["LlamaForCausalLM"]})
    if config.vocabulary != target.config.vocabulary:
        raise InvalidValueError(
            f"vocab_size: expected a head for {target.config.vocabulary}, which {target.name} has. "
            f"Got {config.vocabulary}: take a head that was trained on this target."
        )
    # heads are trained on short sequences and used on longer ones
    return replace(config, max_positions=target.config.max_positions)


def _layer_ids(fields: NestedFields, layers: int, *, speculators: bool) -> tuple[int, ...] | None:
    """Return hidden-state layer ids.

    `speculators` lists them.  Others list layers whose output is read, one less; but a file that lists the default ids
    was saved for an engine that reads them as they are.
    """
    listed = fields.get(LAYER_IDS_FIELD)
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        raise fields.error(LAYER_IDS_FIELD, f"expected a list of layers. Got {listed!r}.")
    if speculators or tuple(listed) == default_layer_ids(layers):
        return tuple(listed)
    return tuple(layer + 1 for layer in listed)


def default_layer_ids(layers: int) -> tuple[int, ...]:
    """Return the ids that a head reads if its file lists none: an early, a middle and a late state (Li et al., 2025)."""
    return 2, layers // 2, layers - 3
