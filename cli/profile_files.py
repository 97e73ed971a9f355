"""The files around a profile: what it is made beside, and what of it was measured elsewhere."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treeopt.cli.options import file, record_beside
from treeopt.cli.outputs import Named, check_outputs
from treeopt.errors import TreeoptError
from treeopt.files.marks import written_by_treeopt
from treeopt.files.whole_files import STANDARD_STREAM, is_stream

if TYPE_CHECKING:
    from treeopt.engines.reports import ImportedLatency
    from treeopt.records.profile import MeasuredAcceptance

JOURNAL_SUFFIX = ".partial"
TEXTS_SUFFIX = ".record.partial"
BESIDE = ""
"""Stands for a record file beside the profile."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Files of what was measured elsewhere; None where it is to be measured here."""

    latency: Path | None
    draft_latency: Path | None
    acceptance: Path | None

    @property
    def times(self) -> bool:
        """Whether nothing is left to be timed here."""
        return self.latency is not None and self.draft_latency is not None

    @property
    def everything(self) -> bool:
        """Whether no model is needed at all."""
        return self.times and self.acceptance is not None

    def latencies(self) -> "tuple[ImportedLatency, ...]":
        """Return the imported curves."""
        from treeopt.engines.reports import read_latency

        files = ((self.latency, "verify"), (self.draft_latency, "draft"))
        return tuple(each for path, what in files if path for each in read_latency(path, default_pass=what))

    def acceptances(self, *, rule: str, temperature: float, top_p: float) -> "tuple[MeasuredAcceptance, ...]":
        """Return the imported acceptance, if there is one."""
        from treeopt.engines.reports import read_acceptance

        if self.acceptance is None:
            return ()
        return (read_acceptance(self.acceptance, rule=rule, temperature=temperature, top_p=top_p),)


def import_options(function: Function) -> Function:
    """Add the options that name files to import; the command receives them as one `imports`."""

    @functools.wraps(function)
    def command(
        *args: Any, latency: Path | None, draft_latency: Path | None, acceptance: Path | None, **kwargs: Any
    ) -> Any:
        imports = ImportOptions(latency=latency, draft_latency=draft_latency, acceptance=acceptance)
        return function(*args, imports=imports, **kwargs)

    options = [
        click.option(
            "--latency",
            type=file,
            metavar="FILE",
            help="Verify times measured elsewhere: CSV (tokens, seconds), SGLang's or TensorRT-LLM's cost table.",
        ),
        click.option("--draft-latency", type=file, metavar="FILE", help="Draft times measured elsewhere, as CSV."),
        click.option(
            "--acceptance",
            type=file,
            metavar="FILE",
            help="Acceptance measured elsewhere: rates or counts per position, vLLM's metrics, Sequoia's vector.",
        ),
    ]
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]


def record_file(name: str, path: Path) -> Path:
    """Return where the draft record is written; click.UsageError where that cannot be."""
    if name == BESIDE and str(path) == STANDARD_STREAM:
        raise click.UsageError("--record: expected a file, because the profile goes to standard output. Name one.")
    chosen = Path(name) if name != BESIDE else record_beside(path)
    if name == STANDARD_STREAM or chosen == path:
        raise click.UsageError(f"--record: expected a file of its own. Got {name}: a record is not text.")
    return chosen


def check_files(path: Path, record_path: Path | None) -> None:
    """Refuse a profile or a record that cannot be written, or beside which something lies that treeopt did not write."""
    outputs = [Named("--output", path)]
    if record_path is not None:
        outputs.append(Named("--record", record_path))
    if not is_stream(path):
        outputs.append(Named("--output", journal_path(path)))
    check_outputs(outputs)
    folder = texts_path(path)
    if folder.exists() and not _holds_texts(folder):
        raise TreeoptError(
            f"{folder}: exists, and treeopt did not write it. Name another --output, or remove it first."
        )


def _holds_texts(folder: Path) -> bool:
    """Return whether a folder holds the recorded texts of an unfinished profile and nothing else."""
    if not folder.is_dir():
        return False
    return all(
        each.suffix == ".npz" and each.stem.isdecimal() and each.is_file() and written_by_treeopt(each)
        for each in folder.iterdir()
    )


def texts_path(path: Path) -> Path:
    """Return the folder where the recorded texts of an unfinished profile are kept."""
    return path.with_name(path.name + TEXTS_SUFFIX)


def journal_path(path: Path) -> Path:
    """Return where the measurements of an unfinished profile are kept."""
    return path.with_name(path.name + JOURNAL_SUFFIX)
