"""Paths that a command reads and writes: no output destroys an input, another output, or a file of the user's own."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from treeopt.errors import TreeoptError
from treeopt.files.marks import written_by_treeopt
from treeopt.files.whole_files import STANDARD_STREAM, check_writable, is_stream, write_text
from treeopt.version import __version__

TOOL = f"treeopt {__version__}"
"""What JSON of treeopt's begins with, so that it is known for its own."""


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


def check_outputs(outputs: Iterable[Named], inputs: Iterable[Named] = (), *, sidecar: Path | None = None) -> None:
    """Refuse outputs that cannot be written, or that would destroy something.

    Args:
        outputs: all that a command writes.
        inputs: all that it reads.
        sidecar: where files of this command's are listed that carry no mark themselves; see `written_by_treeopt`.

    Raises click.UsageError for an output that is also read or written twice, TreeoptError for one that cannot be
    written, or that is there and was not written by treeopt.  Devices and pipes hold nothing that could be lost.
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
        if not is_stream(path):
            _check_own(path, sidecar)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object whole, after the program that wrote it; '-' is standard output."""
    write_text(path, json.dumps({"tool": TOOL, **content}, indent=2) + "\n")


def _same(path: Path, other: Path) -> bool:
    """Return whether two paths lead to one file; one that is not there is told by its path."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _check_own(path: Path, sidecar: Path | None) -> None:
    try:
        own = not path.exists() or written_by_treeopt(path, sidecar=sidecar)
    except OSError as error:
        raise TreeoptError(f"{path}: exists, and cannot be read ({error.strerror}). Name another file.") from None
    if not own:
        raise TreeoptError(f"{path}: exists, and treeopt did not write it. Name another file, or remove it first.")
