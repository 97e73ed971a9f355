"""Loading any model: a folder in Hugging Face layout, built in or run by transformers, or a GGUF file."""

from pathlib import Path
from typing import Any

import torch

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.config import CONFIG, why_not_built_in
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.gguf.model import load_gguf
from treeopt.runtime.models.hf.loading import Placement, load_adapter
from treeopt.runtime.models.model import LanguageModel, ModelSizes
from treeopt.runtime.models.weights import load_model

Source = ModelFolder | GGUFFile


def open_source(path: Path | str) -> Source:
    """Return a GGUF file or a model folder, without reading it."""
    return GGUFFile(path) if is_gguf(path) else ModelFolder(path)


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
    if why_adapter(source) is None and placement is None and not tensor_parallel:
        return load_model(source, dtype=dtype, device=device)
    return load_adapter(source.path, dtype=dtype, device=device, placement=placement, tensor_parallel=tensor_parallel)


def why_adapter(folder: Source) -> str | None:
    """Return why transformers must run a model, None if the built-in transformer or llama.cpp can.

    Only the configuration is read.  Raises TreeoptError if transformers cannot run it either.
    """
    if isinstance(folder, GGUFFile):
        return None
    reason = why_not_built_in(folder.content)
    if reason is not None:
        _check_known(folder.path, folder.content, reason)
    return reason


def read_checkpoint_dtype(folder: ModelFolder) -> str | None:
    """Return the dtype in a folder's configuration, such as `bfloat16`; None without one."""
    inner = folder.content.get("text_config")
    mappings = [folder.content, *([inner] if isinstance(inner, dict) else [])]
    for mapping in mappings:
        for key in ("dtype", "torch_dtype"):
            if isinstance(mapping.get(key), str):
                return str(mapping[key]).removeprefix("torch.")
    return None


def read_sizes(folder: Source) -> ModelSizes | None:
    """Return the sizes of a model; None if they are known only after loading."""
    if isinstance(folder, GGUFFile):
        return folder.sizes
    return folder.config if why_adapter(folder) is None else None


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
