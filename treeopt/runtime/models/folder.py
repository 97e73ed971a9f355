"""A model's folder in Hugging Face layout; what it holds is read once, when it is first asked for."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import TreeoptError
from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import CONFIG, GENERATION, ModelConfig, config_of
from treeopt.runtime.models.digest import model_digest
from treeopt.runtime.models.weight_files import find_weight_files

if TYPE_CHECKING:
    from treeopt.texts.tokenizer import Tokenizer


class ModelFolder:
    """What the files of a folder hold.

    Each part raises TreeoptError where the folder or a file is missing, FormatError where it is not what it should be.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, folder: "ModelFolder | Path | str") -> "ModelFolder":
        """Return a folder as it is, with what was read of it, or that of a path."""
        return folder if isinstance(folder, ModelFolder) else cls(folder)

    @cached_property
    def content(self) -> dict[str, Any]:
        """What `config.json` holds."""
        if not self.path.is_dir():
            raise TreeoptError(
                f"{self.path}: no such folder. "
                "Expected a model folder with config.json, safetensors and tokenizer.json."
            )
        path = self.path / CONFIG
        if not path.is_file():
            raise TreeoptError(f"{self.path}: no {CONFIG}. Expected a model folder in Hugging Face layout.")
        return read_object(path)

    @cached_property
    def config(self) -> ModelConfig:
        """The configuration of a model that is built in; FormatError names why another is not."""
        beside = self.path / GENERATION
        return config_of(self.path, self.content, read_object(beside) if beside.exists() else None)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer."""
        from treeopt.texts.tokenizer import Tokenizer  # models run without it

        return Tokenizer(self.path)

    @cached_property
    def weight_files(self) -> dict[str, Path]:
        """The file that holds each tensor, after a look at the header of all."""
        if not self.path.is_dir():
            raise TreeoptError(
                f"{self.path}: no such folder. Expected a model folder with config.json and safetensors."
            )
        return find_weight_files(self.path)

    @cached_property
    def digest(self) -> str:
        """What the model is known by, see `treeopt.runtime.models.digest`."""
        return model_digest(self.content, set(self.weight_files.values()))
