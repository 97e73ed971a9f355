"""Paths that a command reads and writes, checked before any work.

As with compilers, the output that `-o` names is replaced, whole or not at all, unless the command reads it. Files that
the user did not name (checkpoints, side files, folders) are replaced only with `--force`.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.files.atomic_files import STANDARD_STREAM, check_writable, is_stream, numbered_files

NamedPath = tuple[str, Path]
"""A path after the option or argument that it came from."""
DEFAULT_RECORD = ""
"""Value of `--record` without a file: the draft record is written next to the profile."""


class InputFile(click.Path):
    """The path of a file or pipe to read."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)
        self.name = "file"


class OutputFile(click.Path):
    """The path of a file to write; with `stream`, also `-` for standard output."""

    def __init__(self, *, stream: bool) -> None:
        super().__init__(path_type=Path, allow_dash=stream)
        self.name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == STANDARD_STREAM and not self.allow_dash:
            self.fail("expected a file. Got -, standard output.", param, ctx)
        return super().convert(value, param, ctx)


class FigureFile(OutputFile):
    """The path of a figure to write."""

    def __init__(self) -> None:
        super().__init__(stream=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from treeopt.files.figure_file import check_suffix

        path = super().convert(value, param, ctx)
        try:
            check_suffix(path)
        except InvalidValueError as error:
            self.fail(str(error), param, ctx)
        return path


def is_stdout(path: Path) -> bool:
    """Return whether a path is `-`, standard output."""
    return str(path) == STANDARD_STREAM


def check_outputs(outputs: Iterable[NamedPath], inputs: Iterable[NamedPath] = ()) -> None:
    """Check all outputs of a command.

    Raises click.UsageError for an output that is also an input or another output, TreeoptError for one that cannot be
    written.
    """
    outputs, inputs = list(outputs), list(inputs)
    for number, (name, path) in enumerate(outputs):
        if is_stream(path):
            continue
        if any(other.exists() and _is_same(path, other) for _, other in inputs):
            raise click.UsageError(f"{name}: {path} is read, and would be overwritten. Choose another name.")
        for other_name, other in outputs[:number]:
            if not is_stream(other) and _is_same(path, other):
                raise click.UsageError(f"{other_name} and {name}: expected a different file for each. Got {path}.")
    for _, path in outputs:
        check_writable(path)


def check_unnamed(paths: Iterable[Path], *, force: bool) -> None:
    """Raise TreeoptError for an existing file that the user did not name, unless `force` is set."""
    for path in paths:
        if path.exists() and not force:
            raise TreeoptError(f"{path}: exists, and no option names it. Replace it with --force, or move it away.")


def check_folder(path: Path, *, force: bool) -> None:
    """Raise TreeoptError unless a folder can be written and, without `force`, is empty or new."""
    if path.exists() and not path.is_dir():
        raise TreeoptError(f"{path}: is a file. Expected a folder: name another.")
    try:
        with tempfile.TemporaryFile(dir=path if path.is_dir() else path.resolve().parent):
            pass
        if path.is_dir():
            check_unnamed(path.iterdir(), force=force)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Name another folder.") from None


def check_checkpoint(output: Path, *others: Path, resume: bool, force: bool) -> None:
    """Check the checkpoint of an output, and further ones.

    Raises click.UsageError for `resume` without a checkpoint, TreeoptError for one that exists, unless `resume` or `force`
    is set, and for one that cannot be written.
    """
    checkpoint = checkpoint_path(output)
    if checkpoint is None:
        if resume:
            raise click.UsageError("--resume: expected -o FILE, next to which unfinished work is saved. Name it.")
        return
    check_writable(checkpoint)
    for path in (file for first in (checkpoint, *others) for file in (first, *numbered_files(first))):
        if path.exists() and not (resume or force):
            raise TreeoptError(
                f"{path}: exists, and holds what an interrupted run measured. Continue with --resume, or start over with "
                "--force."
            )


def check_profile_outputs(path: Path, record: str | None = None, *, resume: bool, force: bool) -> None:
    """Check the profile, its draft record (the value of `--record`) and their checkpoints.

    Raises click.UsageError and TreeoptError as the checks of each file do.
    """
    outputs = [("--output", path)]
    if record is not None:
        outputs.append(("--record", record_path(record, path)))
    if (checkpoint := checkpoint_path(path)) is not None:
        outputs.append(("--output", checkpoint))
    check_outputs(outputs)
    if record == DEFAULT_RECORD:
        check_unnamed([default_record_path(path)], force=force)
    check_checkpoint(path, record_checkpoint_path(path), resume=resume, force=force)


def checkpoint_path(output: Path) -> Path | None:
    """Return where unfinished work is stored until an output is written; None if the output is a stream."""
    return None if is_stream(output) else output.with_name(f"{output.name}.partial")


def record_checkpoint_path(profile: Path) -> Path:
    """Return the folder of the sequences of an unfinished draft record."""
    return profile.with_name(f"{profile.name}.record.partial")


def default_record_path(profile: Path) -> Path:
    """Return where the draft record of a profile is, unless `--record` names another file."""
    return profile.with_suffix(".record.npz")


def record_path(record: str, profile: Path) -> Path:
    """Return the draft record's path for a value of `--record`; raises click.UsageError if it cannot be written there."""
    if record == DEFAULT_RECORD and is_stdout(profile):
        raise click.UsageError("--record: expected a file, because the profile goes to standard output. Name one.")
    path = default_record_path(profile) if record == DEFAULT_RECORD else Path(record)
    if is_stdout(path) or path == profile:
        raise click.UsageError(f"--record: expected a file of its own. Got {record}: a record is not text.")
    return path


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()
