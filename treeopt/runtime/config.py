"""The architecture of a Llama-family checkpoint, read from its `config.json`."""

import json
from dataclasses import dataclass
from pathlib import Path

from treeopt.errors import FormatError
from treeopt.fields import Fields
from treeopt.files import read_text

ARCHITECTURES = ("LlamaForCausalLM",)
MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of a decoder-only transformer with grouped-query attention and rotary positions."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    norm_epsilon: float
    rope_base: float
    max_positions: int
    """Longest text the model was trained on; the runtime refuses to go past it."""
    tied_head: bool
    end_tokens: tuple[int, ...]
    """Tokens that end a text; empty when the model has none."""


def load_config(folder: Path | str) -> ModelConfig:
    """Return the configuration of a model folder in Hugging Face layout.

    Raises TreeoptError when the file is missing, FormatError naming the field that is wrong or not supported.
    """
    path = Path(folder) / "config.json"
    try:
        content = json.loads(read_text(path, limit_bytes=MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise FormatError(path, "content", f"expected JSON ({error}).") from None
    return parse_config(path, content)


def parse_config(source: Path | str, content: object) -> ModelConfig:
    """Return the configuration that a parsed `config.json` holds.

    Raises FormatError naming `source` and the field that is wrong or not supported.
    """
    fields = Fields(source, content)
    assert isinstance(content, dict)  # Fields refuses anything else
    architectures = content.get("architectures")
    if not isinstance(architectures, list) or not any(name in ARCHITECTURES for name in architectures):
        raise fields.error("architectures", f"expected one of {', '.join(ARCHITECTURES)}. Got {architectures}.")
    _refuse_unsupported(fields, content)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    key_value_heads = fields.integer("num_key_value_heads") if "num_key_value_heads" in fields else heads
    if heads % key_value_heads:
        raise fields.error("num_key_value_heads", f"expected a divisor of {heads} heads. Got {key_value_heads}.")
    return ModelConfig(
        vocabulary=fields.integer("vocab_size"),
        hidden=hidden,
        intermediate=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        key_value_heads=key_value_heads,
        head_size=fields.integer("head_dim") if content.get("head_dim") else hidden // heads,
        norm_epsilon=fields.number("rms_norm_eps"),
        rope_base=_rope_base(fields, content),
        max_positions=fields.integer("max_position_embeddings"),
        tied_head=bool(content.get("tie_word_embeddings", False)),
        end_tokens=_end_tokens(fields, content.get("eos_token_id")),
    )


def _end_tokens(fields: Fields, end: object) -> tuple[int, ...]:
    """Return the end tokens: none, one, or a list of them, as in Llama 3."""
    tokens = end if isinstance(end, list) else [] if end is None else [end]
    if not all(type(token) is int for token in tokens):
        raise fields.error("eos_token_id", f"expected a token id or a list of them. Got {end!r}.")
    return tuple(tokens)


def _rope(content: dict[str, object]) -> dict[str, object]:
    """Return the rotary settings: `rope_parameters` in newer files, `rope_scaling` in older ones."""
    for key in ("rope_parameters", "rope_scaling"):
        value = content.get(key)
        if isinstance(value, dict):
            return value
    return {}


def _rope_base(fields: Fields, content: dict[str, object]) -> float:
    base = _rope(content).get("rope_theta", content.get("rope_theta", 10_000.0))
    if not isinstance(base, int | float) or base <= 0:
        raise fields.error("rope_theta", f"expected a number above 0. Got {base!r}.")
    return float(base)


def _refuse_unsupported(fields: Fields, content: dict[str, object]) -> None:
    rope = _rope(content)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        field = "rope_parameters" if rope is content.get("rope_parameters") else "rope_scaling"
        raise fields.error(field, f"expected none. Got {kind!r}, which this version cannot run.")
    for key in ("attention_bias", "mlp_bias"):
        if content.get(key):
            raise fields.error(key, "expected false: this version runs models without biases.")
    activation = content.get("hidden_act", "silu")
    if activation != "silu":
        raise fields.error("hidden_act", f"expected 'silu'. Got {activation!r}.")
