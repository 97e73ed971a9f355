"""Folders that are written as a whole, such as models: those that treeopt wrote, which alone may be written over."""

import tempfile
from pathlib import Path

from treeopt.errors import TreeoptError
from treeopt.files.marks import written_by_treeopt

CONFIG = "config.json"


def holds_own(path: Path | str) -> bool:
    """Return whether a folder holds what treeopt wrote; False where it is empty or not there.

    Raises TreeoptError for a file, for a folder that holds anything else, and for one that cannot be written.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise TreeoptError(f"{path}: is a file. Expected a folder: name another.")
    try:
        held = folder.is_dir() and any(folder.iterdir())
        with tempfile.TemporaryFile(dir=folder if held else folder.resolve().parent):
            pass
        own = held and (folder / CONFIG).is_file() and written_by_treeopt(folder / CONFIG)
    except OSError as error:
        raise not_writable(path, error) from None
    if held and not own:
        raise TreeoptError(
            f"{path}: expected a new folder, or one that treeopt wrote. It holds files that treeopt did not write: name "
            "another."
        )
    return held


def not_writable(path: Path | str, error: OSError) -> TreeoptError:
    """Return the error that a folder cannot be written."""
    return TreeoptError(f"{path}: cannot be written ({error.strerror}). Name another folder.")
