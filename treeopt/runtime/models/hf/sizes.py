"""The sizes of a transformers model, read from its configuration."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from treeopt.errors import TreeoptError
from treeopt.runtime.models.model import TRAINED_LENGTH, ModelSizes
from treeopt.runtime.models.tree_check import ADVICE

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSizes(ModelSizes):
    """Sizes of a model; its sequences are limited by the length up to which attention and positions stay the same."""

    every_layer_slides: bool
    """Whether no layer has full attention."""
    parameters: int
    """Number of weights, counted before quantisation."""


def read_adapter_sizes(model: Any, name: str) -> AdapterSizes:
    """Return the sizes of a `PreTrainedModel`.

    Raises TreeoptError for a model whose cache cannot be rolled back or whose maximum sequence length is unknown.
    """
    config = model.config.get_text_config()
    _refuse_unsuitable(model, config, name)
    kinds = getattr(config, "layer_types", None)
    limits = {
        TRAINED_LENGTH: _read_trained_length(config, name),
        "attention chunk": _read_chunk(config, kinds),
        "original length": _read_original_length(config),
    }
    limited_by, longest = min(((limit, length) for limit, length in limits.items() if length), key=itemgetter(1))
    skeleton = _build_skeleton(model)
    return AdapterSizes(
        vocabulary=skeleton.get_output_embeddings().out_features,
        max_positions=longest,
        limited_by=limited_by,
        end_tokens=_read_end_tokens(model, config),
        sliding_window=_read_sliding_window(config, kinds),
        every_layer_slides=kinds is None or set(kinds) == {"sliding_attention"},
        parameters=sum(weight.numel() for weight in skeleton.parameters()),
    )


def _refuse_unsuitable(model: Any, config: Any, name: str) -> None:
    """Refuse models whose fault the check with a small tree may miss, or would describe less clearly."""
    if getattr(model, "_is_stateful", False):
        reason = "keeps a recurrent state instead of keys and values"
    elif getattr(config, "alibi", config.model_type == "bloom"):
        reason = "has ALiBi biases, which depend on a token's slot in the cache"
    elif "local" in getattr(config, "attention_layers", ()) or getattr(config, "attn_temperature_tuning", False):
        reason = "has attention that depends on a token's slot in the cache"
    else:
        return
    raise TreeoptError(f"{name}: cannot take a tree mask: {config.model_type} {reason}. {ADVICE}")


def _read_trained_length(config: Any, name: str) -> int:
    """Return the trained length, or the longer one that YaRN scales rotations to."""
    for field in LENGTHS:
        length = getattr(config, field, None)
        if isinstance(length, int):
            yarn = [rope for rope in _rope_settings(config) if _rope_type(rope) == "yarn" and rope.get("factor")]
            original = "original_max_position_embeddings"
            return max([length, *(int(rope["factor"] * (rope.get(original) or length)) for rope in yarn)])
    raise TreeoptError(
        f"{name}: config.json: expected the maximum sequence length in one of {', '.join(LENGTHS)}. Got none."
    )


def _read_sliding_window(config: Any, kinds: Sequence[str] | None) -> int | None:
    """Return the sliding window; without a list of layer kinds, it holds for every layer."""
    if (kinds is not None and "sliding_attention" not in kinds) or getattr(config, "use_sliding_window", True) is False:
        return None
    window = getattr(config, "sliding_window", None)
    return window if isinstance(window, int) else None


def _read_chunk(config: Any, kinds: Sequence[str] | None) -> int | None:
    """Return the length of attention chunks, as in Llama 4, which treeopt's masks do not implement."""
    if kinds is not None and "chunked_attention" not in kinds:
        return None
    chunk = getattr(config, "attention_chunk_size", None)
    return chunk if isinstance(chunk, int) else None


def _read_original_length(config: Any) -> int | None:
    """Return the length beyond which a sequence would change its rotations, as in LongRoPE."""
    for rope in _rope_settings(config):
        if _rope_type(rope) in ("longrope", "su"):
            length = rope.get("original_max_position_embeddings")
            return length or getattr(config, "original_max_position_embeddings", None)
    return None


def _rope_settings(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the rotary settings, per kind of layer if they differ."""
    for field in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, field, None)
        if isinstance(rope, dict):
            yield rope
            yield from (inner for inner in rope.values() if isinstance(inner, dict))


def _rope_type(rope: dict[str, Any]) -> object:
    return rope.get("rope_type", rope.get("type"))


def _read_end_tokens(model: Any, config: Any) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    end = getattr(generation, "eos_token_id", None)
    if end is None:
        end = getattr(config, "eos_token_id", None)
    return tuple(end) if isinstance(end, list | tuple) else () if end is None else (end,)


def _build_skeleton(model: Any) -> Any:
    """Return the model without weights, whose shapes quantised, offloaded and split weights no longer have."""
    config = deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        return type(model)(config)
