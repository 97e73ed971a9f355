"""A target and a draft model that can work together, from folders or from the bundle."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from treeopt import pair as bundle
from treeopt.errors import FormatError, InvalidValueError
from treeopt.files import read_text
from treeopt.runtime.checkpoint import load_model
from treeopt.runtime.tokenizer import Tokenizer
from treeopt.runtime.transformer import Transformer

PROMPTS_MAX_BYTES = 16_000_000
BENCH_EVERY = 4
"""Every so many prompts one is kept for benchmarks, the others are for profiles."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """Two models and the tokenizer they share."""

    target: Transformer
    draft: Transformer
    tokenizer: Tokenizer


def load_pair(
    target: Path | str | None = None,
    draft: Path | str | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> ModelPair:
    """Load a target and a draft model; without folders, the bundled pair.

    `threads` sets how many CPU threads torch uses from now on; by default its own choice.

    Raises InvalidValueError when only one folder is given, when device or dtype are not there, or when the
    vocabularies differ; TreeoptError when a folder does not hold a model.
    """
    if (target is None) != (draft is None):
        raise InvalidValueError("target, draft: expected both folders, or neither for the bundled pair. Got one.")
    if dtype not in DTYPES:
        raise InvalidValueError(f"dtype: expected one of {', '.join(DTYPES)}. Got {dtype!r}.")
    place = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    target_folder, draft_folder = Path(target or bundle.TARGET), Path(draft or bundle.DRAFT)
    target_tokenizer, draft_tokenizer = Tokenizer(target_folder), Tokenizer(draft_folder)
    _check_same_tokens(target_tokenizer, draft_tokenizer)
    models = [load_model(folder, dtype=DTYPES[dtype], device=place) for folder in (target_folder, draft_folder)]
    if models[0].config.vocabulary != models[1].config.vocabulary:
        raise InvalidValueError(
            f"draft: expected the target's vocabulary of {models[0].config.vocabulary} tokens. "
            f"Got {models[1].config.vocabulary}: choose a draft model of the same family."
        )
    if target is None:
        for model in models:
            model.name = f"bundled {model.name}"
    return ModelPair(target=models[0], draft=models[1], tokenizer=target_tokenizer)


def load_prompts(path: Path | str = bundle.PROMPTS) -> list[str]:
    """Return the texts of a prompts file: a JSON list of objects with a `text`; by default the bundled one.

    Raises FormatError naming the first entry without text.
    """
    try:
        entries = json.loads(read_text(path, limit_bytes=PROMPTS_MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise FormatError(path, "content", f"expected JSON ({error}).") from None
    if not isinstance(entries, list) or not entries:
        raise FormatError(path, "content", "expected a list of prompts, at least one.")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str) or not entry["text"]:
            raise FormatError(path, f"[{index}].text", "expected a text that is not empty.")
    return [entry["text"] for entry in entries]


def profile_prompts(prompts: list[str]) -> list[str]:
    """Return the prompts that profiles are measured on."""
    return [prompt for index, prompt in enumerate(prompts) if index % BENCH_EVERY]


def bench_prompts(prompts: list[str]) -> list[str]:
    """Return the prompts kept for benchmarks, none of which a profile has seen."""
    return prompts[::BENCH_EVERY]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InvalidValueError(f"device: expected one that is there, such as cpu. Got {name!r} ({reason}).") from None
    return device


def _check_same_tokens(target: Tokenizer, draft: Tokenizer) -> None:
    ours, theirs = target.vocabulary, draft.vocabulary
    if ours == theirs:
        return
    differing = sorted(ours.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))
    token, index = differing[0]
    raise InvalidValueError(
        f"draft: expected the target's vocabulary, token by token. {len(differing)} entries differ, the first is "
        f"{token!r} as token {index}: choose a draft model of the same family."
    )
