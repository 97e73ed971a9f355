"""Frozen records as JSON."""

import json
from typing import Any

from treeopt.records.as_dict import INLINE, as_dict

__all__ = ["INLINE", "json_line", "json_lines", "json_text"]


def json_text(record: Any) -> str:
    """Return a record as a JSON object with an indent of 2, see `treeopt.records.as_dict`."""
    return json.dumps(as_dict(record), indent=2)


def json_lines(record: Any) -> str:
    """Return a record as a JSON object of one key a line; raises ValueError for a number that JSON does not have."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in as_dict(record).items())
    return "{\n" + ",\n".join(lines) + "\n}"


def json_line(record: Any) -> str:
    """Return a record as a JSON object in one line; raises as `json_lines` does."""
    return json.dumps(as_dict(record), allow_nan=False)
