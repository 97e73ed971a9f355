"""Writing a built-in model as a folder in Hugging Face layout: the way back from `treeopt.runtime.models.weights`."""

import json
import os
import tempfile
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from treeopt.errors import TreeoptError
from treeopt.files.json_file import read_object
from treeopt.files.own_folder import holds_own, not_writable
from treeopt.files.whole_files import write_bytes
from treeopt.runtime.models.config import CONFIG, ModelConfig
from treeopt.runtime.models.transformer import Layer, Transformer

WEIGHTS = "model.safetensors"
BESIDE = (".json", ".jinja", ".model", ".tiktoken", ".txt")
"""Endings of what stands beside the weights: tokenizers, what ends a text, licences; indices of weights are left out."""


class SavedModel:
    """A folder that a model is written to, once or again and again, whole or not at all.

    Args:
        model: what is written, as it is at that time.
        source: the folder that it was loaded from, whose tokenizer and configuration are kept.
        folder: new, empty, or one that was written by this class for a model of the same configuration.

    Raises TreeoptError, before anything is written, for a folder that holds anything else or cannot be written.
    """

    def __init__(self, model: Transformer, source: Path | str, folder: Path | str) -> None:
        self.path = Path(folder)
        self._model = model
        self._source = Path(source)
        self._folder = Path(os.path.realpath(folder))  # a link is followed
        self.replaces = self._is_there()
        """Whether an earlier state is there, which the next one replaces."""

    def save(self) -> None:
        """Write the model; where that fails, or is broken off, what was there before stays whole."""
        tensors = {name: each.detach().cpu().contiguous() for name, each in named_tensors(self._model).items()}
        weights = save(tensors, {"format": "pt"})
        if self._is_there():  # the other files stay as they are: one rename makes the new state whole
            write_bytes(self._folder / WEIGHTS, weights)
            return
        try:
            with tempfile.TemporaryDirectory(dir=self._folder.parent, prefix=f".{self._folder.name}.") as temporary:
                new = Path(temporary) / self._folder.name
                new.mkdir()
                for name, data in {**self._beside(), WEIGHTS: weights}.items():
                    write_bytes(new / name, data)
                new.replace(self._folder)  # an empty folder gives way
        except OSError as error:
            raise not_writable(self.path, error) from None

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
        """Return the configuration, which begins with treeopt's mark."""
        content = {name: value for name, value in read_object(self._source / CONFIG).items() if name != "tool"}
        number_format = "torch_dtype" if "torch_dtype" in content else "dtype"
        return {"tool": "treeopt", **content, number_format: str(self._model.dtype).removeprefix("torch.")}

    def _is_there(self) -> bool:
        """Return whether an earlier state of the model is there; see the class for what is refused."""
        there = holds_own(self.path)
        if there and read_object(self._folder / CONFIG) != self._config():
            raise TreeoptError(
                f"{self.path}: expected a new folder, or one with an earlier state of this draft. It holds another model: "
                "name another."
            )
        return there


def named_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the weights of a model by the names, and in the shapes, that Hugging Face gives them."""
    config, weights = model.config, model.weights
    found = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tied_head:
        found["lm_head.weight"] = weights.head.weight
    for index, layer in enumerate(weights.layers):
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
    found = {"input_layernorm.weight": layer.attention_norm, "post_attention_layernorm.weight": layer.mlp_norm}
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
