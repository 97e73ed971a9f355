"""Model folders in Hugging Face layout: `config.json`, safetensors and `tokenizer.json`."""

import json
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from treeopt.errors import FormatError, TreeoptError
from treeopt.files import read_text
from treeopt.runtime.config import ModelConfig, load_config
from treeopt.runtime.linear import Linear
from treeopt.runtime.transformer import Layer, Transformer, Weights

INDEX_MAX_BYTES = 64_000_000


def load_model(
    folder: Path | str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """Return the model of a folder, its weights cast to `dtype` on `device`.

    Raises TreeoptError when something is missing, FormatError naming the tensor that is missing or misshapen.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TreeoptError(f"{folder}: no such folder. Expected a model folder with config.json and safetensors.")
    return build_model(load_config(folder), _Folder(folder, dtype, torch.device(device)), name=folder.name)


class Tensors(Protocol):
    """A model's weights by the names that Hugging Face gives them, on one device and in one dtype."""

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one weight; raises FormatError naming it when it is missing or has another shape."""


def build_model(config: ModelConfig, tensors: Tensors, *, name: str) -> Transformer:
    """Return the model of these weights; raises what `tensors` raises."""
    embedding = tensors.get("model.embed_tokens.weight", (config.vocabulary, config.hidden))
    head = embedding if config.tied_head else tensors.get("lm_head.weight", (config.vocabulary, config.hidden))
    weights = Weights(
        embedding=embedding,
        layers=tuple(_layer(tensors, config, index) for index in range(config.layers)),
        norm=tensors.get("model.norm.weight", (config.hidden,)),
        head=Linear(head),
    )
    return Transformer(config, weights, name=name)


def _layer(tensors: Tensors, config: ModelConfig, index: int) -> Layer:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden, config.intermediate
    query_size, key_size = config.heads * config.head_size, config.key_value_heads * config.head_size
    query = tensors.get(f"{prefix}.self_attn.q_proj.weight", (query_size, hidden))
    key = tensors.get(f"{prefix}.self_attn.k_proj.weight", (key_size, hidden))
    value = tensors.get(f"{prefix}.self_attn.v_proj.weight", (key_size, hidden))
    gate = tensors.get(f"{prefix}.mlp.gate_proj.weight", (inner, hidden))
    up = tensors.get(f"{prefix}.mlp.up_proj.weight", (inner, hidden))
    return Layer(
        attention_norm=tensors.get(f"{prefix}.input_layernorm.weight", (hidden,)),
        query_key_value=Linear(torch.cat([_pairs_together(query, config), _pairs_together(key, config), value])),
        attention_output=Linear(tensors.get(f"{prefix}.self_attn.o_proj.weight", (hidden, query_size))),
        mlp_norm=tensors.get(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        gate_up=Linear(torch.cat([gate, up])),
        down=Linear(tensors.get(f"{prefix}.mlp.down_proj.weight", (hidden, inner))),
    )


def _pairs_together(weight: Tensor, config: ModelConfig) -> Tensor:
    """Reorder each head's rows so that the two numbers that rotate together, i and i + head_size/2, are neighbours.

    Queries and keys are reordered alike, so their products do not change.
    """
    halves = weight.view(-1, 2, config.head_size // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


class _Folder:
    """The tensors of a folder by name, from one file or several."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._folder = folder
        self._file_of = _files(folder)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one tensor, which must have `shape`."""
        path = self._file_of.get(name)
        if path is None:
            raise FormatError(self._folder, name, "this weight is missing from the safetensors files.")
        try:
            with safe_open(path, framework="pt", device=str(self._device)) as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise FormatError(path, name, f"cannot be read ({error}).") from None
        if tuple(tensor.shape) != shape:
            raise FormatError(path, name, f"expected shape {shape}. Got {tuple(tensor.shape)}.")
        return tensor.to(self._dtype).contiguous()


def _files(folder: Path) -> dict[str, Path]:
    """Return the file that holds each tensor: by the index of a sharded checkpoint, or the single file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed: dict[str, str] = json.loads(read_text(index, limit_bytes=INDEX_MAX_BYTES))["weight_map"]
            return {name: folder / Path(file).name for name, file in listed.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FormatError(index, "weight_map", "expected the file of each tensor.") from None
    single = folder / "model.safetensors"
    if not single.is_file():
        raise TreeoptError(f"{folder}: no model.safetensors. Expected a model folder in Hugging Face layout.")
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError) as error:
        raise FormatError(single, "header", f"cannot be read ({error}). Is the file complete?") from None
