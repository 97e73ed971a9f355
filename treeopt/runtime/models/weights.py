"""Loading the built-in transformer from a model folder in Hugging Face layout."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Layer, Transformer, Weights


def load_model(
    folder: ModelFolder | Path | str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """Load the model of a folder, its weights cast to `dtype` on `device`.

    Raises TreeoptError if a file is missing, FormatError naming a tensor that is missing or has another shape.
    """
    source = ModelFolder.of(folder)
    tensors = TensorReader.open_files(source.path, source.weight_files, device=torch.device(device), dtype=dtype)
    return build_model(source.config, tensors, name=source.name)


class Tensors(Protocol):
    """A model's weights under Hugging Face's names, on one device and in one dtype."""

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight; raises FormatError naming it if it is missing or has another shape."""


def build_model(config: ModelConfig, tensors: Tensors, *, name: str) -> Transformer:
    """Build a model from its weights; raises what `tensors` raises."""
    size = (config.vocabulary, config.hidden)
    embedding = tensors.get("model.embed_tokens.weight", size)
    weights = Weights(
        embedding=embedding,
        layers=tuple(build_layer(tensors, config, f"model.layers.{index}") for index in range(config.layers)),
        input_norms=tuple(
            tensors.get(f"model.layers.{index}.input_layernorm.weight", (config.hidden,))
            for index in range(config.layers)
        ),
        norm=tensors.get("model.norm.weight", (config.hidden,)),
        head=Linear(embedding if config.tied_head else tensors.get("lm_head.weight", size)),
    )
    return Transformer(config, weights, name=name)


def build_layer(tensors: Tensors, config: ModelConfig, prefix: str, *, inputs: int | None = None) -> Layer:
    """Build a layer from its weights.

    Args:
        tensors: of the model.
        config: its sizes, biases and norms.
        prefix: of the layer's tensors.
        inputs: numbers that the attention reads; by default the hidden size.

    Raises what `tensors` raises.
    """
    hidden, inner, attention = config.hidden, config.intermediate, f"{prefix}.self_attn"
    return Layer(
        config=config,
        query_key_value=Linear(
            _query_key_value(tensors, config, attention, "weight", inputs or hidden),
            _query_key_value(tensors, config, attention, "bias") if config.query_key_value_bias else None,
        ),
        head_norms=_head_norms(tensors, config, attention) if config.head_norms else None,
        attention_output=Linear(
            tensors.get(f"{attention}.o_proj.weight", (hidden, config.heads * config.head_size)),
            tensors.get(f"{attention}.o_proj.bias", (hidden,)) if config.output_bias else None,
        ),
        mlp_norm=tensors.get(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        gate_up=Linear(
            _gate_up(tensors, f"{prefix}.mlp", "weight", inner, hidden),
            _gate_up(tensors, f"{prefix}.mlp", "bias", inner) if config.mlp_bias else None,
        ),
        down=Linear(
            tensors.get(f"{prefix}.mlp.down_proj.weight", (hidden, inner)),
            tensors.get(f"{prefix}.mlp.down_proj.bias", (hidden,)) if config.mlp_bias else None,
        ),
    )


def _query_key_value(tensors: Tensors, config: ModelConfig, prefix: str, kind: str, *columns: int) -> Tensor:
    """Return the concatenated weights of the three products, or their biases, which have no columns."""
    key_size = config.key_value_heads * config.head_size
    query = tensors.get(f"{prefix}.q_proj.{kind}", (config.heads * config.head_size, *columns))
    key = tensors.get(f"{prefix}.k_proj.{kind}", (key_size, *columns))
    value = tensors.get(f"{prefix}.v_proj.{kind}", (key_size, *columns))
    return torch.cat([_join_pairs(query, config), _join_pairs(key, config), value])


def _gate_up(tensors: Tensors, prefix: str, kind: str, *shape: int) -> Tensor:
    """Return the concatenated weights or biases of both inner products, each of `shape`."""
    return torch.cat([tensors.get(f"{prefix}.{name}.{kind}", shape) for name in ("gate_proj", "up_proj")])


def _head_norms(tensors: Tensors, config: ModelConfig, prefix: str) -> Tensor:
    """Return the norm weights (heads + key_value_heads, head_size) of all query and key heads."""
    query, key = (
        _join_pairs(tensors.get(f"{prefix}.{name}.weight", (config.head_size,)), config)
        for name in ("q_norm", "k_norm")
    )
    return torch.cat([query.expand(config.heads, -1), key.expand(config.key_value_heads, -1)])


def _join_pairs(rows: Tensor, config: ModelConfig) -> Tensor:
    """Reorder each head's rows so that the two numbers that rotate together, i and i + head_size/2, are adjacent.

    Queries and keys are reordered in the same way, so their products do not change.
    """
    halves = rows.view(-1, 2, config.head_size // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
