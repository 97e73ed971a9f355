"""Frozen records as dicts: here, and only here, what is told of a plan or a bench becomes one, for JSON and for Python."""

from dataclasses import fields, is_dataclass
from typing import Any

from treeopt.records.latency import Estimate

INLINE = {"inline": True}
"""Of a field with a record whose own fields are written among those of the record that holds it."""


def as_dict(record: Any) -> dict[str, Any]:
    """Return a record's fields by name, records within as dicts; an estimate is its value and `NAME_interval`.

    Args:
        record: a dataclass of numbers, texts, None, estimates, tuples of these, and further dataclasses.
    """
    content: dict[str, Any] = {}
    for each in fields(record):
        value = getattr(record, each.name)
        if each.metadata.get("inline"):
            content |= as_dict(value)
            continue
        content[each.name] = _plain(value)
        if isinstance(value, Estimate):
            content[f"{each.name}_interval"] = [value.low, value.high]
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.value
    if is_dataclass(value):
        return as_dict(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
