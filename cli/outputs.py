"""Paths that a command reads and writes.

As with compilers, the output that `-o` names is replaced, whole or not at all, unless the command reads it.  Files that
the user did not name (checkpoints, side files, folders) are not replaced without `--force`.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from treeopt.errors import TreeoptError
from treeopt.files.whole_files import STANDARD_STREAM, check_writable, is_stream


class InputFile(click.Path):
    """The path of something that is read."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)


class OutputFile(click.Path):
    """The path of something that is written.

    Args:
        stream: whether `-`, standard output, may be meant.
    """

    def __init__(self, *, stream: bool) -> None:
        super().__init__(path_type=Path, allow_dash=stream)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; a usage error for standard output where only a file will do."""
        if str(value) == STANDARD_STREAM and not self.allow_dash:
            self.fail("expected a file. Got -, standard output.", param, ctx)
        return super().convert(value, param, ctx)


class Named(NamedTuple):
    """A path under the name of the option, or argument, that gave it."""

    name: str
    path: Path


def check_outputs(outputs: Iterable[Named], inputs: Iterable[Named] = ()) -> None:
    """Check everything that a command will write, before any work.

    Raises click.UsageError for an output that is also an input or written twice, TreeoptError for one that cannot be
    written.
    """
    outputs, inputs = list(outputs), list(inputs)
    for number, (name, path) in enumerate(outputs):
        if is_stream(path):
            continue
        if any(other.path.exists() and _same(path, other.path) for other in inputs):
            raise click.UsageError(f"{name}: {path} is read, and would be overwritten. Choose another name.")
        for other in outputs[:number]:
            if not is_stream(other.path) and _same(path, other.path):
                raise click.UsageError(f"{other.name} and {name}: expected a different file for each. Got {path}.")
    for _, path in outputs:
        check_writable(path)


def check_unnamed(paths: Iterable[Path], *, force: bool) -> None:
    """Raise TreeoptError for a file that exists although the user did not name it, unless `force` is set."""
    for path in paths:
        if path.exists() and not force:
            raise TreeoptError(f"{path}: exists, and no option names it. Replace it with --force, or move it away.")


def check_folder(path: Path, *, force: bool) -> None:
    """Check a folder whose files will be written: new, empty or, with `force`, any folder that can be written.

    Raises TreeoptError otherwise.
    """
    if path.exists() and not path.is_dir():
        raise TreeoptError(f"{path}: is a file. Expected a folder: name another.")
    try:
        with tempfile.TemporaryFile(dir=path if path.is_dir() else path.resolve().parent):
            pass
        if path.is_dir():
            check_unnamed(path.iterdir(), force=force)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Name another folder.") from None


def _same(path: Path, other: Path) -> bool:
    """Return whether two paths lead to one file; one that is not there is told by its path."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()
