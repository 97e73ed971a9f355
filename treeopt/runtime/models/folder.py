"""A model folder in Hugging Face layout, whose parts are read once on demand, and checksums that identify models."""

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import (
    CONFIG,
    GENERATION,
    ModelConfig,
    add_end_tokens,
    parse_config,
    why_not_built_in,
)
from treeopt.runtime.models.tensor_reader import count_numbers, find_weight_files

if TYPE_CHECKING:
    from treeopt.texts.tokenizer import Tokenizer

HEAD_BYTES = 65_536
SAMPLE_BYTES = 4096
SAMPLES = 32
DIGITS = 16


class ModelFolder:
    """A folder whose parts are read on demand; `name` is used in reports and errors, by default the folder's.

    Each part raises TreeoptError if the folder or a file is missing, FormatError if a file is invalid.
    """

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or Path(os.path.abspath(path)).name  # `.` has no name of its own

    @classmethod
    def of(cls, folder: "ModelFolder | Path | str") -> "ModelFolder":
        return folder if isinstance(folder, ModelFolder) else cls(folder)

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed `config.json`."""
        self._check_exists()
        path = self.path / CONFIG
        if not path.is_file():
            raise TreeoptError(f"{self.path}: no {CONFIG}. Expected a model folder in Hugging Face layout.")
        return read_object(path)

    @cached_property
    def config(self) -> ModelConfig:
        """The configuration for the built-in transformer; FormatError names what it does not support."""
        config, path = parse_config(self.path / CONFIG, self.content), self.path / GENERATION
        return add_end_tokens(config, path, read_object(path)) if path.exists() else config

    @cached_property
    def why_adapter(self) -> str | None:
        """Why transformers must run the model; None if the built-in transformer can.

        Only the configuration is read.  Raises TreeoptError if transformers cannot run it either.
        """
        reason = why_not_built_in(self.content)
        if reason is not None:
            _check_known(self.path, self.content, reason)
        return reason

    @property
    def sizes(self) -> ModelConfig | None:
        """The model's sizes; None if transformers runs it, which knows them only after loading."""
        return self.config if self.why_adapter is None else None

    @property
    def dtype(self) -> str | None:
        """Dtype in the configuration, such as `bfloat16`; None without one."""
        inner = self.content.get("text_config")
        for mapping in (self.content, inner if isinstance(inner, dict) else {}):
            for key in ("dtype", "torch_dtype"):
                if isinstance(mapping.get(key), str):
                    return str(mapping[key]).removeprefix("torch.")
        return None

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        from treeopt.texts.tokenizer import Tokenizer  # models run without it

        return Tokenizer(self.path)

    @cached_property
    def weight_files(self) -> dict[str, Path]:
        """The file of each tensor; the headers of all files have been read."""
        self._check_exists()
        return find_weight_files(self.path)

    @property
    def loaded_numbers(self) -> int:
        """Numbers in the weight files, which loading copies; 0 if they are quantised."""
        return 0 if self.content.get("quantization_config") else count_numbers(self.weight_files)

    @cached_property
    def digest(self) -> str:
        """Identifies the model independently of its path."""
        return hash_model(self.content, set(self.weight_files.values()))

    def _check_exists(self) -> None:
        if not self.path.is_dir():
            raise TreeoptError(
                f"{self.path}: no such folder. "
                "Expected a model folder with config.json, safetensors and tokenizer.json."
            )


def _check_known(folder: Path, content: dict[str, Any], reason: str) -> None:
    """Refuse a model that transformers does not support."""
    architectures = content.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else content.get("model_type")
    try:
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        raise TreeoptError(
            f"{folder}: treeopt does not run this model itself ({reason.rstrip('.')}). "
            "Install treeopt[hf], and transformers will."
        ) from None
    if content.get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise FormatError(
            folder / CONFIG,
            "architectures",
            f"expected one that treeopt or transformers {transformers.__version__} runs as a language model. Got {name}.",
        )


def hash_model(config: dict[str, Any], weight_files: Iterable[Path]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a parsed `config.json` and samples of all weights.

    The samples of each file are its name, its size, its head and 32 blocks spread over the rest, so that models of any
    size take the same time.  Two trainings of one architecture differ in nearly every block.
    """
    checksum = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for file in sorted(weight_files):
        checksum.update(f"{file.name} ".encode())
        _hash_samples(checksum, file)
    return checksum.hexdigest()[:DIGITS]


def hash_file(path: Path) -> str:
    """Return the digits of a file that contains configuration and weights, independent of its name."""
    checksum = hashlib.sha256()
    _hash_samples(checksum, path)
    return checksum.hexdigest()[:DIGITS]


def hash_path(path: str | None) -> str | None:
    """Return the digits of a model in any form that engines take: a file, or a folder of Hugging Face or OpenVINO.

    None for a hub name, a folder without weights, and a path that does not exist.
    """
    source = None if path is None else Path(path)
    if source is None or not source.is_dir():
        return hash_file(source) if source is not None and source.is_file() else None
    weights = [*source.glob("*.safetensors")] or [*source.glob("*.bin"), *source.glob("*.xml")]
    config = source / CONFIG
    return hash_model(read_object(config) if config.is_file() else {}, weights) if weights else None


def _hash_samples(checksum: "hashlib._Hash", path: Path) -> None:
    size = path.stat().st_size
    checksum.update(f"{size} ".encode())
    with path.open("rb") as file:
        checksum.update(file.read(HEAD_BYTES))
        for number in range(SAMPLES if size > HEAD_BYTES else 0):
            file.seek(HEAD_BYTES + (size - HEAD_BYTES) * number // SAMPLES)
            checksum.update(file.read(SAMPLE_BYTES))
