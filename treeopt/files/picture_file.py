"""Figures as files: formats by suffix, and equal bytes for equal figures."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import InvalidValueError
from treeopt.files.whole_files import file_path, write_bytes
from treeopt.pictures.style import house_style
from treeopt.pictures.svg import svg_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Neither dates nor program versions, nor the user's own style: the same picture gives the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {},
    ".png": {"Software": "treeopt"},
    ".pdf": {"CreationDate": None, "Creator": "treeopt", "Producer": None},
}


def checked_suffix(path: Path | str, *others: str) -> str:
    """Return `.svg`, `.png`, `.pdf` or one of the others, whichever a path ends in.

    Raises InvalidValueError when it ends in none of them.
    """
    suffix, expected = file_path(path).suffix.lower(), (*_METADATA, *others)
    if suffix not in expected:
        raise InvalidValueError(f"{path}: expected a file name ending in {', '.join(expected)}. Got {suffix!r}.")
    return suffix


def save_drawing(figure: "Figure", path: Path | str) -> None:
    """Write a figure, whole or not at all; equal figures give equal bytes.

    Raises InvalidValueError as `checked_suffix` does, TreeoptError when the file cannot be written.
    """
    suffix = checked_suffix(path)
    if suffix == ".svg":
        write_bytes(path, f'<?xml version="1.0" encoding="utf-8"?>\n{svg_text(figure)}\n'.encode())
        return
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format=suffix[1:], dpi=200, metadata=_METADATA[suffix])
    write_bytes(path, buffer.getvalue())
