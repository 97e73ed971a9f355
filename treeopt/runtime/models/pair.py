"""Loading a target, and a draft model if there is one, from folders, from the hub, or from the bundle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.machine import AUTO, BUNDLED, Pair, has_nvidia_driver
from treeopt.runtime.models.gguf.file import is_gguf
from treeopt.runtime.models.hf.loading import Placement
from treeopt.runtime.models.linear import slow_products_note
from treeopt.runtime.models.load import (
    DTYPES,
    SETTINGS,
    Source,
    is_hub_name,
    load_language_model,
    open_source,
    read_model_folder,
    resolve_device,
    resolve_dtype,
)
from treeopt.runtime.models.memory import check_room
from treeopt.runtime.models.model import LanguageModel, describe_max_positions, kv_bytes
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.texts.shared_tokens import compare_tokens
from treeopt.texts.tokenizer import Tokenizer

ROLES = "target", "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """A target, a draft model if there is one, and the target's tokenizer."""

    target: LanguageModel
    draft: LanguageModel | None
    """Proposes only tokens that both tokenizers have."""
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()
    """How the models run, in sentences for the user."""
    described: Pair
    """The models and their sources, as profiles record them."""
    draft_folder: Path | None = None
    """Where the draft model was read from; for a hub model, its copy in the local cache."""

    @property
    def bundled(self) -> bool:
        return self.described.target_source is None

    @property
    def draft_model(self) -> LanguageModel:
        """The draft model; InfeasibleError without one."""
        if self.draft is None:
            raise InfeasibleError(
                f"draft: expected a draft model for {self.target.name}. Got none: add --draft MODEL, or use a drafter "
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
    placement: Placement | None = None,
    tensor_parallel: bool = False,
    sequence_tokens: int = 0,
) -> ModelPair:
    """Load a target, and a draft model if one is named; without names, the bundled pair.

    Configurations, tokenizers and vocabularies are compared before any weight is loaded.

    Args:
        target: model folder in Hugging Face layout, a GGUF file, or a name `org/name` of the Hugging Face hub.
        draft: the draft model, in the same forms; None with a target loads the target alone.
        device: of both models; `auto` is CUDA if available, else the CPU.
        dtype: of both models; `auto` is the target checkpoint's on CUDA, float32 on the CPU.  GGUF files keep theirs.
        threads: CPU threads of torch and llama.cpp from now on; by default torch's choice.
        placement: spreads the target's weights over several devices.
        tensor_parallel: split each of the target's layers over all devices.
        sequence_tokens: longest planned sequence.

    Raises InvalidValueError if only a draft model is named, if the device or the dtype is not available, if the
    vocabularies differ, or if `sequence_tokens` exceeds a model's maximum; TreeoptError if a folder does not contain a
    model or a name cannot be resolved.
    """
    if target is None and draft is not None:
        raise InvalidValueError(
            "target: expected a model with the draft model, or neither for the bundled pair. Got none.", field="target"
        )
    if dtype not in (AUTO, *DTYPES):
        raise InvalidValueError(f"dtype: expected {AUTO}, {', '.join(DTYPES)}. Got {dtype!r}.", field="dtype")
    names: list[Path | str] = [bundle.TARGET, bundle.DRAFT] if target is None else [target]
    names += [] if draft is None else [draft]
    distributed = placement is not None or tensor_parallel
    _check_gguf_options(names, device, dtype, distributed=distributed)
    torch_device = torch.device("cpu") if device == AUTO and any(map(is_gguf, names)) else resolve_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    sources = [
        read_model_folder(name, partial(_read_settings, name=_name_model(name, bundled=target is None)), SETTINGS)
        for name in names
    ]
    notes = _adapter_notes(sources)
    shared = compare_tokens(sources[0].tokenizer, sources[-1].tokenizer)
    _check_length(sequence_tokens, sources)
    torch_dtype = DTYPES[resolve_dtype(sources[0], dtype, torch_device)]
    sources = [
        read_model_folder(name, partial(_read_weight_files, known=source))
        for name, source in zip(names, sources, strict=True)
    ]
    _check_weights(sources[1:] if distributed else sources, torch_dtype, torch_device)
    models = [
        load_language_model(
            sources[0], dtype=torch_dtype, device=torch_device, placement=placement, tensor_parallel=tensor_parallel
        )
    ]
    if distributed:
        torch_device = models[0].device  # of its first layer, where the draft must be
    models += [load_language_model(source, dtype=torch_dtype, device=torch_device) for source in sources[1:]]
    notes += _run_notes(models)
    models[0].name += _distribution_suffix(models[0], placed=placement is not None, split=tensor_parallel)
    logits = [model.config.vocabulary for model in models]
    if not shared.identical or logits[0] != logits[-1]:
        notes.append(shared.note(logits[0], logits[-1]))
    limited = None if len(models) == 1 else limit_draft(models[1], shared.ids, logits[0])
    return ModelPair(
        target=models[0],
        draft=limited,
        tokenizer=sources[0].tokenizer,
        notes=tuple(notes),
        draft_folder=None if limited is None else sources[1].path,
        described=replace(
            describe_pair(models[0], limited),
            target_source=None if target is None else str(target),
            draft_source=None if draft is None else str(draft),
            target_digest=sources[0].digest,
            draft_digest=None if limited is None else sources[1].digest,
        ),
    )


def describe_pair(target: LanguageModel, draft: LanguageModel | None) -> Pair:
    """Return a description of models without their sources, as profiles record it."""
    return Pair(
        target=target.name,
        draft=None if draft is None else draft.name,
        dtype=getattr(target.config, "weight_dtype", str(target.dtype).removeprefix("torch.")),
        vocabulary=target.config.vocabulary,
        target_parameters=target.parameters,
        draft_parameters=None if draft is None else draft.parameters,
        target_weight_bytes=target.weight_bytes,
        draft_weight_bytes=None if draft is None else draft.weight_bytes,
        target_kv_bytes=kv_bytes(target),
        draft_kv_bytes=None if draft is None else kv_bytes(draft),
    )


def describe_run(models: ModelPair) -> str:
    """Return the models, their device and dtype in one line, with a hint if a GPU is unused."""
    device = models.target.device
    device_name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
    line = f"{models.described.label}: {device_name}, {models.described.dtype}"
    if device.type != "cuda" and torch.cuda.is_available():
        line += f". A GPU is unused ({torch.cuda.get_device_name(0)}): leave --device out, or pass --device cuda"
    elif device.type != "cuda" and has_nvidia_driver():
        line += ". An NVIDIA driver is installed, but this torch finds no GPU: run treeopt doctor"
    return line


def _check_gguf_options(names: Sequence[Path | str], device: str, dtype: str, *, distributed: bool) -> None:
    """Refuse options that do not apply to GGUF files."""
    files = [name for name in names if is_gguf(name)]
    if files and (device not in (AUTO, "cpu") or distributed):
        device_name = device if device not in (AUTO, "cpu") else "several devices"
        raise InvalidValueError(
            f"{files[0]}: expected to run on cpu, as GGUF models do. Got {device_name}: leave the option out."
        )
    if len(files) == len(names) and dtype != AUTO:
        raise InvalidValueError(
            f"dtype: expected none, because GGUF files keep theirs. Got {dtype}: leave it out.", field="dtype"
        )


def _name_model(name: Path | str, *, bundled: bool) -> str | None:
    """Return the name of a model in reports and errors; None for its folder's."""
    if bundled:
        return f"{BUNDLED}{Path(name).name}"
    return str(name) if is_hub_name(name) else None


def _read_settings(path: Path, name: str | None) -> Source:
    """Return a model after reading its configuration and its tokenizer."""
    source = open_source(path, name)
    _ = source.content, source.tokenizer
    return source


def _read_weight_files(path: Path, known: Source) -> Source:
    """Return a model after checking that its weights are complete: the known one, unless the hub has a new revision."""
    source = known if known.path == path else open_source(path, known.name)
    _ = source.digest
    return source


def _adapter_notes(sources: Sequence[Source]) -> list[str]:
    """Return a note on each model that transformers runs; raises TreeoptError for one that it cannot run."""
    reasons = {role: source.why_adapter for role, source in zip(ROLES, sources, strict=False)}
    return [f"The {role} runs through transformers: {why}" for role, why in reasons.items() if why is not None]


def _run_notes(models: Sequence[LanguageModel]) -> list[str]:
    """Return the models' own notes, and one if matrix products are slower than usual."""
    roles = zip(ROLES, models, strict=False)
    notes = [f"The {role} {note}" for role, model in roles for note in getattr(model, "notes", ())]
    cpu_dtypes = [model.dtype for model in models if isinstance(model, Transformer) and model.device.type == "cpu"]
    slow = next(filter(None, map(slow_products_note, cpu_dtypes)), None)
    return notes if slow is None else [*notes, slow]


def _check_length(sequence_tokens: int, sources: Sequence[Source]) -> None:
    """Refuse sequences that are too long for a model; for transformers' models this is known only after loading."""
    for source in sources:
        sizes = source.sizes
        if sizes is not None and sequence_tokens > sizes.max_positions:
            raise InvalidValueError(
                f"context: expected room for {sequence_tokens} tokens, the context and the steps that are timed after it. "
                f"{source.name} takes {describe_max_positions(sizes)}: use a shorter context, or another model.",
                field="context",
            )


def _check_weights(sources: Sequence[Source], dtype: torch.dtype, device: torch.device) -> None:
    """Raise OutOfMemoryError if the weights of all models need more memory than a device has free."""
    needed_bytes = sum(source.loaded_numbers for source in sources) * dtype.itemsize
    halved = "--dtype bfloat16, " if dtype.itemsize > 2 else ""
    advice = f"use {halved}smaller models, or --offload DIR"
    check_room(device, needed_bytes, f"the weights in {str(dtype).removeprefix('torch.')}", advice)


def _distribution_suffix(model: LanguageModel, *, placed: bool, split: bool) -> str:
    """Return the devices of a distributed target as a suffix of its name, since times in profiles depend on them."""
    if split:
        return f" split over {torch.distributed.get_world_size()} processes"
    devices = ", ".join(getattr(model, "devices", ())) if placed else ""
    return f" over {devices}" if devices else ""
