"""The architecture of a checkpoint of the Llama family, read from its `config.json`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError
from treeopt.files.fields import Fields
from treeopt.runtime.models.model import ModelSizes
from treeopt.runtime.models.rotary import RopeScaling, YarnScaling, parse_rope

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MiMoForCausalLM")
ALIASES = {"MiMoForCausalLM": "Qwen2ForCausalLM"}
"""Architectures that equal another; MiMo's multi-token prediction module is not part of the target."""
CONFIG = "config.json"
GENERATION = "generation_config.json"
LAYER_KINDS = ("full_attention", "sliding_attention")

# the defaults of transformers
KEY_VALUE_HEADS = {"MistralForCausalLM": 8, "Qwen2ForCausalLM": 32, "Qwen3ForCausalLM": 32}
HEAD_SIZE = {"Qwen3ForCausalLM": 128}
SLIDING_WINDOW = 4096
FULL_LAYERS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ModelSizes):
    """Sizes of a decoder-only transformer with grouped-query attention and rotary positions."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    norm_epsilon: float
    rope_base: float
    rope_scaling: RopeScaling | None = None
    sliding_layers: frozenset[int] = frozenset()
    query_key_value_bias: bool = False
    output_bias: bool = False
    """Whether the output product of the attention has a bias."""
    mlp_bias: bool = False
    head_norms: bool = False
    """Whether query and key heads are normed before their rotation."""
    tied_head: bool


def add_end_tokens(config: ModelConfig, source: Path, generation: dict[str, Any]) -> ModelConfig:
    """Append the end tokens of a parsed `generation_config.json`, such as a chat model's end of message.

    Raises FormatError naming `source` if they are invalid.
    """
    added = _end_tokens(Fields(source, generation), generation.get("eos_token_id"))
    return replace(config, end_tokens=tuple(dict.fromkeys([*config.end_tokens, *added])))


def why_not_built_in(content: object) -> str | None:
    """Return why the built-in transformer cannot run the model of a parsed `config.json`, or None if it can."""
    try:
        parse_config("config.json", content)
    except FormatError as error:
        return f"{error.field}: {error.reason}"
    return None


def parse_config(source: Path | str, content: object) -> ModelConfig:
    """Parse a `config.json`; raises FormatError naming `source` and the field that is invalid or not supported."""
    fields = Fields(source, content)
    assert isinstance(content, dict)  # Fields refuses anything else
    architecture = _architecture(fields, content)
    _refuse_unsupported(fields, content)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    layers, max_positions = fields.integer("num_hidden_layers"), fields.integer("max_position_embeddings")
    sliding_layers = _sliding_layers(fields, content, architecture, layers)
    sliding_window = SLIDING_WINDOW
    if sliding_layers and "sliding_window" in fields:
        sliding_window = fields.integer("sliding_window")
    attention_bias = bool(content.get("attention_bias")) and architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    base, scaling = parse_rope(fields, content, max_positions)
    if isinstance(scaling, YarnScaling):  # Qwen's files state the length without it
        max_positions = max(max_positions, scaling.max_positions)
    return ModelConfig(
        vocabulary=fields.integer("vocab_size"),
        hidden=hidden,
        intermediate=fields.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        key_value_heads=_key_value_heads(fields, content, KEY_VALUE_HEADS.get(architecture, heads), heads),
        head_size=_head_size(fields, content, HEAD_SIZE.get(architecture, hidden // heads)),
        norm_epsilon=fields.number("rms_norm_eps"),
        rope_base=base,
        rope_scaling=scaling,
        max_positions=max_positions,
        sliding_window=sliding_window if sliding_layers else None,
        sliding_layers=sliding_layers,
        query_key_value_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        mlp_bias=bool(content.get("mlp_bias")) and architecture == "LlamaForCausalLM",
        head_norms=architecture == "Qwen3ForCausalLM",
        tied_head=bool(content.get("tie_word_embeddings", False)),
        end_tokens=_end_tokens(fields, content.get("eos_token_id")),
    )


def _architecture(fields: Fields, content: dict[str, object]) -> str:
    listed = content.get("architectures")
    for name in ARCHITECTURES:
        if isinstance(listed, list) and name in listed:
            return ALIASES.get(name, name)
    raise fields.error("architectures", f"expected one of {', '.join(ARCHITECTURES)}. Got {listed}.")


def _refuse_unsupported(fields: Fields, content: dict[str, object]) -> None:
    if content.get("quantization_config") is not None:
        raise fields.error("quantization_config", "expected none: this version runs weights that are not quantised.")
    activation = content.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.error("hidden_act", f"expected 'silu'. Got {activation!r}.")


def _key_value_heads(fields: Fields, content: dict[str, object], default: int, heads: int) -> int:
    if "num_key_value_heads" not in fields:
        count = default
    else:
        count = heads if content["num_key_value_heads"] is None else fields.integer("num_key_value_heads")
    if heads % count:
        raise fields.error("num_key_value_heads", f"expected a divisor of {heads} heads. Got {count}.")
    return count


def _head_size(fields: Fields, content: dict[str, object], default: int) -> int:
    size = fields.integer("head_dim") if content.get("head_dim") else default
    if size % 2 or size == 0:
        raise fields.error("head_dim", f"expected an even number, for rotary positions. Got {size}.")
    return size


def _end_tokens(fields: Fields, end: object) -> tuple[int, ...]:
    """Return the end tokens, given as null, a token or a list."""
    tokens = end if isinstance(end, list) else [] if end is None else [end]
    if not all(type(token) is int for token in tokens):
        raise fields.error("eos_token_id", f"expected a token id or a list of them. Got {end!r}.")
    return tuple(tokens)


def _sliding_layers(fields: Fields, content: dict[str, object], architecture: str, layers: int) -> frozenset[int]:
    """Return the layers with sliding attention: all of Mistral's, and the listed or the last ones of Qwen."""
    slides = architecture != "LlamaForCausalLM" and content.get("sliding_window", SLIDING_WINDOW) is not None
    if architecture not in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        return frozenset(range(layers)) if slides else frozenset()
    slides = slides and bool(content.get("use_sliding_window"))
    kinds = content.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", least=0) if "max_window_layers" in fields else FULL_LAYERS
        return frozenset(range(first, layers)) if slides else frozenset()
    listed = parse_sliding_layers(fields, kinds, layers)
    if listed and not slides:
        raise fields.error("layer_types", "expected no sliding attention without use_sliding_window.")
    return listed


def parse_sliding_layers(fields: Fields, kinds: object, layers: int) -> frozenset[int]:
    """Return the layers with sliding attention, given `layer_types`; raises FormatError for an invalid list."""
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in LAYER_KINDS for kind in kinds):
        reason = f"expected a list of {layers} {' and '.join(LAYER_KINDS)}. Got {kinds!r:.80}."
        raise fields.error("layer_types", reason)
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
