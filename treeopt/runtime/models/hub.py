"""Models by name: a local folder, a GGUF file, or a model of the Hugging Face hub in the local cache."""

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.gguf.file import is_gguf

SETTINGS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""The small files of a model: configuration, tokenizer, chat template."""
WEIGHTS = ("*.safetensors",)
IGNORED = ("*/*", "consolidated*")
"""Subfolders, and copies of the weights in other layouts."""
T = TypeVar("T")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_name(name: Path | str) -> bool:
    """Return whether a name is `org/name` on the hub: no such path exists.

    >>> is_hub_name("org/no-such-folder"), is_hub_name("/org/name"), is_hub_name("./name")
    (True, False, False)
    """
    matches = HUB_NAME.fullmatch(str(name)) is not None and not is_gguf(name)
    return matches and not str(name).startswith(".") and not Path(name).exists()


def read_model_folder(name: Path | str, read: Callable[[Path], T], files: Sequence[str] = SETTINGS + WEIGHTS) -> T:
    """Return `read(folder)` for the folder of a model.

    For a hub model it is the copy in the local cache if `read` accepts it; otherwise the model is downloaded.

    Args:
        name: a folder, or `org/name` on the hub.
        read: raises TreeoptError for an incomplete or invalid folder.
        files: patterns of the files to download.

    Raises TreeoptError if there is no such folder and no such model, and what `read` raises.
    """
    if not is_hub_name(name):
        return read(Path(name))
    try:
        return read(_snapshot(str(name), files, local_files_only=True))
    except TreeoptError as error:
        try:
            folder = _snapshot(str(name), files, local_files_only=False)
        except TreeoptError:
            if isinstance(error, FormatError):  # the copy is complete, so a download would not fix it
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
    except Exception as error:  # noqa: BLE001, a dozen unrelated classes of network, hub and disk errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" .")
        raise TreeoptError(
            f"{name}: no such folder, and it cannot be downloaded from the Hugging Face hub ({reason}). "
            "Check the name, the network and the access rights."
        ) from None
