"""Any model folder in Hugging Face layout, run by the built-in transformer or by transformers; any GGUF file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.config import CONFIG, why_not_built_in
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.model import LanguageModel, ModelSizes
from treeopt.runtime.models.weights import load_model

if TYPE_CHECKING:
    from treeopt.runtime.models.hf.loading import Placement


Source = ModelFolder | GGUFFile
"""What a model is loaded from."""


def source_of(path: Path | str) -> Source:
    """Return the file or the folder of a path, of which nothing is read yet."""
    return GGUFFile(path) if is_gguf(path) else ModelFolder(path)


def load_language_model(
    folder: Source | Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    placement: "Placement | None" = None,
    tensor_parallel: bool = False,
) -> LanguageModel:
    """Return the model of a folder, its weights cast to `dtype`, or that of a GGUF file, which keeps its own format.

    That of a folder is built in where `why_not_built_in` has no reason against it and neither a placement over several devices nor
    tensor parallelism is asked for; else transformers run it.

    Raises TreeoptError when something is missing, FormatError naming what is wrong or not supported.
    """
    found = source_of(folder) if isinstance(folder, Path | str) else folder
    if isinstance(found, GGUFFile):
        from treeopt.runtime.models.gguf.loading import load_gguf  # for llama.cpp, which is optional

        return load_gguf(found)
    reason = adapter_reason(found)
    if reason is None and placement is None and not tensor_parallel:
        return load_model(found, dtype=dtype, device=device)
    from treeopt.runtime.models.hf.loading import load_adapter  # for transformers, which are optional

    return load_adapter(found.path, dtype=dtype, device=device, placement=placement, tensor_parallel=tensor_parallel)


def adapter_reason(folder: Source) -> str | None:
    """Return why transformers must run the model of a folder, None where the built-in transformer can.

    Only the configuration is read.  Raises TreeoptError where neither can run it.
    """
    if isinstance(folder, GGUFFile):
        return None
    reason = why_not_built_in(folder.content)
    if reason is not None:
        _check_known(folder.path, folder.content, reason)
    return reason


def checkpoint_dtype(folder: ModelFolder) -> str | None:
    """Return the dtype that a folder's configuration names, such as `bfloat16`; None where it does not say."""
    inner = folder.content.get("text_config")
    places = [folder.content, *([inner] if isinstance(inner, dict) else [])]
    found = [place[key] for place in places for key in ("dtype", "torch_dtype") if isinstance(place.get(key), str)]
    return found[0].removeprefix("torch.") if found else None


def known_sizes(folder: Source) -> ModelSizes | None:
    """Return the sizes of a model; None if they are known only once it is loaded."""
    if isinstance(folder, GGUFFile):
        return folder.sizes
    return folder.config if adapter_reason(folder) is None else None


def number_format(folder: Source, model: LanguageModel) -> str:
    """Return the number format of a model's weights, such as `float32` or `q8_0`."""
    return folder.sizes.number_format if isinstance(folder, GGUFFile) else str(model.dtype).removeprefix("torch.")


def _check_known(folder: Path, content: dict[str, Any], reason: str) -> None:
    """Refuse a model that transformers do not know, without reading a weight."""
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
