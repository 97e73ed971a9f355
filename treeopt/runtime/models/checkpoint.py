"""Writing a built-in model as a folder in Hugging Face layout."""

import json
import os
import tempfile
from pathlib import Path

from safetensors.torch import save

from treeopt.errors import TreeoptError
from treeopt.files.atomic_files import write_bytes
from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import CONFIG
from treeopt.runtime.models.tensor_reader import SINGLE
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.weights import named_tensors

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
        files = {SINGLE: save(tensors, {"format": "pt"})}
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
