"""Figure files: the format follows from the suffix, and equal figures give equal bytes."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import InvalidValueError
from treeopt.files.atomic_files import file_path, write_bytes
from treeopt.plotting.style import house_style
from treeopt.plotting.svg import svg_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# no dates and versions, so that equal figures are equal bytes
_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {},
    ".png": {"Software": "treeopt"},
    ".pdf": {"CreationDate": None, "Creator": "treeopt", "Producer": None},
}


def check_suffix(path: Path | str, *others: str) -> str:
    """Return the suffix of a path; raises InvalidValueError unless it is `.svg`, `.png`, `.pdf` or one of the others."""
    suffix, expected = file_path(path).suffix.lower(), (*_METADATA, *others)
    if suffix not in expected:
        raise InvalidValueError(f"{path}: expected a file name ending in {', '.join(expected)}. Got {suffix!r}.")
    return suffix


def write_figure(figure: "Figure", path: Path | str) -> None:
    """Write a figure atomically; raises InvalidValueError for another suffix, TreeoptError if it cannot be written."""
    suffix = check_suffix(path)
    if suffix == ".svg":
        write_bytes(path, f'<?xml version="1.0" encoding="utf-8"?>\n{svg_text(figure)}\n'.encode())
        return
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format=suffix[1:], dpi=200, metadata=_METADATA[suffix])
    write_bytes(path, buffer.getvalue())
