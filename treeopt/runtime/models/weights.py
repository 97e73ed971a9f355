"""Model folders in Hugging Face layout: `config.json`, safetensors and `tokenizer.json`."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.layer import Layer
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer, Weights


def load_model(
    folder: ModelFolder | Path | str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """Return the model of a folder, its weights cast to `dtype` on `device`.

    Raises TreeoptError when something is missing, FormatError naming the tensor that is missing or misshapen.
    """
    found = ModelFolder.of(folder)
    tensors = TensorReader.open_files(found.path, found.weight_files, device=torch.device(device), dtype=dtype)
    return build_model(found.config, tensors, name=found.path.name)


class Tensors(Protocol):
    """A model's weights by the names that Hugging Face gives them, on one device and in one dtype."""

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one weight; raises FormatError naming it when it is missing or has another shape."""


def build_model(config: ModelConfig, tensors: Tensors, *, name: str) -> Transformer:
    """Return the model of these weights; raises what `tensors` raises."""
    size = (config.vocabulary, config.hidden)
    embedding = tensors.get("model.embed_tokens.weight", size)
    weights = Weights(
        embedding=embedding,
        layers=tuple(_layer(tensors, config, f"model.layers.{index}") for index in range(config.layers)),
        input_norms=tuple(
            tensors.get(f"model.layers.{index}.input_layernorm.weight", (config.hidden,))
            for index in range(config.layers)
        ),
        norm=tensors.get("model.norm.weight", (config.hidden,)),
        head=Linear(embedding if config.tied_head else tensors.get("lm_head.weight", size)),
    )
    return Transformer(config, weights, name=name)


def _layer(tensors: Tensors, config: ModelConfig, prefix: str) -> Layer:
    hidden, inner, attention = config.hidden, config.intermediate, f"{prefix}.self_attn"
    return Layer(
        config=config,
        query_key_value=Linear(
            query_key_value(tensors, config, attention, "weight", hidden),
            query_key_value(tensors, config, attention, "bias") if config.query_key_value_bias else None,
        ),
        head_norms=head_norms(tensors, config, attention) if config.head_norms else None,
        attention_output=Linear(
            tensors.get(f"{attention}.o_proj.weight", (hidden, config.heads * config.head_size)),
            tensors.get(f"{attention}.o_proj.bias", (hidden,)) if config.output_bias else None,
        ),
        mlp_norm=tensors.get(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        gate_up=Linear(
            gate_up(tensors, f"{prefix}.mlp", "weight", inner, hidden),
            gate_up(tensors, f"{prefix}.mlp", "bias", inner) if config.mlp_bias else None,
        ),
        down=Linear(
            tensors.get(f"{prefix}.mlp.down_proj.weight", (hidden, inner)),
            tensors.get(f"{prefix}.mlp.down_proj.bias", (hidden,)) if config.mlp_bias else None,
        ),
    )


def query_key_value(tensors: Tensors, config: ModelConfig, prefix: str, kind: str, *columns: int) -> Tensor:
    """Return the weights or the biases, which have no columns, of three products below one another."""
    key_size = config.key_value_heads * config.head_size
    query = tensors.get(f"{prefix}.q_proj.{kind}", (config.heads * config.head_size, *columns))
    key = tensors.get(f"{prefix}.k_proj.{kind}", (key_size, *columns))
    value = tensors.get(f"{prefix}.v_proj.{kind}", (key_size, *columns))
    return torch.cat([_pairs_together(query, config), _pairs_together(key, config), value])


def gate_up(tensors: Tensors, prefix: str, kind: str, *shape: int) -> Tensor:
    """Return the weights or the biases of both inner products below one another; `shape` is that of one."""
    return torch.cat([tensors.get(f"{prefix}.{name}.{kind}", shape) for name in ("gate_proj", "up_proj")])


def head_norms(tensors: Tensors, config: ModelConfig, prefix: str) -> Tensor:
    """Return the weights (heads + key_value_heads, head_size) of the norms of each query and key."""
    query, key = (
        _pairs_together(tensors.get(f"{prefix}.{name}.weight", (config.head_size,)), config)
        for name in ("q_norm", "k_norm")
    )
    return torch.cat([query.expand(config.heads, -1), key.expand(config.key_value_heads, -1)])


def _pairs_together(rows: Tensor, config: ModelConfig) -> Tensor:
    """Reorder each head's rows so that the two numbers that rotate together, i and i + head_size/2, are neighbours.

    Queries and keys are reordered alike, so their products do not change.
    """
    halves = rows.view(-1, 2, config.head_size // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
