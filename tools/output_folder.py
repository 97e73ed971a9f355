"""Folders of trained weights, written whole or not at all."""

import tempfile
from collections.abc import Callable
from pathlib import Path


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Write files to a folder once all of them are complete; an interruption leaves the folder as it was.

    Args:
        folder: may exist; files of other names stay.
        write: writes the files to the folder in its argument.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        write(Path(temporary))
        folder.mkdir(exist_ok=True)
        for file in Path(temporary).iterdir():
            file.replace(folder / file.name)
