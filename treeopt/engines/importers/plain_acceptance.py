"""Acceptance in plain JSON: rates per position, conditional rates, counts, or the acceptance table itself."""

from collections.abc import Callable
from typing import Any

from treeopt.engines.importers.acceptance_tables import (
    Vector,
    table_of_conditional,
    table_of_counts,
    table_of_rates,
    vector_of_ranks,
)
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.importer import Measurements
from treeopt.files.fields import Fields
from treeopt.records.acceptance import AcceptanceTable

RATES, CONDITIONAL, TABLE = "synthetic_acceptance_rates", "conditional", "p"
DRAFTS, ACCEPTED = "num_drafts", "accepted_per_pos"
KEYS = frozenset({CONDITIONAL, TABLE, RATES, ACCEPTED})
RATES_KIND = "rates per position"


def is_plain_acceptance(file: ForeignFile) -> bool:
    """Return whether a file is a JSON list of numbers, a list of lists, or an object with one of the keys."""
    content = file.json
    if isinstance(content, dict):
        return bool(content.keys() & KEYS or _inner_tables(content) or _other_keys(content))
    return isinstance(content, list) and not any(isinstance(each, dict) for each in content)


def read_plain_acceptance(file: ForeignFile) -> Measurements:
    """Return the acceptance of a list or an object; raises FormatError naming the field."""
    content = file.json
    return Measurements(acceptance=_of_list(file, content) if isinstance(content, list) else _of_object(file, content))


def vector_acceptance(file: ForeignFile, values: list[float]) -> ImportedAcceptance:
    """Return the acceptance by rank, the same at every depth, of a vector such as Sequoia's."""
    vector: Vector = _build(file, "content", vector_of_ranks, values)
    kind = "; ".join(["acceptance vector", *([vector.remark] if vector.remark else [])])
    return ImportedAcceptance(table=vector.table, kind=kind)


def _of_list(file: ForeignFile, content: list[Any]) -> ImportedAcceptance:
    numbers = _numbers(file, "content", content)
    if isinstance(numbers[0], list):
        return ImportedAcceptance(table=_build(file, "content", AcceptanceTable, numbers), kind="acceptance table")
    if file.ranks:
        return vector_acceptance(file, numbers)
    return ImportedAcceptance(table=_build(file, "content", table_of_rates, numbers), kind=RATES_KIND)


def _of_object(file: ForeignFile, content: dict[str, Any]) -> ImportedAcceptance:
    present = sorted(content.keys() & KEYS)
    if other := _other_keys(content):
        raise file.error(
            other[0],
            f"unknown key. Rename it to {RATES} if its rates are over all drafts, or to {CONDITIONAL} if each is over the drafts "
            "that came so far.",
        )
    if not present:
        names = ", ".join(_inner_tables(content))[:60]
        raise file.error("content", f"expected one table. Got several tables ({names}): write one of them into a file.")
    if len(present) != 1:
        reason = f"expected one of the keys {', '.join(sorted(KEYS))}. Got {', '.join(present)}: keep one of them."
        raise file.error("content", reason)
    key, fields = present[0], Fields(file.path, content)
    if key == ACCEPTED:
        drafts = float(fields.integer(DRAFTS))
        table = _build(file, ACCEPTED, table_of_counts, drafts, fields.numbers(ACCEPTED))
        return ImportedAcceptance(table=table, kind="counts per position", positions=max(1, round(drafts)))
    numbers = _numbers(file, key, content[key])
    if key == RATES:
        return ImportedAcceptance(table=_build(file, key, table_of_rates, numbers), kind=RATES_KIND)
    if key == CONDITIONAL and not isinstance(numbers[0], list):
        table = _build(file, key, table_of_conditional, numbers)
        return ImportedAcceptance(table=table, kind="conditional rates per position")
    return ImportedAcceptance(table=_build(file, key, AcceptanceTable, numbers), kind="acceptance table")


def _inner_tables(content: dict[str, Any]) -> list[str]:
    """Return the names of the acceptance tables that an object contains."""
    return [key for key, value in content.items() if isinstance(value, dict) and TABLE in value]


def _other_keys(content: dict[str, Any]) -> list[str]:
    """Return the keys of an object that may be meant for rates, where none of the known ones is there."""
    if content.keys() & KEYS:
        return []
    return [key for key, value in content.items() if "accept" in key.lower() and isinstance(value, list)]


def _numbers(file: ForeignFile, field: str, values: object) -> list[Any]:
    """Return lists of numbers as nested as they are; raises FormatError for others and for none."""
    numbers = Fields(file.path, {field: values}).nested_numbers(field)
    if not numbers:
        raise file.error(field, "expected at least one number. Got none.")
    return numbers


def _build(file: ForeignFile, field: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `make` returns, its refusal reported as one of a field."""
    return Fields(file.path, {}).build(field, make, *arguments)
