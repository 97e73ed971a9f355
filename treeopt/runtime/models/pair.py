"""A target, and a draft model where one is given, from folders, from the hub, or from the bundle."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.machine import AUTO, BUNDLED, Pair, has_nvidia_driver
from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.hub import SETTINGS, is_hub_name, model_folder
from treeopt.runtime.models.linear import slow_products_note
from treeopt.runtime.models.load import (
    Source,
    adapter_reason,
    checkpoint_dtype,
    known_sizes,
    load_language_model,
    number_format,
    source_of,
)
from treeopt.runtime.models.model import LanguageModel, kv_bytes, sizes_limit, weight_bytes
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.texts.shared_tokens import SharedTokens, compare_tokens
from treeopt.texts.tokenizer import Tokenizer

if TYPE_CHECKING:
    from treeopt.runtime.models.hf.loading import Placement

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """A target, a draft model where there is one, and the target's tokenizer."""

    target: LanguageModel
    draft: LanguageModel | None
    """It proposes tokens that both tokenizers have."""
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()
    """What a user should know of how they run, a sentence each."""
    described: Pair
    """What they are and were loaded from, as profiles keep it."""

    @property
    def bundled(self) -> bool:
        """Whether the target is the bundled one."""
        return self.described.target_source is None

    @property
    def draft_model(self) -> LanguageModel:
        """The draft model; InfeasibleError where there is none."""
        if self.draft is None:
            raise InfeasibleError(
                f"draft: expected a draft model beside {self.target.name}. Got none: add --draft MODEL, or use a drafter "
                "that needs none, such as prompt-lookup.",
                field="draft",
            )
        return self.draft


def load_pair(
    target: Path | str | None = None,
    draft: Path | str | None = None,
    *,
    device: str = AUTO,
    dtype: str = AUTO,
    threads: int | None = None,
    placement: "Placement | None" = None,
    tensor_parallel: bool = False,
    text_tokens: int = 0,
) -> ModelPair:
    """Load a target, and a draft model where one is named; without names, the bundled pair.

    Configurations, tokenizers and vocabularies are compared before any weight is loaded.

    Args:
        target: model folder in Hugging Face layout, a GGUF file, or a name `org/name` of the Hugging Face hub.
        draft: the same of the draft model; None with a target is the target alone.
        device: where both run; `auto` is CUDA where torch finds it, else the CPU.
        dtype: dtype of both; `auto` is the target checkpoint's own on CUDA, float32 on the CPU.  A GGUF file keeps its own.
        threads: CPU threads that torch and llama.cpp use from now on; by default torch's choice.
        placement: over which devices the target's weights are laid.
        tensor_parallel: split each of the target's layers over all devices.
        text_tokens: the longest text that is planned for.

    Raises InvalidValueError when only a draft model is given, when device or dtype are not there, when the vocabularies
    differ, or when a text is too long for a model; TreeoptError when a folder does not hold a model or a name cannot be resolved.
    """
    if target is None and draft is not None:
        raise InvalidValueError(
            "target: expected a model with the draft model, or neither for the bundled pair. Got none.", field="target"
        )
    if dtype not in (AUTO, *DTYPES):
        raise InvalidValueError(f"dtype: expected {AUTO}, {', '.join(DTYPES)}. Got {dtype!r}.", field="dtype")
    names: list[Path | str] = [bundle.TARGET, bundle.DRAFT] if target is None else [target]
    names += [] if draft is None else [draft]
    _check_files(names, device, dtype, spread=placement is not None or tensor_parallel)
    place = torch.device("cpu") if device == AUTO and any(map(is_gguf, names)) else chosen_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    folders = [model_folder(name, _with_settings, SETTINGS) for name in names]
    shared, notes = _check_settings(folders)
    _check_length(text_tokens, folders)
    chosen_dtype = _chosen_dtype(folders[0], dtype, place)
    folders = [
        model_folder(name, partial(_with_weights, known=folder)) for name, folder in zip(names, folders, strict=True)
    ]
    models = [
        load_language_model(
            folders[0], dtype=chosen_dtype, device=place, placement=placement, tensor_parallel=tensor_parallel
        )
    ]
    if placement is not None or tensor_parallel:
        place = models[0].device  # where its first layer is: the draft must be on the same device
    models += [load_language_model(folder, dtype=chosen_dtype, device=place) for folder in folders[1:]]
    notes += _run_notes(models)
    for model, name in zip(models, names, strict=True):
        if target is None:
            model.name = f"{BUNDLED}{model.name}"
        elif is_hub_name(name):
            model.name = str(name)
    models[0].name += _spread(models[0], placed=placement is not None, split=tensor_parallel)
    logits = [model.config.vocabulary for model in models]
    if not shared.identical or logits[0] != logits[-1]:
        notes.append(shared.note(logits[0], logits[-1]))
    drafts = models[1:]
    described = Pair(
        target=models[0].name,
        draft=drafts[0].name if drafts else None,
        dtype=number_format(folders[0], models[0]),
        vocabulary=logits[0],
        target_parameters=models[0].parameters,
        draft_parameters=drafts[0].parameters if drafts else None,
        target_weight_bytes=weight_bytes(models[0]),
        draft_weight_bytes=weight_bytes(drafts[0]) if drafts else None,
        target_kv_bytes=kv_bytes(models[0]),
        draft_kv_bytes=kv_bytes(drafts[0]) if drafts else None,
        target_source=None if target is None else str(target),
        draft_source=None if draft is None else str(draft),
        target_digest=folders[0].digest,
        draft_digest=folders[1].digest if drafts else None,
    )
    return ModelPair(
        target=models[0],
        draft=limit_draft(drafts[0], shared.ids, logits[0]) if drafts else None,
        tokenizer=folders[0].tokenizer,
        notes=tuple(notes),
        described=described,
    )


def running_line(models: ModelPair) -> str:
    """Return in one line which models run, where and in which dtype, and whether a GPU is left unused."""
    device = models.target.device
    where = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    line = f"{models.described.label}: {where}, {models.described.dtype}"
    if device.type != "cuda" and torch.cuda.is_available():
        line += (
            f". A GPU is there and unused ({torch.cuda.get_device_name(0)}): leave --device out, or give --device cuda"
        )
    elif device.type != "cuda" and has_nvidia_driver():
        line += ". An NVIDIA driver is there, but this torch sees no GPU: treeopt doctor says what to do"
    return line


def is_there(device: str) -> bool:
    """Return whether this machine has a device, such as `cpu` or `cuda:1`."""
    kind, _, number = device.partition(":")
    return device == "cpu" or (kind == "cuda" and int(number or 0) < torch.cuda.device_count())


def draft_folder(pair: ModelPair) -> Path:
    """Return the folder that a pair's draft model was loaded from; of a hub model, its copy in the local cache."""
    return Path(model_folder(pair.described.draft_source or bundle.DRAFT, _with_settings, SETTINGS).path)


def _check_files(names: Sequence[Path | str], device: str, dtype: str, *, spread: bool) -> None:
    """Refuse what is asked of GGUF files and cannot be."""
    files = [name for name in names if is_gguf(name)]
    if files and (device not in (AUTO, "cpu") or spread):
        raise InvalidValueError(f"{files[0]}: expected to run on cpu, as GGUF models do. Got more: leave it out.")
    if len(files) == len(names) and dtype not in (AUTO, "float32"):
        raise InvalidValueError(
            f"dtype: expected none, because GGUF files keep theirs. Got {dtype}: leave it out.", field="dtype"
        )


def _with_settings(path: Path) -> Source:
    """Return a model whose configuration and tokenizer could be read."""
    source = source_of(path)
    _ = source.sizes if isinstance(source, GGUFFile) else source.content
    _ = source.tokenizer
    return source


def _with_weights(path: Path, known: Source) -> Source:
    """Return a model whose weights are all there: the known one, unless the hub has moved to another since."""
    source = known if known.path == path else source_of(path)
    if not isinstance(source, GGUFFile):  # llama.cpp has looked at its weights already
        _ = source.weight_files
    return source


def _check_settings(folders: Sequence[Source]) -> tuple[SharedTokens, list[str]]:
    """Return the shared tokens, and a note on each model that transformers run; refuse pairs that cannot work."""
    reasons = {name: adapter_reason(folder) for name, folder in zip(("target", "draft"), folders, strict=False)}
    notes = [f"The {name} runs through transformers: {why}" for name, why in reasons.items() if why is not None]
    return compare_tokens(folders[0].tokenizer, folders[-1].tokenizer), notes


def _run_notes(models: Sequence[LanguageModel]) -> list[str]:
    """Return what each model has to report of how it runs, and whether products are slower than usual."""
    roles = zip(("target", "draft"), models, strict=False)
    notes = [f"The {role} {note}" for role, model in roles for note in getattr(model, "notes", ())]
    on_cpu = [model.dtype for model in models if isinstance(model, Transformer) and model.device.type == "cpu"]
    slow = next(filter(None, map(slow_products_note, on_cpu)), None)
    return notes if slow is None else [*notes, slow]


def _check_length(text_tokens: int, folders: Sequence[Source]) -> None:
    """Refuse a text that is longer than a model was trained for; transformers' models tell once loaded."""
    for folder in folders:
        sizes = known_sizes(folder)
        if sizes is not None and text_tokens > sizes.max_positions:
            raise InvalidValueError(
                f"context: expected room for {text_tokens} tokens, the context and the steps that are timed after it. "
                f"{folder.path.name} takes {sizes_limit(sizes)}: use a shorter context, or another model.",
                field="context",
            )


def _spread(model: LanguageModel, *, placed: bool, split: bool) -> str:
    """Return over what a target is spread, for its name: times depend on it, and profiles are to tell."""
    if split:
        return f" split over {torch.distributed.get_world_size()} processes"
    places = ", ".join(getattr(model, "places", ())) if placed else ""
    return f" over {places}" if places else ""


def without_auto(device: str) -> str:
    """Return the name of a device, for `auto` CUDA where torch finds it, else the CPU."""
    if device != AUTO:
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def chosen_device(name: str) -> torch.device:
    """Return the device of a name, `auto` among them; raises InvalidValueError where it is not there."""
    name = without_auto(name)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InvalidValueError(
            f"device: expected one that is there, such as cpu, or {AUTO}. Got {name!r} ({reason}).", field="device"
        ) from None
    return device


def chosen_dtype(target: Path | str, name: str, device: torch.device) -> str:
    """Return the name of a dtype; for `auto` that of the target's checkpoint on a GPU, float32 on the CPU."""
    if name != AUTO:
        return name
    if device.type == "cpu":
        return "float32"
    return str(_chosen_dtype(model_folder(target, source_of, SETTINGS), name, device)).removeprefix("torch.")


def _chosen_dtype(target: Source, name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a name; for `auto` that of the target's checkpoint on a GPU, float32 on the CPU."""
    if name != AUTO:
        return DTYPES[name]
    own = None if device.type == "cpu" or isinstance(target, GGUFFile) else checkpoint_dtype(target)
    return DTYPES.get(own or "float32", torch.float32)
