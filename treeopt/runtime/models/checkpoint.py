"""Writing a built-in model as a folder in Hugging Face layout: the way back from `treeopt.runtime.models.weights`."""

import json
import os
import tempfile
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from treeopt.errors import TreeoptError
from treeopt.files.json_file import read_object
from treeopt.files.whole_files import write_bytes
from treeopt.runtime.models.config import CONFIG, ModelConfig
from treeopt.runtime.models.layer import Layer
from treeopt.runtime.models.transformer import Transformer

WEIGHTS = "model.safetensors"
BESIDE = (".json", ".jinja", ".model", ".tiktoken", ".txt")
"""Endings of what stands beside the weights: tokenizers, what ends a text, licences; indices of weights are left out."""


class SavedModel:
    """A folder that a model is written to, once or again and again.

    Args:
        model: what is written, in its state at that time.
        source: the folder that it was loaded from, whose tokenizer and configuration are kept.
        folder: new, or one whose files of the same names are replaced.
    """

    def __init__(self, model: Transformer, source: Path | str, folder: Path | str) -> None:
        self.path = Path(folder)
        self._model = model
        self._source = Path(source)
        self._folder = Path(os.path.realpath(folder))  # a link is followed
        self._saved = False

    def save(self) -> None:
        """Write the model; if that fails or is interrupted, the weights saved before stay whole.

        Raises TreeoptError where the folder cannot be written.
        """
        tensors = {name: each.detach().cpu().contiguous() for name, each in named_tensors(self._model).items()}
        files = {WEIGHTS: save(tensors, {"format": "pt"})}
        if not self._saved:
            files = self._beside() | files
        try:
            if self._folder.is_dir() and any(self._folder.iterdir()):
                for name, data in files.items():
                    write_bytes(self._folder / name, data)
            else:
                self._make(files)
        except OSError as error:
            raise TreeoptError(f"{self.path}: cannot be written ({error.strerror}). Name another folder.") from None
        self._saved = True

    def _make(self, files: dict[str, bytes]) -> None:
        """Write the whole folder or nothing."""
        with tempfile.TemporaryDirectory(dir=self._folder.parent, prefix=f".{self._folder.name}.") as temporary:
            new = Path(temporary) / self._folder.name
            new.mkdir()
            for name, data in files.items():
                write_bytes(new / name, data)
            new.replace(self._folder)  # an empty folder gives way

    def _beside(self) -> dict[str, bytes]:
        """Return the files beside the weights."""
        found = {
            path.name: path.read_bytes()
            for path in self._source.iterdir()
            if path.is_file() and path.suffix in BESIDE and not path.name.endswith(".index.json")
        }
        found[CONFIG] = json.dumps(self._config(), indent=2).encode() + b"\n"
        return found

    def _config(self) -> dict[str, object]:
        """Return the configuration, with the dtype of the weights."""
        content = read_object(self._source / CONFIG)
        name = "torch_dtype" if "torch_dtype" in content else "dtype"
        return {**content, name: str(self._model.dtype).removeprefix("torch.")}


def named_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the weights of a model by the names, and in the shapes, that Hugging Face gives them."""
    config, weights = model.config, model.weights
    found = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tied_head:
        found["lm_head.weight"] = weights.head.weight
    for index, (layer, norm) in enumerate(zip(weights.layers, weights.input_norms, strict=True)):
        found[f"model.layers.{index}.input_layernorm.weight"] = norm
        for name, tensor in _named(layer, config).items():
            found[f"model.layers.{index}.{name}"] = tensor
    return found


def _named(layer: Layer, config: ModelConfig) -> dict[str, Tensor]:
    key_size = config.key_value_heads * config.head_size
    sizes = [config.heads * config.head_size, key_size, key_size]
    products = {
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): (layer.query_key_value, sizes),
        ("self_attn.o_proj",): (layer.attention_output, [config.hidden]),
        ("mlp.gate_proj", "mlp.up_proj"): (layer.gate_up, [config.intermediate] * 2),
        ("mlp.down_proj",): (layer.down, [config.hidden]),
    }
    found = {"post_attention_layernorm.weight": layer.mlp_norm}
    for names, (product, rows) in products.items():
        for kind, joined in (("weight", product.weight), ("bias", product.bias)):
            if joined is not None:
                found |= {f"{name}.{kind}": each for name, each in zip(names, joined.split(rows), strict=True)}
    if layer.head_norms is not None:
        found["self_attn.q_norm.weight"] = layer.head_norms[0]
        found["self_attn.k_norm.weight"] = layer.head_norms[config.heads]
    turned = ("self_attn.q_", "self_attn.k_")
    return {name: _pairs_apart(each, config) if name.startswith(turned) else each for name, each in found.items()}


def _pairs_apart(rows: Tensor, config: ModelConfig) -> Tensor:
    """Undo the order in which the two numbers that rotate together are neighbours; see `weights`."""
    neighbours = rows.reshape(-1, config.head_size // 2, 2, *rows.shape[1:])
    return neighbours.transpose(1, 2).reshape(rows.shape)
