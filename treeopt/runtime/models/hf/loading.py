"""Loading any causal language model of transformers: whole, quantised, offloaded or split over devices."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.tree_check import CHECKED_WINDOW, EXACT, ROUNDED, check_tree_mask, why_separate_passes

if TYPE_CHECKING:
    from treeopt.runtime.models.hf.model import AdapterModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices of a model that does not fit on one, filled layer by layer in this order."""

    max_memory: tuple[tuple[str, str], ...]
    """Pairs of device and memory limit, such as ("0", "20GiB") and ("cpu", "60GiB"); the rest goes to disk."""
    offload_folder: Path | None = None
    """Folder for weights that fit in no memory; every pass reads them again."""


def load_adapter(
    folder: ModelFolder | Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    placement: Placement | None = None,
    tensor_parallel: bool = False,
) -> "AdapterModel":
    """Load a model with transformers, and check it with a small tree and a small batch.

    Batches run in one pass if the check shows that this gives the same logits as separate passes.  A quantised
    checkpoint keeps its dtype.  A placement spreads the model over several devices, and `tensor_parallel` splits every
    layer over the processes of a `torchrun`.

    Raises TreeoptError, in one line, if the model cannot be loaded or cannot take a tree mask.
    """
    if placement is not None and tensor_parallel:
        raise InvalidValueError("placement, tensor_parallel: expected one of them at most. Got both.")
    source = ModelFolder.of(folder)
    quantised = source.content.get("quantization_config") is not None
    with _quiet(_transformers()):
        from treeopt.runtime.models.hf.model import AdapterModel

        try:
            model, notes = _load(source, dtype, _device_options(device, placement, tensor_parallel))
            adapter = AdapterModel(model, name=source.name)
        except TreeoptError:
            raise
        except Exception as error:  # whatever transformers, accelerate and quantisers raise
            raise TreeoptError(f"{source.path}: {_one_line(error)}") from error
        exact = adapter.dtype in (torch.float32, torch.float64) and not quantised
        tolerance = EXACT if exact else ROUNDED
        check_tree_mask(adapter, tolerance=tolerance)
        reason = why_separate_passes(adapter, tolerance=tolerance)
        if adapter.config.sliding_window is not None:
            window = min(CHECKED_WINDOW, adapter.config.sliding_window)
            with adapter.narrowed(window):
                refusal = "cannot take a tree mask beyond its sliding window"
                check_tree_mask(adapter, tolerance=tolerance, refusal=refusal)
                reason = reason or why_separate_passes(adapter, tolerance=tolerance)
        adapter.batches = reason is None
        adapter.captures = adapter.captures and adapter.batches and not tensor_parallel
        adapter.cache_bytes(1)  # runs a pass, which several processes have to run together
        if reason is not None:
            notes.append(f"decodes the sequences of a batch one after the other: {reason}.")
        adapter.notes = tuple(notes)
        return adapter


def _load(folder: ModelFolder, dtype: torch.dtype, devices: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return a `PreTrainedModel` and notes on how it runs."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    content = folder.content
    if "auto_map" in content and content.get("model_type") not in CONFIG_MAPPING:
        raise TreeoptError(
            f"{folder.path}: needs code of its own (auto_map in config.json), which is not run. "
            "Expected an architecture that transformers has."
        )
    quantisation = content.get("quantization_config")

    def load(attention: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            str(folder.path),
            dtype="auto" if quantisation else dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **devices,
        )

    notes: list[str] = []
    try:
        model, report = load("sdpa" if not content.get("attn_logit_softcapping") else "eager")
    except ImportError as error:
        if quantisation is None:
            raise
        method = quantisation.get("quant_method", "quantised")
        raise TreeoptError(
            f"{folder.path}: its {method} weights need a package that is not installed. {_one_line(error)}"
        ) from error
    except ValueError as error:  # from architectures without it, before any weight is read
        model, report = load("eager")
        reason = _one_line(error).partition(". ")[0].rstrip(".")
        notes.append(f"runs with eager attention, which is slower: {reason}.")
    if report["missing_keys"]:
        first, *others = sorted(report["missing_keys"])
        more = f", as are {len(others)} other weights" if others else ""
        raise TreeoptError(f"{folder.path}: {first}: this weight is missing{more}: take a complete checkpoint.")
    return model, notes


def _device_options(device: torch.device | str, placement: Placement | None, tensor_parallel: bool) -> dict[str, Any]:
    """Return the options of `from_pretrained` that determine the devices."""
    if tensor_parallel:
        from transformers.distributed.configuration_utils import DistributedConfig

        if hasattr(DistributedConfig, "tp_plan"):
            return {"distributed_config": DistributedConfig(tp_plan="auto")}
        return {"tp_plan": "auto"}  # older transformers
    if placement is not None:
        memory = {int(name) if name.isdigit() else name: size for name, size in placement.max_memory}
        offload = {} if placement.offload_folder is None else {"offload_folder": str(placement.offload_folder)}
        return {"device_map": "auto", "max_memory": memory, **offload}
    return {} if torch.device(device).type == "cpu" else {"device_map": {"": torch.device(device)}}


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise TreeoptError(
            'transformers: not installed. Install it with `pip install "treeopt[hf]"` for models that treeopt does not '
            "run itself."
        ) from None
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence progress bars and notes unless stderr is a terminal."""
    logs = transformers.utils.logging
    if sys.stderr.isatty():
        yield
        return
    verbosity, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    accelerate = logging.getLogger("accelerate")
    level = accelerate.level
    logs.set_verbosity_error()
    accelerate.setLevel(logging.ERROR)
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(verbosity)
        accelerate.setLevel(level)
        if bars:
            logs.enable_progress_bar()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
