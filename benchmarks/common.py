"""Functions that the benchmarks share."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

if TYPE_CHECKING:
    from treeopt.runtime import Decoder
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile

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


def pair_drafters(models: "ModelPair", heads: Mapping[str, Path]) -> "dict[str, TreeFile]":
    """Return a tree file for plain decoding, and one or two for every drafter of a pair.

    Args:
        models: the pair; without a draft model, no drafter needs one.
        heads: folders of the target's heads by the drafter's name; the bundled target's are found without.
    """
    from treeopt import bundled as bundle
    from treeopt.trees import TreeFile, chain, level_widths
    from treeopt.trees.drafter_setting import drafter_setting

    tree = level_widths([2, 2, 2, 1])
    own_trees: dict[str, dict[str, Any]] = {
        "eagle2": {"top_k": 2, "depth": 5, "nodes": 9},
        "specexec": {"budget": 16, "branching": 4, "batch": 4, "max_passes": 5},
        "redrafter": {"width": 2, "length": 5},
        "ddtree": {"budget": 16},
        "prompt-lookup": {"ngram": 4, "length": 8},
        "lookahead": {"window": 4, "ngram": 4, "candidates": 4},
    }

    def plan(name: str, folder: Path | None = None) -> TreeFile:
        source, values = None if folder is None else str(folder), own_trees.get(name, {})
        setting = drafter_setting(name, source=source, **values)
        return TreeFile(tree=chain(setting.longest_draft) if values else tree, drafter=setting)

    drafters = {"plain": TreeFile(tree=chain(0))}
    if models.draft is not None:
        drafters |= {"chain of 6": TreeFile(tree=chain(6)), "tree": TreeFile(tree=tree)}
        drafters |= {name: plan(name) for name in ("eagle2", "specexec")}
    if models.bundled:
        folders = bundle.MEDUSA, bundle.REDRAFTER, bundle.EAGLE, bundle.EAGLE, bundle.DFLASH, bundle.DFLASH
        heads = dict(zip(("medusa", "redrafter", "eagle", "eagle2", "dflash", "ddtree"), folders, strict=True))
    drafters |= {"eagle2 on head" if name == "eagle2" else name: plan(name, folder) for name, folder in heads.items()}
    return {**drafters, "prompt lookup": plan("prompt-lookup"), "lookahead": plan("lookahead")}


def planned_decoder(
    models: "ModelPair", planned: "TreeFile", *, rule: str | None = None, sequence_tokens: int | None = None
) -> "Callable[[float], Decoder]":
    """Return a function that builds the decoder of a tree file for a temperature.

    Args:
        models: the pair that decodes.
        planned: tree and drafter.
        rule: by default `sequoia` for the draft model and `target` for other drafters, which do not sample.
        sequence_tokens: of the longest sequence, prompt included; by default the target's maximum.
    """
    from treeopt.methods.build import build_decoder
    from treeopt.profiler.decoding import Decoding
    from treeopt.records.sampling import Sampling

    used_rule = rule or ("sequoia" if planned.drafter is None else "target")

    def with_temperature(temperature: float) -> "Decoder":
        decoding = Decoding(rule=used_rule, sampling=Sampling(temperature=temperature))
        return build_decoder(models, planned, decoding, sequence_tokens=sequence_tokens)

    return with_temperature


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
