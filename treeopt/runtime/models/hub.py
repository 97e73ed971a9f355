"""Models by name: a local folder or GGUF file as it is, a model of the Hugging Face hub by its copy in the local cache."""

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.gguf.file import is_gguf

SETTINGS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Files of a model that are small: configuration, tokenizer, chat template."""
WEIGHTS = ("*.safetensors",)
IGNORED = ("*/*", "consolidated*")
"""Subfolders, and second copies of the weights in other layouts."""
T = TypeVar("T")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_name(name: Path | str) -> bool:
    """Whether a name stands for a model of the hub: `org/name`, where no such path exists.

    >>> is_hub_name("org/no-such-folder"), is_hub_name("/org/name"), is_hub_name("./name")
    (True, False, False)
    """
    found = HUB_NAME.fullmatch(str(name)) is not None and not is_gguf(name)
    return found and not str(name).startswith(".") and not Path(name).exists()


def model_folder(name: Path | str, read: Callable[[Path], T], files: Sequence[str] = SETTINGS + WEIGHTS) -> T:
    """Return what `read` makes of the folder of a model.

    Of a model of the hub the copy in the local cache is taken if it can be read; else it is downloaded.

    Args:
        name: a folder, or `org/name` on the hub.
        read: raises TreeoptError where the folder is not what it should be.
        files: patterns of what is downloaded.

    Raises TreeoptError where there is no such folder and no such model, and what `read` raises.
    """
    if not is_hub_name(name):
        return read(Path(name))
    try:
        return read(_snapshot(str(name), files, local_files_only=True))
    except TreeoptError as error:
        try:
            folder = _snapshot(str(name), files, local_files_only=False)
        except TreeoptError:
            if isinstance(error, FormatError):  # the copy is there: a download would not have changed what is wrong
                raise error from None
            raise
        return read(folder)


def _snapshot(name: str, files: Sequence[str], *, local_files_only: bool) -> Path:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise TreeoptError(
            f"{name}: no such folder. To take it from the Hugging Face hub, pip install huggingface_hub."
        ) from None
    try:
        return Path(
            hub.snapshot_download(
                name,
                allow_patterns=list(files),
                ignore_patterns=list(IGNORED),
                local_files_only=local_files_only,
            )
        )
    except Exception as error:  # noqa: BLE001, of the network, the hub or the disk: a dozen unrelated classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" .")
        raise TreeoptError(
            f"{name}: no such folder, and it cannot be had from the Hugging Face hub ({reason}). "
            "Check the name, the network and the access rights."
        ) from None
