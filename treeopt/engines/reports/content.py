"""What the readers share: JSON, its kinds of numbers, and how a source is named."""

from pathlib import Path
from typing import Any

from treeopt.files.json_file import parse_json

MAX_NAME = 80


def read_json(path: Path | str, text: str) -> Any:
    """Return the value of JSON text; raises FormatError for text that is none and for keys that appear twice."""
    return parse_json(path, text, unique_keys=True)


def source_text(path: Path | str, kind: str) -> str:
    """Return how an imported file is named in a profile.

    >>> source_text("measured/costs.json", "SGLang cost table")
    'costs.json (SGLang cost table)'
    """
    name = "".join(letter if letter.isprintable() else "?" for letter in Path(path).name)
    return f"{name[:MAX_NAME]} ({kind})"
