"""The weights of the built-in transformer under Hugging Face's names: reading them from a folder, and naming them."""

import re
import warnings
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from treeopt.errors import TreeoptWarning
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import concatenate
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Layer, Transformer, Weights

ROTATED = ("self_attn.q_", "self_attn.k_")
"""Prefixes of the tensors whose rows are reordered for rotary positions."""
LAYER = re.compile(r"model\.layers\.(\d+)\.")
MTP_LAYERS = "num_nextn_predict_layers"
"""Layers of multi-token prediction in a configuration, whose weights follow those of the model's own layers."""


def load_model(
    folder: ModelFolder | Path | str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """Load the model of a folder, its weights cast to `dtype` on `device`.

    Warns of weights of more layers than the configuration has.

    Raises TreeoptError if a file is missing, FormatError naming a tensor that is missing or has another shape.
    """
    source = ModelFolder.of(folder)
    tensors = TensorReader.open_files(source.path, source.weight_files, device=torch.device(device), dtype=dtype)
    model = build_model(source.config, tensors, name=source.name)
    ignored = [int(match[1]) for name in tensors.unread if (match := LAYER.match(name))]
    last, layers = max(ignored, default=0), source.config.layers
    if last >= layers and not source.content.get(MTP_LAYERS):
        warnings.warn(
            TreeoptWarning(
                f"{source.path}: layers {layers} to {last} of the weights are ignored, because num_hidden_layers in "
                f"config.json is {layers}. Take the config.json that belongs to the weights, unless you cut the model."
            ),
            stacklevel=2,
        )
    return model


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
    """Build the layer whose tensors have a prefix; its attention reads `inputs` numbers, by default the hidden size.

    Raises what `tensors` raises.
    """

    def get(name: str, *shape: int) -> Tensor:
        tensor = tensors.get(f"{prefix}.{name}", shape)
        return _join_pairs(tensor, config) if name.startswith(ROTATED) else tensor

    def build_product(stored: StoredProduct) -> Linear:
        weights = [get(f"{name}.weight", rows, stored.inputs) for name, rows in stored.parts.items()]
        biases = [get(f"{name}.bias", rows) for name, rows in stored.parts.items() if stored.biased]
        return Linear(concatenate(weights), concatenate(biases) if biases else None)

    norms = [
        get(f"self_attn.{name}.weight", config.head_size).expand(heads, -1)
        for name, heads in (("q_norm", config.heads), ("k_norm", config.key_value_heads))
        if config.head_norms
    ]
    return Layer(
        config=config,
        head_norms=concatenate(norms) if norms else None,
        mlp_norm=get("post_attention_layernorm.weight", config.hidden),
        **{name: build_product(stored) for name, stored in _stored_products(config, inputs or config.hidden).items()},
    )


def named_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the weights of a model under Hugging Face's names and in its shapes."""
    config, weights = model.config, model.weights
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tied_head:
        tensors["lm_head.weight"] = weights.head.weight
    for index, (layer, norm) in enumerate(zip(weights.layers, weights.input_norms, strict=True)):
        tensors[f"model.layers.{index}.input_layernorm.weight"] = norm
        for name, tensor in _named_layer_tensors(layer, config).items():
            separated = _separate_pairs(tensor, config) if name.startswith(ROTATED) else tensor
            tensors[f"model.layers.{index}.{name}"] = separated
    return tensors


def _named_layer_tensors(layer: Layer, config: ModelConfig) -> dict[str, Tensor]:
    tensors = {"post_attention_layernorm.weight": layer.mlp_norm}
    if layer.head_norms is not None:
        tensors["self_attn.q_norm.weight"] = layer.head_norms[0]
        tensors["self_attn.k_norm.weight"] = layer.head_norms[config.heads]
    for field, stored in _stored_products(config, config.hidden).items():
        product: Linear = getattr(layer, field)
        for kind, values in (("weight", product.weight), ("bias", product.bias)):
            if values is not None:
                parts = values.split(list(stored.parts.values()))
                tensors |= {f"{name}.{kind}": part for name, part in zip(stored.parts, parts, strict=True)}
    return tensors


class StoredProduct(NamedTuple):
    """A product of a layer, which checkpoints store in parts."""

    parts: dict[str, int]
    """The outputs of each part, by name."""
    inputs: int
    biased: bool


def _stored_products(config: ModelConfig, inputs: int) -> dict[str, StoredProduct]:
    """Return the products of a layer whose attention reads `inputs` numbers, by the name of the field in `Layer`."""
    hidden, inner, keys = config.hidden, config.intermediate, config.key_value_heads * config.head_size
    heads = config.heads * config.head_size
    query_key_value = {"self_attn.q_proj": heads, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
    return {
        "query_key_value": StoredProduct(query_key_value, inputs, config.query_key_value_bias),
        "attention_output": StoredProduct({"self_attn.o_proj": hidden}, heads, config.output_bias),
        "gate_up": StoredProduct({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, config.mlp_bias),
        "down": StoredProduct({"mlp.down_proj": hidden}, inner, config.mlp_bias),
    }


def _join_pairs(rows: Tensor, config: ModelConfig) -> Tensor:
    """Reorder each head's rows so that the two numbers that rotate together, i and i + head_size/2, are adjacent.

    Queries and keys are reordered in the same way, so their products do not change.
    """
    halves = rows.view(-1, 2, config.head_size // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _separate_pairs(rows: Tensor, config: ModelConfig) -> Tensor:
    """Undo `_join_pairs`."""
    neighbours = rows.reshape(-1, config.head_size // 2, 2, *rows.shape[1:])
    return neighbours.transpose(1, 2).reshape(rows.shape)
