"""Loading any model by name: a folder in Hugging Face layout, a GGUF file, or a model of the hub; devices and dtypes."""

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.records.machine import AUTO
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.gguf.model import load_gguf
from treeopt.runtime.models.hf.loading import Placement, load_adapter
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.weights import load_model

Source = ModelFolder | GGUFFile
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SETTINGS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""The small files of a model: configuration, tokenizer, chat template."""
WEIGHTS = ("*.safetensors",)
IGNORED = ("*/*", "consolidated*")
"""Subfolders, and copies of the weights in other layouts."""
T = TypeVar("T")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def open_source(path: Path | str, name: str | None = None) -> Source:
    """Return a GGUF file or a model folder, without reading it; `name` replaces its own in reports and errors."""
    return GGUFFile(path, name) if is_gguf(path) else ModelFolder(path, name)


def is_hub_name(name: Path | str) -> bool:
    """Return whether a name is `org/name` on the hub: no such path exists.

    >>> is_hub_name("org/no-such-folder"), is_hub_name("/org/name"), is_hub_name("./name")
    (True, False, False)
    """
    matches = HUB_NAME.fullmatch(str(name)) is not None and not is_gguf(name)
    return matches and not str(name).startswith(".") and not Path(name).exists()


def read_model_folder(name: Path | str, read: Callable[[Path], T], files: Sequence[str] = SETTINGS + WEIGHTS) -> T:
    """Return `read(folder)` for the folder of a model, by path or as `org/name` on the hub.

    For a hub model it is the copy in the local cache if `read` accepts it; otherwise the model is downloaded: the files
    that match the patterns.

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


def load_language_model(
    folder: Source | Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    placement: Placement | None = None,
    tensor_parallel: bool = False,
) -> LanguageModel:
    """Load a folder's model, its weights cast to `dtype`, or a GGUF file, which keeps its dtype.

    The built-in transformer runs a folder that it supports, unless placement or tensor parallelism is requested; else
    transformers does.

    Raises TreeoptError if something is missing, FormatError naming what is invalid or not supported.
    """
    source = open_source(folder) if isinstance(folder, Path | str) else folder
    if isinstance(source, GGUFFile):
        return load_gguf(source)
    if source.why_adapter is None and placement is None and not tensor_parallel:
        return load_model(source, dtype=dtype, device=device)
    return load_adapter(source, dtype=dtype, device=device, placement=placement, tensor_parallel=tensor_parallel)


def has_device(device: str) -> bool:
    """Return whether this machine has a device, such as `cpu` or `cuda:1`."""
    return device in list_devices() or (device == "cuda" and torch.cuda.device_count() > 0)


def list_devices() -> list[str]:
    """Return the devices of this machine, such as `cpu` and `cuda:0`."""
    return ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def resolve_device_name(device: str) -> str:
    """Return the name of a device; for `auto`, CUDA if available, else the CPU."""
    if device != AUTO:
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_device(name: str) -> torch.device:
    """Return the device of a name, which may be `auto`; raises InvalidValueError if it is not available."""
    name = resolve_device_name(name)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InvalidValueError(
            f"device: expected {AUTO} or a device of this machine: {', '.join(list_devices())}. Got {name!r} ({reason}).",
            field="device",
        ) from None
    return device


def resolve_dtype(target: Source | Path | str, name: str, device: torch.device) -> str:
    """Return the name of a dtype; for `auto`, the target checkpoint's on a GPU, float32 on the CPU."""
    if name != AUTO:
        return name
    if device.type == "cpu":
        return "float32"
    source = read_model_folder(target, open_source, SETTINGS) if isinstance(target, Path | str) else target
    return source.dtype if source.dtype in DTYPES else "float32"
