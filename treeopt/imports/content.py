"""What the readers share: JSON, its kinds of numbers, and how a source is named."""

import json
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError
from treeopt.trees.tree_file import no_duplicates

MAX_NAME = 80
MAX_REASON = 120


def read_json(path: Path | str, text: str) -> Any:
    """Return the value of JSON text; raises FormatError for text that is none and for keys that appear twice."""
    try:
        return json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise FormatError(path, "content", f"expected JSON ({reason}). Is it complete?") from None


def source_text(path: Path | str, kind: str) -> str:
    """Return how an imported file is named in a profile.

    >>> source_text("measured/costs.json", "SGLang cost table")
    'costs.json (SGLang cost table)'
    """
    name = "".join(letter if letter.isprintable() else "?" for letter in Path(path).name)
    return f"{name[:MAX_NAME]} ({kind})"
