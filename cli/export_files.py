"""The files of an export: the main one, those beside it, all named after it, and the sidecar that lists them."""

from collections.abc import Callable
from pathlib import Path

import click

from treeopt.cli.outputs import Named, check_outputs, check_unnamed
from treeopt.errors import TreeoptError
from treeopt.files.whole_files import is_stream, write_bytes

SIDECAR_SUFFIX = ".provenance.json"
MAIN = "FILE"
"""Stands for the main file's name in the names of all files of an export."""


def write_export(
    written: Path,
    made: dict[str, bytes],
    inputs: dict[str, Path],
    sidecar: Callable[[dict[str, bytes]], str],
    *,
    force: bool,
) -> list[Path]:
    """Write the files of an export, each whole, and return their paths, the main file's first.

    Args:
        written: the main file; into a stream nothing but it is written.
        made: contents by file name, in which `FILE` stands for the main file's name.
        inputs: files that were read, by what they contain.
        sidecar: returns the sidecar's text for the files by their names.
        force: replace side files that exist.
    """
    if is_stream(written):
        if others := ", ".join(name for name in made if name != MAIN):
            click.echo(f"With -o FILE, {others} would be written next to it.", err=True)
        write_bytes(written, made[MAIN])
        return [written]
    named = {name.replace(MAIN, written.name): data for name, data in made.items()}
    files = {written.parent / name: data for name, data in named.items()}
    files[sidecar_of(written)] = sidecar(named).encode()
    check_export(written, list(files), inputs, force=force)
    for path in files:
        _make_folder(path.parent)
    for path, data in files.items():
        write_bytes(path, data)
    return list(files)


def check_export(written: Path, files: list[Path], inputs: dict[str, Path], *, force: bool) -> None:
    """Refuse files of an export that would replace an input or, without `force`, a side file, and inputs from a pipe.

    Raises click.UsageError and TreeoptError as `check_outputs` and `check_unnamed` do.
    """
    for path in inputs.values():
        if is_stream(path):
            raise TreeoptError(
                f"{path}: expected a file, because its checksum is noted in {SIDECAR_SUFFIX}. Got a pipe or a device: "
                "save it first."
            )
    check_outputs(
        [Named("--output", path) for path in files if path.parent.is_dir()],
        [Named(f"--{name}", path) for name, path in inputs.items()],
    )
    check_unnamed([path for path in files if path != written], force=force)


def sidecar_of(written: Path) -> Path:
    """Return where it is noted what an export was made from, and which files belong to it."""
    return written.with_name(written.name + SIDECAR_SUFFIX)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TreeoptError(f"{folder}: cannot be made ({error.strerror}). Choose another output.") from None
