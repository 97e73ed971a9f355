"""What a decoder must know of a transformers model, read from its configuration."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from treeopt.errors import TreeoptError
from treeopt.runtime.models.model import TRAINED_LENGTH

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
ADVICE = "Use a model with rotary or learned positions whose layers are all attention."


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSizes:
    """Sizes of a model."""

    vocabulary: int
    """Logits of a token; a padded tail is counted."""
    max_positions: int
    """Longest text: what the model was trained for, or up to where its attention or its positions stay the same."""
    limited_by: str
    """What limits a text."""
    end_tokens: tuple[int, ...]
    """Tokens that end a text."""
    sliding_window: int | None
    """Tokens, its own included, that a token sees in layers with sliding attention; None without such layers."""
    every_layer_slides: bool
    """Whether no layer sees the whole text."""
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
    kinds = getattr(config, "layer_types", None)
    limits = {
        TRAINED_LENGTH: _trained_length(config, name),
        "attention chunk": _chunk(config, kinds),
        "original length": _first_rotations(config),
    }
    limited_by, longest = min(((limit, length) for limit, length in limits.items() if length), key=itemgetter(1))
    skeleton = _skeleton(model)
    return AdapterSizes(
        vocabulary=skeleton.get_output_embeddings().out_features,
        max_positions=longest,
        limited_by=limited_by,
        end_tokens=_end_tokens(model, config),
        sliding_window=_sliding_window(config, kinds),
        every_layer_slides=kinds is None or set(kinds) == {"sliding_attention"},
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


def _sliding_window(config: Any, kinds: Sequence[str] | None) -> int | None:
    """Return the sliding window; without a list of kinds, every layer has one where any has."""
    if (kinds is not None and "sliding_attention" not in kinds) or getattr(config, "use_sliding_window", True) is False:
        return None
    window = getattr(config, "sliding_window", None)
    return window if isinstance(window, int) else None


def _chunk(config: Any, kinds: Sequence[str] | None) -> int | None:
    """Return the length of chunks beyond which no token sees, as in Llama 4: our masks hide nothing between them."""
    if kinds is not None and "chunked_attention" not in kinds:
        return None
    chunk = getattr(config, "attention_chunk_size", None)
    return chunk if isinstance(chunk, int) else None


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
