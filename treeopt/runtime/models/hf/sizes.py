"""What a decoder must know of a transformers model, read from its configuration."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from treeopt.errors import TreeoptError

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
ADVICE = "Use a model with rotary or learned positions whose layers are all attention."
SLIDING = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSizes:
    """Sizes of a model."""

    vocabulary: int
    """Logits of a token; a padded tail is counted."""
    max_positions: int
    """Longest text: what the model was trained for, or the least of its sliding windows."""
    end_tokens: tuple[int, ...]
    """Tokens that end a text."""
    sliding_window: int | None
    """Tokens that a layer with a sliding window looks back; None when every layer sees the whole text."""
    parameters: int
    """Weights, each counted once, as many as before they were quantised."""
    cached_numbers: int
    """Numbers that a cache keeps of a token, in layers of ordinary attention; 0 where the configuration is another."""


def sizes_of(model: Any, name: str) -> AdapterSizes:
    """Return the sizes of a `PreTrainedModel`.

    Raises TreeoptError for a model that cannot go back to an earlier text or whose longest text is not known.
    """
    config = model.config.get_text_config()
    _refuse_unsuitable(model, config, name)
    window = _window(config)
    limits = [limit for limit in (_trained_length(config, name), window, _first_rotations(config)) if limit]
    skeleton = _skeleton(model)
    return AdapterSizes(
        vocabulary=skeleton.get_output_embeddings().out_features,
        max_positions=min(limits),
        end_tokens=_end_tokens(model, config),
        sliding_window=window,
        parameters=sum(weight.numel() for weight in skeleton.parameters()),
        cached_numbers=_cached_numbers(config),
    )


def _cached_numbers(config: Any) -> int:
    layers, heads, hidden = (
        getattr(config, name, None) or 0 for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or hidden // max(1, heads)
    return int(2 * layers * key_value_heads * head_size)


def _refuse_unsuitable(model: Any, config: Any, name: str) -> None:
    """Refuse what a small tree may not show, or would show less clearly."""
    if getattr(model, "_is_stateful", False):
        reason = "keeps a state that has read every token, not keys and values of each"
    elif getattr(config, "alibi", config.model_type == "bloom"):
        reason = "has ALiBi biases, which go by a token's place in the cache"
    elif "local" in getattr(config, "attention_layers", ()) or getattr(config, "attn_temperature_tuning", False):
        reason = "has attention that goes by a token's place in the cache"
    else:
        return
    raise TreeoptError(f"{name}: cannot take a tree mask: {config.model_type} {reason}. {ADVICE}")


def _trained_length(config: Any, name: str) -> int:
    for field in LENGTHS:
        length = getattr(config, field, None)
        if isinstance(length, int):
            return length
    raise TreeoptError(f"{name}: config.json: expected the longest text as one of {', '.join(LENGTHS)}. Got none.")


def _window(config: Any) -> int | None:
    """Return the least window of its layers: within it, a mask that hides nothing older is right for all of them."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and not any(kind in SLIDING for kind in kinds):
        return None
    if getattr(config, "use_sliding_window", True) is False:
        return None
    windows = [getattr(config, field, None) for field in ("sliding_window", "attention_chunk_size")]
    return min((window for window in windows if isinstance(window, int)), default=None)


def _first_rotations(config: Any) -> int | None:
    """Return up to which length a text keeps its rotations where longer ones have others, as in LongRoPE."""
    for rope in _ropes(config):
        if rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
            length = rope.get("original_max_position_embeddings")
            return length or getattr(config, "original_max_position_embeddings", None)
    return None


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the rotary settings, one for each kind of layer where they differ."""
    for field in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, field, None)
        if isinstance(rope, dict):
            yield rope
            yield from (inner for inner in rope.values() if isinstance(inner, dict))


def _end_tokens(model: Any, config: Any) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    end = getattr(generation, "eos_token_id", None)
    if end is None:
        end = getattr(config, "eos_token_id", None)
    return tuple(end) if isinstance(end, list | tuple) else () if end is None else (end,)


def _skeleton(model: Any) -> Any:
    """Return the model without weights: quantised, offloaded and split ones no longer show their shapes."""
    config = deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        return type(model)(config)
