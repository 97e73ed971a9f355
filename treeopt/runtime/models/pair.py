"""A target and a draft model that can work together, from folders, from the hub, or from the bundle."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from treeopt import bundled as bundle
from treeopt.errors import InvalidValueError
from treeopt.records.machine import Pair
from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.hub import SETTINGS, is_hub_name, model_folder
from treeopt.runtime.models.load import (
    Source,
    adapter_reason,
    load_language_model,
    logit_columns,
    longest_text,
    number_format,
    source_of,
)
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.vocabulary import check_same_tokens, shared_columns, trimmed
from treeopt.texts.tokenizer import Tokenizer

if TYPE_CHECKING:
    from treeopt.runtime.models.hf.loading import Placement

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """Two models and the tokenizer they share."""

    target: LanguageModel
    draft: LanguageModel
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()
    """What a user should know of how they run, a sentence each."""
    described: Pair
    """What they are and were loaded from, as profiles keep it."""

    @property
    def bundled(self) -> bool:
        """Whether the target is the bundled one."""
        return self.described.target_source is None


def load_pair(
    target: Path | str | None = None,
    draft: Path | str | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    placement: "Placement | None" = None,
    tensor_parallel: bool = False,
    text_tokens: int = 0,
) -> ModelPair:
    """Load a target and a draft model; without names, the bundled pair.

    Configurations, tokenizers and vocabularies are compared before any weight is loaded.

    Args:
        target: model folder in Hugging Face layout, a GGUF file, or a name `org/name` of the Hugging Face hub.
        draft: the same of the draft model.
        device: where both run.
        dtype: number format of both; a GGUF file keeps its own.
        threads: CPU threads that torch and llama.cpp use from now on; by default torch's choice.
        placement: over which devices the target's weights are laid.
        tensor_parallel: split each of the target's layers over all devices.
        text_tokens: the longest text that is planned for.

    Raises InvalidValueError when only one model is given, when device or dtype are not there, when the vocabularies
    differ, or when a text is too long for a model; TreeoptError when a folder does not hold a model or a name cannot be resolved.
    """
    if (target is None) != (draft is None):
        raise InvalidValueError("target, draft: expected both models, or neither for the bundled pair. Got one.")
    if dtype not in DTYPES:
        raise InvalidValueError(f"dtype: expected one of {', '.join(DTYPES)}. Got {dtype!r}.")
    names = (target or bundle.TARGET, draft or bundle.DRAFT)
    _check_files(names, device, dtype, spread=placement is not None or tensor_parallel)
    place = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    folders = [model_folder(name, _with_settings, SETTINGS) for name in names]
    tokenizer, notes = _check_settings(*folders)
    _check_length(text_tokens, folders)
    folders = [
        model_folder(name, partial(_with_weights, known=folder)) for name, folder in zip(names, folders, strict=True)
    ]
    models = [
        load_language_model(
            folders[0], dtype=DTYPES[dtype], device=place, placement=placement, tensor_parallel=tensor_parallel
        ),
        load_language_model(folders[1], dtype=DTYPES[dtype], device=place),
    ]
    for model, name in zip(models, names, strict=True):
        if target is None:
            model.name = f"bundled {model.name}"
        elif is_hub_name(name):
            model.name = str(name)
    models[0].name += _spread(models[0], placed=placement is not None, split=tensor_parallel)
    sizes = [model.config.vocabulary for model in models]
    shared = shared_columns(tokenizer.vocabulary, target=sizes[0], draft=sizes[1])
    if sizes[0] != sizes[1]:
        notes.append(
            f"The target has {sizes[0]} logits and the draft {sizes[1]}: the first {shared} are used, which are those "
            "of all tokens."
        )
    described = Pair(
        target=models[0].name,
        draft=models[1].name,
        dtype=number_format(folders[0], models[0]),
        vocabulary=shared,
        target_parameters=models[0].parameters,
        draft_parameters=models[1].parameters,
        target_source=None if target is None else str(target),
        draft_source=None if draft is None else str(draft),
        target_digest=folders[0].digest,
        draft_digest=folders[1].digest,
    )
    return ModelPair(
        target=trimmed(models[0], shared),
        draft=trimmed(models[1], shared),
        tokenizer=tokenizer,
        notes=tuple(notes),
        described=described,
    )


def draft_folder(pair: ModelPair) -> Path:
    """Return the folder that a pair's draft model was loaded from, of a model of the hub its copy in the local cache."""
    return Path(model_folder(pair.described.draft_source or bundle.DRAFT, _with_settings, SETTINGS).path)


def _check_files(names: Sequence[Path | str], device: str, dtype: str, *, spread: bool) -> None:
    """Refuse what is asked of GGUF files and cannot be."""
    files = [name for name in names if is_gguf(name)]
    if files and (device != "cpu" or spread):
        raise InvalidValueError(f"{files[0]}: expected to run on cpu, as GGUF models do. Got more: leave it out.")
    if len(files) == len(names) and dtype != "float32":
        raise InvalidValueError(f"dtype: expected none, because GGUF files keep theirs. Got {dtype}: leave it out.")


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


def _check_settings(target: Source, draft: Source) -> tuple[Tokenizer, list[str]]:
    """Return the shared tokenizer, and a note on each model that transformers run; refuse pairs that cannot work."""
    reasons = {"target": adapter_reason(target), "draft": adapter_reason(draft)}
    notes = [f"The {name} runs through transformers: {why}" for name, why in reasons.items() if why is not None]
    tokenizer, columns = target.tokenizer, (logit_columns(target), logit_columns(draft))
    check_same_tokens(tokenizer.vocabulary, draft.tokenizer.vocabulary)
    if columns[0] is not None and columns[1] is not None:
        shared_columns(tokenizer.vocabulary, target=columns[0], draft=columns[1])
    return tokenizer, notes


def _check_length(text_tokens: int, folders: Sequence[Source]) -> None:
    """Refuse a text that is longer than a model was trained for; transformers' models tell once loaded."""
    for folder in folders:
        if (most := longest_text(folder)) is not None and text_tokens > most:
            raise InvalidValueError(
                f"context: expected room for {text_tokens} tokens, the context and what is timed behind it. "
                f"{folder.path.name} was trained on {most}: use a shorter context."
            )


def _spread(model: LanguageModel, *, placed: bool, split: bool) -> str:
    """Return over what a target is spread, for its name: times depend on it, and profiles are to tell."""
    if split:
        return f" split over {torch.distributed.get_world_size()} processes"
    places = ", ".join(getattr(model, "places", ())) if placed else ""
    return f" over {places}" if places else ""


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InvalidValueError(f"device: expected one that is there, such as cpu. Got {name!r} ({reason}).") from None
    return device
