"""JSON files, with size limits and without the extensions of Python's reader."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError
from treeopt.files.atomic_files import read_text
from treeopt.files.fields import Fields

MAX_BYTES = 1_000_000
"""Largest settings file."""
MAX_REASON = 120


def read_object(path: Path | str, *, limit_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object of a file of at most `limit_bytes`.

    Raises TreeoptError if the file is missing, unreadable or too large, FormatError if it contains anything else.
    """
    content: dict[str, Any] = parse_json(path, read_text(path, limit_bytes=limit_bytes))
    Fields(path, content)  # refuses anything but an object
    return content


def parse_json(
    path: Path | str, text: str, *, field: str = "content", unique_keys: bool = False, constants: bool = True
) -> Any:
    """Return the value of JSON text.

    Args:
        path: the file, for errors.
        text: the text.
        field: the part of the file, for errors.
        unique_keys: refuse objects with a repeated key; otherwise its last value counts.
        constants: accept NaN and Infinity, which Python writes.

    Raises FormatError for invalid JSON, and for too deep nesting and too long numbers.
    """
    hooks: dict[str, Any] = {} if constants else {"parse_constant": _refuse_constant}
    try:
        return json.loads(text, object_pairs_hook=_unique_keys if unique_keys else None, **hooks)
    except (ValueError, RecursionError) as error:
        raise _error(path, field, error) from None


def parse_json_values(path: Path | str, text: str, *, field: str) -> list[Any]:
    """Return the values of JSON text that contains one or several in a row, such as concatenated files.

    Raises FormatError as `parse_json` with `unique_keys` does.
    """
    values, position = [], 0
    try:
        while position < len(text):
            value, end = _DECODER.raw_decode(text, position)
            values.append(value)
            position = len(text) - len(text[end:].lstrip())
    except (ValueError, RecursionError) as error:
        raise _error(path, field, error) from None
    return values


def _error(path: Path | str, field: str, error: Exception) -> FormatError:
    reason = " ".join(str(error).split())[:MAX_REASON]
    return FormatError(path, field, f"expected JSON ({reason}). Is it complete?")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {repeated!r} appears twice")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)
