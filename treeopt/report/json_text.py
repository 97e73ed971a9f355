"""Records as JSON."""

import json
from typing import Any

from treeopt.files.serialization import serialize_record


def json_text(record: Any) -> str:
    """Return a record as a JSON object with an indent of 2."""
    return json.dumps(serialize_record(record, nulls=True), indent=2)


def json_lines(record: Any) -> str:
    """Return a record or a mapping as a JSON object, one key per line.

    Raises ValueError for nan and infinity.
    """
    content = record if isinstance(record, dict) else serialize_record(record, nulls=True)
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}"
