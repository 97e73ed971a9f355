"""Options that choose the models, and how they run."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.inputs import file
from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import DEVICE, THREADS, Parsed
from treeopt.records.machine import AUTO

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair

MEMORY_LIMIT = re.compile(r"(?P<device>cpu|0|[1-9]\d{0,2})=(?P<size>\d{1,9}[KMG]i?B)", re.ASCII)
DTYPE = click.Choice([AUTO, "float32", "bfloat16", "float16"])


def _parse_memory_limits(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a device (`cpu` or the number of a GPU) and a size.

    >>> _parse_memory_limits("cpu=4GB,0=20GiB")
    (('cpu', '4GB'), ('0', '20GiB'))
    """
    limits: dict[str, str] = {}
    for part in text.split(","):
        match = MEMORY_LIMIT.fullmatch(part.strip())
        if match is None or match["device"] in limits:
            raise ValueError(text)
        limits[match["device"]] = match["size"]
    return tuple(limits.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    target: Path | None = option(
        "--target",
        type=file,
        metavar="MODEL",
        help="Target model: a folder, a GGUF file, or a name on the Hugging Face hub; by default the one of the profile "
        "or tree file that is read, otherwise the bundled pair.",
    )
    draft: Path | None = option(
        "--draft", type=file, metavar="MODEL", help="Draft model, in the same forms as --target."
    )
    device: str = option(
        "--device",
        type=DEVICE,
        default=AUTO,
        help="Device: auto, cpu, cuda, cuda:1, …; auto takes that of the profile or tree file, then CUDA, then the CPU.",
    )
    dtype: str = Heading.MODELS.option(
        "--dtype",
        type=DTYPE,
        default=AUTO,
        help="Data type; auto takes that of the profile or tree file, then the checkpoint's on CUDA or float32 on the "
        "CPU. GGUF files keep theirs.",
    )
    threads: int | None = Heading.MODELS.option(
        "--threads", type=THREADS, help="CPU threads; by default torch's choice."
    )
    offload: Path | None = Heading.MODELS.option(
        "--offload",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Folder for weights of the target that fit on no device.",
    )
    max_memory: tuple[tuple[str, str], ...] = Heading.MODELS.option(
        "--max-memory",
        type=Parsed("limits", "one limit for each device, such as cpu=4GB,0=20GiB", _parse_memory_limits),
        default=(),
        help="Maximum memory for the target's weights on each device, such as cpu=4GB,0=20GiB.",
    )

    def load(self, *, sequence_tokens: int = 0, tensor_parallel: bool = False, quiet: bool = False) -> "ModelPair":
        """Load the models and print on standard error how they run.

        Args:
            sequence_tokens: longest sequence; models that are known not to take it are refused before their weights load.
            tensor_parallel: split the target over the processes that torchrun started.
            quiet: print nothing.
        """
        from treeopt.runtime.models.hf.loading import Placement
        from treeopt.runtime.models.pair import describe_run, load_pair

        placed = self.offload is not None or self.max_memory
        pair = load_pair(
            self.target,
            self.draft,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            placement=Placement(max_memory=self.max_memory, offload_folder=self.offload) if placed else None,
            tensor_parallel=tensor_parallel,
            sequence_tokens=sequence_tokens,
        )
        for line in () if quiet else (describe_run(pair), *pair.notes):
            click.echo(line, err=True)
        return pair
