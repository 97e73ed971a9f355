"""Fields that files of benches have in common: numbers that nobody knows, texts that differ, and what follows from others."""

import math
from typing import Any, TypeVar

from treeopt.files.fields import Fields
from treeopt.files.record_form import read_record
from treeopt.records.results import MOST, Divergence

T = TypeVar("T")

LEAST = 1e-12
"""Of what is divided by."""


def known(fields: Fields, name: str) -> bool:
    """Return whether a field is not null, which then is read."""
    if fields.peek(name) is not None:
        return True
    fields.any(name)
    return False


def number_or_none(fields: Fields, name: str, *, most: float = math.inf) -> float | None:
    """Return a field that must be a number of at least 0, or null."""
    return fields.number(name, most=most) if known(fields, name) else None


def record_or_none(fields: Fields, name: str, kind: type[T]) -> T | None:
    """Return a field that must be the mapping of a record, whose fields may be null where they have a default, or null."""
    content = fields.any(name)
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if value is not None}
    return None if content is None else read_record(fields.inner(name, content), kind)


def flag_or_none(fields: Fields, name: str) -> bool | None:
    """Return a field that must be true, false or null."""
    return fields.flag(name) if known(fields, name) else None


def listed(fields: Fields, name: str) -> list[Fields]:
    """Return a field that must be a list, which may be empty, of things with fields of their own."""
    return [fields.inner(f"{name}[{i}]", each) for i, each in enumerate(_list(fields, name))]


def texts(fields: Fields, name: str) -> tuple[str, ...]:
    """Return a field that must be a list of texts."""
    values = _list(fields, name)
    if not all(isinstance(each, str) for each in values):
        raise fields.error(name, "expected a list of texts.")
    return tuple(fields.inner(name, {"text": each}).text("text") for each in values)


def divergences(fields: Fields, name: str = "divergences") -> tuple[Divergence, ...]:
    """Return a field that must be a list of places where texts part."""
    return tuple(_divergence(each) for each in listed(fields, name))


def follows(fields: Fields, name: str, expected: object) -> None:
    """Read a field that follows from others of the file, and refuse one that says something else."""
    found = fields.any(name)
    if type(found) is not type(expected) or found != expected:
        raise fields.error(
            name, f"expected {expected!r}, which follows from the other fields. Got another: bench again."
        )


def follows_nearly(fields: Fields, name: str, expected: float, *, relative: float = 1e-9, least: float = 1e-9) -> None:
    """Read a number that follows from others, which were rounded, and refuse one that is further off."""
    found = fields.number(name, least=-MOST, most=MOST)
    if not math.isclose(found, expected, rel_tol=relative, abs_tol=least):
        reason = f"expected about {expected:.6g}, which follows from the other fields. Got {found:.6g}: bench again."
        raise fields.error(name, reason)


def _divergence(fields: Fields) -> Divergence:
    found = Divergence(
        prompt=fields.integer("prompt", least=0),
        place=fields.integer("place", least=0),
        gap=fields.number("gap"),
        near_tie=fields.flag("near_tie"),
    )
    fields.end()
    return found


def _list(fields: Fields, name: str) -> list[Any]:
    found = fields.any(name)
    if not isinstance(found, list):
        raise fields.error(name, "expected a list.")
    return found
