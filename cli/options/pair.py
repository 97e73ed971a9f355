"""Options that choose the models, and how they are run."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options.inputs import file
from treeopt.cli.options.record import Heading, option, options
from treeopt.cli.options.values import DEVICE, THREADS
from treeopt.records.machine import AUTO

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair

MEMORY_LIMIT = re.compile(r"(?P<device>cpu|0|[1-9]\d{0,2})=(?P<size>\d{1,9}[KMG]i?B)", re.ASCII)


DTYPE = click.Choice([AUTO, "float32", "bfloat16", "float16"])


class MemoryLimits(click.ParamType[tuple[tuple[str, str], ...]]):
    """What each device may hold, such as `cpu=4GB,0=20GiB`: pairs of a device, GPUs by their number, and a size."""

    name = "limits"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, str], ...]:
        """Return the pairs; a usage error for anything else."""
        if isinstance(value, tuple):
            return value
        found: dict[str, str] = {}
        for part in str(value).split(","):
            match = MEMORY_LIMIT.fullmatch(part.strip())
            if match is None:
                self.fail(f"expected limits such as cpu=4GB,0=20GiB. Got {part.strip()!r}.", param, ctx)
            if match["device"] in found:
                self.fail(f"expected one limit for each device. Got two for {match['device']}.", param, ctx)
            found[match["device"]] = match["size"]
        return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Which models, and how they are run."""

    target: Path | None = field(
        metadata=option(
            "--target",
            type=file,
            metavar="MODEL",
            help="Target model: a folder, a GGUF file, or a name on the Hugging Face hub; by default that of the file "
            "at hand, else the bundled pair.",
        )
    )
    draft: Path | None = field(
        metadata=option(
            "--draft",
            type=file,
            metavar="MODEL",
            help="Draft model, one drafter among others: a folder, a GGUF file, or a name on the hub.",
        )
    )
    device: str = field(
        metadata=option(
            "--device",
            type=DEVICE,
            metavar="DEVICE",
            default=AUTO,
            show_default=True,
            help="Where to run: auto, cpu, cuda, cuda:1, …; auto is that of the file at hand, else CUDA, else the CPU.",
        )
    )
    dtype: str = field(
        metadata=option(
            "--dtype",
            heading=Heading.MODELS,
            type=DTYPE,
            default=AUTO,
            show_default=True,
            help="Dtype to run in; auto is that of the file at hand, else the checkpoint's own on CUDA, float32 on the CPU. "
            "GGUF files keep theirs.",
        )
    )
    threads: int | None = field(
        metadata=option(
            "--threads", heading=Heading.MODELS, type=THREADS, help="CPU threads; by default torch's choice."
        )
    )
    offload: Path | None = field(
        default=None,
        metadata=option(
            "--offload",
            heading=Heading.MODELS,
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Where to lay weights of the target that no device holds.",
        ),
    )
    max_memory: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=option(
            "--max-memory",
            heading=Heading.MODELS,
            type=MemoryLimits(),
            default=(),
            metavar="LIMITS",
            help="What of the target each device may hold, such as cpu=4GB,0=20GiB.",
        ),
    )
    tensor_parallel: bool = False
    """Whether the target is split over the processes that torchrun started."""
    quiet: bool = False
    """Whether nothing is said of the pair."""

    def load(self, *, text_tokens: int = 0) -> "ModelPair":
        """Load the models and print on standard error how they run; torch is imported here and not before.

        Models that cannot take a sequence of `text_tokens` are refused before their weights are loaded, where that is known.
        """
        from treeopt.runtime.models.pair import load_pair, running_line

        placement = None
        if self.offload is not None or self.max_memory:
            from treeopt.runtime.models.hf.loading import Placement

            placement = Placement(max_memory=self.max_memory, offload_folder=self.offload)
        pair = load_pair(
            self.target,
            self.draft,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            placement=placement,
            tensor_parallel=self.tensor_parallel,
            text_tokens=text_tokens,
        )
        for line in () if self.quiet else (running_line(pair), *pair.notes):
            click.echo(line, err=True)
        return pair


pair_options = options(PairOptions, "pair")
"""Adds the options that choose a pair, for scripts; the function receives them as `pair`."""
