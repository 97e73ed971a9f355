"""What `config.json` of a head says: sizes of its layers, where norms stand, and which states of the target it reads."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import CONFIG, ModelConfig, parse_config
from treeopt.runtime.models.transformer import Transformer

TAP_IDS = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
SPECULATORS = "transformer_layer_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """What is read of the file."""

    path: Path
    layers: ModelConfig
    """Of the head's own layers; vocabulary and longest text are the target's."""
    boundaries: tuple[int, ...] | None
    """Of the target's residual stream; None where the file names none."""
    norm_before_residual: bool | None
    """None where the file does not say."""
    norm_before_fc: bool
    norm_output: bool
    fc_norm: bool
    last_state: bool
    """Whether an EAGLE-3 head reads the target's last state, as EAGLE-1 does, and not those of boundaries."""
    speculators: bool
    """Whether the file is of the layout that keeps the sizes in `transformer_layer_config`."""


def read_config(folder: Path, target: Transformer) -> EagleConfig:
    """Return what the configuration of a head's folder says.

    Raises TreeoptError where it is missing, FormatError naming the field that is wrong, InvalidValueError for a head of
    another vocabulary.
    """
    path = folder / CONFIG
    content = read_object(path)
    fields = Fields(path, content)
    speculators = SPECULATORS in content
    nested = content.get(NESTED) or {}
    if not isinstance(nested, dict):
        raise fields.error(NESTED, f"expected fields with names. Got {nested!r}.")

    def flag(name: str) -> bool | None:
        found = content.get(name, nested.get(name))
        if found is not None and not isinstance(found, bool):
            raise fields.error(name, f"expected true or false. Got {found!r}.")
        return found

    return EagleConfig(
        path=path,
        layers=_layers(path, fields, content, target, speculators=speculators),
        boundaries=_boundaries(fields, content, nested, len(target.weights.layers), speculators=speculators),
        norm_before_residual=flag("norm_before_residual"),
        norm_before_fc=bool(flag("norm_before_fc")),
        norm_output=bool(flag("norm_output")),
        fc_norm=bool(flag("fc_norm")),
        last_state=flag("use_aux_hidden_state") is False,
        speculators=speculators,
    )


def _layers(
    path: Path, fields: Fields, content: dict[str, Any], target: Transformer, *, speculators: bool
) -> ModelConfig:
    """Return the sizes; a head says by its tensors where it has biases and norms, whatever architecture it names."""
    sizes = content[SPECULATORS] if speculators else content
    if not isinstance(sizes, dict):
        raise fields.error(SPECULATORS, f"expected fields with names. Got {sizes!r}.")
    source = f"{path}: {SPECULATORS}" if speculators else path
    found = parse_config(source, {**sizes, "architectures": ["LlamaForCausalLM"]})
    if found.vocabulary != target.config.vocabulary:
        raise InvalidValueError(
            f"vocab_size: expected a head for {target.config.vocabulary}, which {target.name} has. "
            f"Got {found.vocabulary}: take a head that was trained on this target."
        )
    # positions are computed as far as texts go: heads are trained on short ones and used on longer
    return replace(found, max_positions=target.config.max_positions)


def _boundaries(
    fields: Fields, content: dict[str, Any], nested: dict[str, Any], layers: int, *, speculators: bool
) -> tuple[int, ...] | None:
    """Return the boundaries that the file names.

    `speculators` names boundaries.  Others name layers whose output is read, boundary id + 1; but where these are the
    default boundaries themselves, the head was saved for an engine that reads them so.
    """
    listed = content.get(TAP_IDS, nested.get(TAP_IDS))
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(type(each) is int for each in listed):
        raise fields.error(TAP_IDS, f"expected a list of layers. Got {listed!r}.")
    if speculators or tuple(listed) == default_boundaries(layers):
        return tuple(listed)
    return tuple(each + 1 for each in listed)


def default_boundaries(layers: int) -> tuple[int, ...]:
    """Return what heads read that say nothing else: an early state, the middle one and a late one (Li et al., 2025)."""
    return 2, layers // 2, layers - 3
