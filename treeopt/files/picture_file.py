"""Pictures as files: formats by suffix, and the same bytes for the same picture."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import InvalidValueError
from treeopt.files.whole_files import file_path, write_bytes
from treeopt.pictures.style import FONT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Neither dates nor program versions, nor the user's own style: the same picture gives the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": "treeopt"},
    ".png": {"Software": "treeopt"},
    ".pdf": {"CreationDate": None, "Creator": "treeopt", "Producer": None},
}
_STYLE = {"svg.hashsalt": "treeopt", "font.family": FONT, "text.parse_math": False}


def checked_suffix(path: Path | str, *others: str) -> str:
    """Return `.svg`, `.png`, `.pdf` or one of the others, whichever a path ends in.

    Raises InvalidValueError when it ends in none of them.
    """
    suffix, expected = file_path(path).suffix.lower(), (*_METADATA, *others)
    if suffix not in expected:
        raise InvalidValueError(f"{path}: expected a file name ending in {', '.join(expected)}. Got {suffix!r}.")
    return suffix


def save_drawing(draw: Callable[[], "Figure"], path: Path | str) -> None:
    """Write what `draw` draws, whole or not at all.

    Raises InvalidValueError as `checked_suffix` does, TreeoptError when the file cannot be written.
    """
    suffix = checked_suffix(path)
    import matplotlib.style

    buffer = io.BytesIO()
    with matplotlib.style.context(["default", _STYLE]):
        draw().savefig(buffer, format=suffix[1:], dpi=200, metadata=_METADATA[suffix])
    write_bytes(path, buffer.getvalue())
