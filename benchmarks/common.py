"""Functions that the benchmarks share."""

import argparse
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair

Item = TypeVar("Item")
ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"


def script_parser(description: str | None, *, pair: bool = False) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's docstring; with `pair`, it has the options of a pair of models."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if pair:
        parser.add_argument("--target", type=Path, help="model folder; by default the bundled pair")
        parser.add_argument("--draft", type=Path, help="folder of its draft model")
    return parser


def floats(text: str) -> list[float]:
    """Return the numbers of a list with commas."""
    return [float(number) for number in text.split(",")]


def describe_environment() -> str:
    """Return the versions of treeopt, Python and torch, the time and the processor."""
    import torch

    from treeopt.profiler.machine import describe_machine
    from treeopt.records.machine import now
    from treeopt.version import TOOL

    machine = describe_machine(torch.device("cpu"))
    return (
        f"{TOOL}, {now()}, {machine.processor}, {machine.threads} thread{'s' * (machine.threads != 1)}, "
        f"{machine.system}, Python {machine.python}, torch {machine.torch}"
    )


def default_prompts(models: "ModelPair") -> list[list[int]]:
    """Return treeopt's default prompts for a pair as token ids, in the target's chat template if it has one."""
    from treeopt.cli.options.prompts import PromptOptions
    from treeopt.texts.prompts import MAX_PROMPTS

    return PromptOptions(prompts=None, chat=None, max_prompts=MAX_PROMPTS).load(models)


def write_gguf(folders: Sequence[Path], output: Path, dtype: str) -> list[Path]:
    """Write models as GGUF files to a folder, and return their paths; raises ImportError without the package gguf."""
    sys.path.append(str(TOOLS))
    from make_gguf import make_gguf

    paths = [output / f"{folder.name}.gguf" for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        make_gguf(folder, path, dtype)
    return paths


def prose_prompts(characters: int) -> Iterator[str]:
    """Yield the beginnings of paragraphs of treeopt's documentation, of at least 120 characters.

    The bundled pair was trained on program source, so its draft model is accepted less often here.
    """
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for paragraph in page.read_text("utf-8").split("\n\n"):
            if len(paragraph) > 120 and not paragraph.startswith(("|", "`", "#")):
                yield paragraph[:characters]


def progress(items: Collection[Item], title: str) -> Iterable[Item]:
    """Iterate over items with a progress bar if standard error is a terminal; print with `tqdm.write` meanwhile."""
    return tqdm(items, desc=title, leave=False, disable=None)
