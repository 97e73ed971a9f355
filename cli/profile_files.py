"""The files next to a profile: its draft record, and the checkpoint of an unfinished one."""

from collections.abc import Iterable
from pathlib import Path

import click

from treeopt.cli.options.inputs import record_beside
from treeopt.cli.outputs import Named, check_outputs, check_unnamed
from treeopt.errors import TreeoptError
from treeopt.files.whole_files import STANDARD_STREAM, is_stream, numbered_files

CHECKPOINT_SUFFIX = ".partial"
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


def check_files(path: Path, record_name: str | None = None, *, resume: bool, force: bool) -> None:
    """Check a profile, its draft record and its checkpoint before any work; arguments are those of the command.

    Raises click.UsageError and TreeoptError as `check_outputs` and `check_unnamed` do.
    """
    outputs = [Named("--output", path)]
    if record_name is not None:
        outputs.append(Named("--record", record_file(record_name, path)))
    if not is_stream(path):
        outputs.append(Named("--output", journal_path(path)))
    check_outputs(outputs)
    if record_name == BESIDE:
        check_unnamed([record_file(record_name, path)], force=force)
    if not is_stream(path):
        check_checkpoint([journal_path(path), texts_path(path)], resume=resume, force=force)


def check_checkpoint(paths: Iterable[Path], *, resume: bool, force: bool) -> None:
    """Raise TreeoptError for a checkpoint that would be lost: one that exists, unless `resume` or `force` is set."""
    for path in (each for first in paths for each in (first, *numbered_files(first))):
        if path.exists() and not (resume or force):
            raise TreeoptError(
                f"{path}: exists, and holds what an interrupted run measured. Continue with --resume, or start over with "
                "--force."
            )


def texts_path(path: Path) -> Path:
    """Return the folder where the recorded texts of an unfinished profile are kept."""
    return path.with_name(path.name + TEXTS_SUFFIX)


def journal_path(path: Path) -> Path:
    """Return where the measurements of an unfinished profile are kept."""
    return path.with_name(path.name + CHECKPOINT_SUFFIX)
