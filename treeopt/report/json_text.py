"""Frozen records as JSON: here, and only here, a report becomes a dict."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

from treeopt.records.latency import Estimate

INLINE = {"inline": True}
"""Of a field with a record whose own fields are written among those of the record that holds it."""


def json_text(record: Any) -> str:
    """Return a record as a JSON object with an indent of 2; an estimate is written as its value and `NAME_interval`.

    Args:
        record: a dataclass of numbers, texts, None, estimates, tuples of these, and further dataclasses.
    """
    return json.dumps(_object(record), indent=2)


def json_lines(record: Any) -> str:
    """Return a record as a JSON object of one key a line; raises ValueError for a number that JSON does not have."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in _object(record).items())
    return "{\n" + ",\n".join(lines) + "\n}"


def json_line(record: Any) -> str:
    """Return a record as a JSON object in one line; raises as `json_lines` does."""
    return json.dumps(_object(record), allow_nan=False)


def _object(record: Any) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for each in fields(record):
        value = getattr(record, each.name)
        if each.metadata.get("inline"):
            content |= _object(value)
            continue
        content[each.name] = _plain(value)
        if isinstance(value, Estimate):
            content[f"{each.name}_interval"] = [value.low, value.high]
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.value
    if is_dataclass(value):
        return _object(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
