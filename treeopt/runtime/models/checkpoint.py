"""Writing a built-in model as a folder in Hugging Face layout."""

import json
import os
import tempfile
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from treeopt.errors import TreeoptError
from treeopt.files.atomic_files import write_bytes
from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import CONFIG, ModelConfig
from treeopt.runtime.models.transformer import Layer, Transformer

WEIGHTS = "model.safetensors"
COPIED_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt")
"""Suffixes of the files that are copied: tokenizers, generation settings, licences; not the index of the weights."""


class CheckpointWriter:
    """Writes a model to a folder, once or repeatedly.

    Args:
        model: written in its state at the time of `save`.
        source: the folder that it was loaded from, whose tokenizer and configuration are copied.
        folder: new, or one whose files of the same names are replaced.
    """

    def __init__(self, model: Transformer, source: Path | str, folder: Path | str) -> None:
        self.path = Path(folder)
        self._model = model
        self._source = Path(source)
        self._folder = Path(os.path.realpath(folder))  # follows links
        self._saved = False

    def save(self) -> None:
        """Write the model; after a failure or an interrupt, the weights saved before are intact.

        Raises TreeoptError if the folder cannot be written.
        """
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named_tensors(self._model).items()}
        files = {WEIGHTS: save(tensors, {"format": "pt"})}
        if not self._saved:
            files = self._copied_files() | files
        try:
            if self._folder.is_dir() and any(self._folder.iterdir()):
                for name, data in files.items():
                    write_bytes(self._folder / name, data)
            else:
                self._create(files)
        except OSError as error:
            raise TreeoptError(f"{self.path}: cannot be written ({error.strerror}). Name another folder.") from None
        self._saved = True

    def _create(self, files: dict[str, bytes]) -> None:
        """Write the complete folder or nothing."""
        with tempfile.TemporaryDirectory(dir=self._folder.parent, prefix=f".{self._folder.name}.") as temporary:
            new = Path(temporary) / self._folder.name
            new.mkdir()
            for name, data in files.items():
                write_bytes(new / name, data)
            new.replace(self._folder)  # also replaces an empty folder

    def _copied_files(self) -> dict[str, bytes]:
        files = {
            path.name: path.read_bytes()
            for path in self._source.iterdir()
            if path.is_file() and path.suffix in COPIED_SUFFIXES and not path.name.endswith(".index.json")
        }
        files[CONFIG] = json.dumps(self._config(), indent=2).encode() + b"\n"
        return files

    def _config(self) -> dict[str, object]:
        """Return the configuration, with the dtype of the weights."""
        content = read_object(self._source / CONFIG)
        name = "torch_dtype" if "torch_dtype" in content else "dtype"
        return {**content, name: str(self._model.dtype).removeprefix("torch.")}


def named_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the weights of a model under Hugging Face's names and in its shapes."""
    config, weights = model.config, model.weights
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tied_head:
        tensors["lm_head.weight"] = weights.head.weight
    for index, (layer, norm) in enumerate(zip(weights.layers, weights.input_norms, strict=True)):
        tensors[f"model.layers.{index}.input_layernorm.weight"] = norm
        for name, tensor in _named_layer_tensors(layer, config).items():
            tensors[f"model.layers.{index}.{name}"] = tensor
    return tensors


def _named_layer_tensors(layer: Layer, config: ModelConfig) -> dict[str, Tensor]:
    key_size = config.key_value_heads * config.head_size
    sizes = [config.heads * config.head_size, key_size, key_size]
    products = {
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): (layer.query_key_value, sizes),
        ("self_attn.o_proj",): (layer.attention_output, [config.hidden]),
        ("mlp.gate_proj", "mlp.up_proj"): (layer.gate_up, [config.intermediate] * 2),
        ("mlp.down_proj",): (layer.down, [config.hidden]),
    }
    tensors = {"post_attention_layernorm.weight": layer.mlp_norm}
    for names, (product, rows) in products.items():
        for kind, values in (("weight", product.weight), ("bias", product.bias)):
            if values is not None:
                tensors |= {f"{name}.{kind}": part for name, part in zip(names, values.split(rows), strict=True)}
    if layer.head_norms is not None:
        tensors["self_attn.q_norm.weight"] = layer.head_norms[0]
        tensors["self_attn.k_norm.weight"] = layer.head_norms[config.heads]
    rotated = ("self_attn.q_", "self_attn.k_")
    return {
        name: _separate_pairs(tensor, config) if name.startswith(rotated) else tensor
        for name, tensor in tensors.items()
    }


def _separate_pairs(rows: Tensor, config: ModelConfig) -> Tensor:
    """Undo the reordering of `weights._join_pairs`."""
    neighbours = rows.reshape(-1, config.head_size // 2, 2, *rows.shape[1:])
    return neighbours.transpose(1, 2).reshape(rows.shape)
