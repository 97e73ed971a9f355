"""Loading any model: a folder in Hugging Face layout, built in or run by transformers, or a GGUF file."""

from pathlib import Path

import torch

from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.gguf.model import load_gguf
from treeopt.runtime.models.hf.loading import Placement, load_adapter
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.weights import load_model

Source = ModelFolder | GGUFFile


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
