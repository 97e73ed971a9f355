"""Reading JSON: limits and errors in one place, and what Python's reader takes though it is none."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError
from treeopt.files.whole_files import read_text

MAX_BYTES = 1_000_000
"""Of a file of settings."""
MAX_REASON = 120


def read_object(path: Path | str, *, limit_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object that a file of at most `limit_bytes` holds.

    Raises TreeoptError when the file is missing, unreadable or too large, FormatError when it holds anything else.
    """
    content = parse_json(path, read_text(path, limit_bytes=limit_bytes))
    if not isinstance(content, dict):
        raise FormatError(path, "content", "expected fields with names.")
    return content


def parse_json(
    path: Path | str, text: str, *, place: str = "content", unique_keys: bool = False, constants: bool = True
) -> Any:
    """Return the value of JSON text.

    Args:
        path: where it stands.
        text: the text.
        place: the part of the file that it is, for errors.
        unique_keys: refuse a key that appears twice in one object; otherwise the last counts.
        constants: take NaN and Infinity, which Python writes.

    Raises FormatError naming path and place for text that is no JSON, is nested too deep or has numbers too long.
    """
    hooks: dict[str, Any] = {} if constants else {"parse_constant": _no_constant}
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates if unique_keys else None, **hooks)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise FormatError(path, place, f"expected JSON ({reason}). Is it complete?") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"the key {twice[0]!r} appears twice")
    return dict(pairs)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
