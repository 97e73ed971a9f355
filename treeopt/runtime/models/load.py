"""Loading any model, a folder in Hugging Face layout or a GGUF file; devices and dtypes by name."""

from pathlib import Path

import torch

from treeopt.errors import InvalidValueError
from treeopt.records.machine import AUTO
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.gguf.model import load_gguf
from treeopt.runtime.models.hf.loading import Placement, load_adapter
from treeopt.runtime.models.hub import SETTINGS, read_model_folder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.weights import load_model

Source = ModelFolder | GGUFFile
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_source(path: Path | str, name: str | None = None) -> Source:
    """Return a GGUF file or a model folder, without reading it; `name` replaces its own in reports and errors."""
    return GGUFFile(path, name) if is_gguf(path) else ModelFolder(path, name)


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
