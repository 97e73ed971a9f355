"""The files around a profile: what it is made beside."""

from pathlib import Path

import click

from treeopt.cli.options.inputs import record_beside
from treeopt.cli.outputs import Named, check_outputs
from treeopt.errors import TreeoptError
from treeopt.files.marks import JOURNAL_SUFFIX, written_by_treeopt
from treeopt.files.whole_files import STANDARD_STREAM, is_stream

TEXTS_SUFFIX = ".record.partial"
BESIDE = ""
"""Stands for a record file beside the profile."""


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
