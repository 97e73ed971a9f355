"""Options that choose a pair of models, and how it is run."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options.inputs import file
from treeopt.cli.options.record import Heading, option, options
from treeopt.cli.options.values import DEVICE, THREADS

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair

MEMORY_LIMIT = re.compile(r"(?P<device>cpu|0|[1-9]\d{0,2})=(?P<size>\d{1,9}[KMG]i?B)", re.ASCII)


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
    """Which pair, and how it is run."""

    target: Path | None = field(
        metadata=option(
            "--target",
            type=file,
            metavar="MODEL",
            help="Target model: a folder, a GGUF file, or a name on the Hugging Face hub; by default the bundled pair.",
        )
    )
    draft: Path | None = field(
        metadata=option(
            "--draft", type=file, metavar="MODEL", help="Draft model: a folder, a GGUF file, or a name on the hub."
        )
    )
    device: str = field(
        metadata=option(
            "--device",
            type=DEVICE,
            metavar="DEVICE",
            default="cpu",
            show_default=True,
            help="Where to run: cpu, cuda, cuda:1, …",
        )
    )
    dtype: str = field(
        metadata=option(
            "--dtype",
            heading=Heading.MODELS,
            type=click.Choice(["float32", "bfloat16", "float16"]),
            default="float32",
            show_default=True,
            help="Number format to run in; GGUF files keep theirs.",
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
        """Load the pair and say on standard error what is special about it; torch is imported here and not before.

        A pair that cannot take a text of `text_tokens` is refused before its weights are loaded, where that is known.
        """
        from treeopt.runtime.models.pair import load_pair

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
        for note in () if self.quiet else pair.notes:
            click.echo(note, err=True)
        return pair


pair_options = options(PairOptions, "pair")
"""Adds the options that choose a pair, for scripts; the function receives them as `pair`."""
