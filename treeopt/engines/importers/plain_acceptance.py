"""Acceptance in plain JSON, as rates per position, conditional rates, counts or a table, and Sequoia's torch vector."""

import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.engines.importers.acceptance_tables import (
    acceptance_from_conditional,
    acceptance_from_counts,
    acceptance_from_rates,
    acceptance_from_vector,
)
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import ImportedAcceptance, Importer
from treeopt.files.fields import Fields, abbreviate
from treeopt.files.torch_pickle import LEGACY_START, inspect_torch_file, view_tensor
from treeopt.records.acceptance import AcceptanceTable

RATES, CONDITIONAL, TABLE = "synthetic_acceptance_rates", "conditional", "p"
DRAFTS, ACCEPTED = "num_drafts", "accepted_per_pos"
KEYS = frozenset({CONDITIONAL, TABLE, RATES, ACCEPTED})
RATES_KIND = "rates per position"
ZIP_START, ZIP_PICKLE = b"PK", b"/data.pkl"
MAX_RANKS = 100_000


def is_plain(file: ForeignFile) -> bool:
    """Return whether a file is a JSON list of numbers, a list of lists, or an object with one of the keys."""
    content = file.json
    if isinstance(content, dict):
        return bool(content.keys() & KEYS or _table_names(content) or _unknown_names(content))
    return isinstance(content, list) and not any(isinstance(item, dict) for item in content)


def read_plain(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of a list or an object; raises FormatError naming the field."""
    read = _read_list if isinstance(file.json, list) else _read_object
    return read(file, file.json)


def _read_list(file: ForeignFile, content: list[Any]) -> ImportedAcceptance:
    numbers = _read_numbers(file, "content", content)
    if isinstance(numbers[0], list):
        return ImportedAcceptance(table=file.build("content", AcceptanceTable, numbers), kind="acceptance table")
    if file.ranks:
        return file.build("content", acceptance_from_vector, numbers)
    return file.build("content", acceptance_from_rates, numbers, RATES_KIND)


def _read_object(file: ForeignFile, content: dict[str, Any]) -> ImportedAcceptance:
    keys = sorted(content.keys() & KEYS)
    if unknown := _unknown_names(content):
        raise file.error(
            unknown[0],
            f"unknown key. Rename it to {RATES} if its rates are over all drafts, to {CONDITIONAL} if each is over the drafts "
            f"that came so far, or to {ACCEPTED}, next to {DRAFTS}, if they are counts.",
        )
    if not keys:
        names = ", ".join(_table_names(content))[:60]
        raise file.error("content", f"expected one table. Got several tables ({names}): write one of them into a file.")
    if len(keys) > 1:
        reason = f"expected one of the keys {', '.join(sorted(KEYS))}. Got {', '.join(keys)}: keep one of them."
        raise file.error("content", reason)
    (key,) = keys
    if key == ACCEPTED:
        fields = Fields(file.path, content)
        drafts, accepted = fields.number(DRAFTS, least=1), fields.numbers(ACCEPTED)
        if any(count != int(count) for count in accepted):
            raise fields.error(ACCEPTED, f"expected counts. Got {accepted!s:.60}: rates go below the key {RATES}.")
        return file.build(ACCEPTED, acceptance_from_counts, drafts, accepted, "counts per position")
    numbers = _read_numbers(file, key, content[key])
    if key == RATES:
        if isinstance(numbers[0], list):
            raise file.error(key, "expected a list of rates. Got a list of lists: name a table p.")
        return file.build(key, acceptance_from_rates, numbers, RATES_KIND)
    if key == CONDITIONAL and not isinstance(numbers[0], list):
        return file.build(key, acceptance_from_conditional, numbers, "conditional rates per position")
    return ImportedAcceptance(table=file.build(key, AcceptanceTable, numbers), kind="acceptance table")


def _table_names(content: dict[str, Any]) -> list[str]:
    return [key for key, value in content.items() if isinstance(value, dict) and TABLE in value]


def _unknown_names(content: dict[str, Any]) -> list[str]:
    """Return the keys that may be meant for rates, if the object has none of the known keys."""
    if content.keys() & KEYS:
        return []
    return [key for key, value in content.items() if "accept" in key.lower() and isinstance(value, list)]


def _read_numbers(file: ForeignFile, field: str, values: object) -> list[Any]:
    """Return nested lists of numbers; raises FormatError for anything else, and for an empty or a far too long list."""
    if isinstance(values, list) and len(values) > MAX_RANKS:
        raise file.error(
            field, f"expected at most {MAX_RANKS} numbers or lists. Got {len(values)}: is it another file?"
        )
    numbers = Fields(file.path, {field: values}).nested_numbers(field)
    if not numbers:
        raise file.error(field, "expected at least one number. Got none.")
    return numbers


def is_torch_vector(file: ForeignFile) -> bool:
    """Return whether a file begins like a torch file or another pickle."""
    return file.data.startswith((LEGACY_START, b"\x80")) or (
        file.data.startswith(ZIP_START) and ZIP_PICKLE in file.data
    )


def read_torch_vector(file: ForeignFile) -> ImportedAcceptance:
    """Return the acceptance of a tensor or list of any device; executes nothing in the file.

    Raises FormatError for anything but one row of finite numbers.
    """
    return file.build("content", acceptance_from_vector, _load_vector(file))


def _load_vector(file: ForeignFile) -> list[float]:
    content, starts = inspect_torch_file(Path(file.path), io.BytesIO(file.data))
    with suppress(ValueError):  # of lists of unequal lengths
        vector = np.asarray(view_tensor(file.data, starts, content))
        is_row = vector.ndim == 1 and 0 < vector.size <= MAX_RANKS  # before an expanded tensor is copied
        if is_row and vector.dtype.kind in "buif" and np.isfinite(vector).all():
            values: list[float] = vector.astype(np.float64).tolist()
            return values
    got = abbreviate(content)
    raise file.error("content", f"expected one row of finite numbers. Got {got}. Is it an acceptance vector?")


PLAIN = Importer(
    name="acceptance",
    title="rates, counts or a table (JSON)",
    needs="a list of rates per position, or an object with conditional, p, synthetic_acceptance_rates, or num_drafts "
    "and accepted_per_pos",
    matches=is_plain,
    read=read_plain,
)
TORCH_VECTOR = Importer(
    name="acceptance-vector",
    title="Sequoia's acceptance vector (torch file)",
    needs="one row of numbers: acceptance by rank, the same at every depth",
    matches=is_torch_vector,
    read=read_torch_vector,
)
