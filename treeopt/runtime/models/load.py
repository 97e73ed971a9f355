"""Any model folder in Hugging Face layout: run by the built-in transformer where it can, else by transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.config import CONFIG, why_not_built_in
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.weights import load_model

if TYPE_CHECKING:
    from treeopt.runtime.models.hf.loading import Placement


def load_language_model(
    folder: ModelFolder | Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    placement: "Placement | None" = None,
    tensor_parallel: bool = False,
) -> LanguageModel:
    """Return the model of a folder, its weights cast to `dtype`.

    It is built in where `why_not_built_in` has no reason against it and neither a placement over several devices nor
    tensor parallelism is asked for; else transformers run it.

    Raises TreeoptError when something is missing, FormatError naming what is wrong or not supported.
    """
    found = ModelFolder.of(folder)
    reason = adapter_reason(found)
    if reason is None and placement is None and not tensor_parallel:
        return load_model(found, dtype=dtype, device=device)
    from treeopt.runtime.models.hf.loading import load_adapter  # for transformers, which are optional

    return load_adapter(found.path, dtype=dtype, device=device, placement=placement, tensor_parallel=tensor_parallel)


def adapter_reason(folder: ModelFolder) -> str | None:
    """Return why transformers must run the model of a folder, None where the built-in transformer can.

    Only the configuration is read.  Raises TreeoptError where neither can run it.
    """
    reason = why_not_built_in(folder.content)
    if reason is not None:
        _check_known(folder.path, folder.content, reason)
    return reason


def logit_columns(folder: ModelFolder) -> int | None:
    """Return how many logits the configuration of a folder announces, None where it does not say."""
    inner = folder.content.get("text_config")
    found = folder.content.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else None)
    return found if type(found) is int else None


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
