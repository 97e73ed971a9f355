"""The schedule file, `schedule.json`: a tree for every batch size."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.atomic_files import read_text, write_text
from treeopt.files.fields import Fields, check_format
from treeopt.files.json_file import parse_json
from treeopt.files.serialization import read_record, serialize_record
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import TREE, Provenance

FORMAT, VERSION = "treeopt-schedule", 1
MAX_BYTES = 8_000_000
HEAD_BYTES = 200


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ScheduledTree(ShortRepr):
    """A tree for the batch sizes from `first_batch_size` to `last_batch_size`."""

    first_batch_size: int
    last_batch_size: int
    tree: TokenTree = field(metadata=TREE)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TreeSchedule(ShortRepr):
    """Trees by batch size.

    Raises InvalidValueError unless the batch sizes start at 1 and have no gaps.
    """

    trees: tuple[ScheduledTree, ...]
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        expected = 1
        for scheduled in self.trees:
            first, last = scheduled.first_batch_size, scheduled.last_batch_size
            if first != expected or last < first:
                raise InvalidValueError(
                    f"expected trees for batch sizes 1, 2, … without gaps, the next from {expected} on. "
                    f"Got one for {first} to {last}: plan again.",
                    field="trees",
                )
            expected = last + 1
        if not self.trees:
            raise InvalidValueError("expected at least one tree. Got none: plan again.", field="trees")

    def tree(self, batch_size: int) -> TokenTree:
        """Return the tree for a batch size; beyond the planned ones the last tree."""
        if batch_size < 1:
            raise InvalidValueError(f"batch_size: expected at least 1. Got {batch_size}.")
        fitting = (scheduled.tree for scheduled in self.trees if batch_size <= scheduled.last_batch_size)
        return next(fitting, self.trees[-1].tree)

    def save(self, path: Path | str) -> None:
        """Write the file whole or not at all; '-' is standard output."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Return the file's text; equal schedules give equal bytes."""
        trees = ",\n".join(f"    {json.dumps(serialize_record(scheduled))}" for scheduled in self.trees)
        lines = [f'  "format": "{FORMAT}"', f'  "version": {VERSION}', f'  "trees": [\n{trees}\n  ]']
        if self.provenance is not None:
            lines.append(f'  "provenance": {json.dumps(serialize_record(self.provenance), allow_nan=False)}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def is_schedule(path: Path) -> bool:
    """Return whether a file begins like a schedule; False for pipes, which reading would empty."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(HEAD_BYTES)
    except OSError:
        return False


def load_schedule(path: Path | str) -> TreeSchedule:
    """Return the content of a schedule file; raises FormatError naming the field, TreeoptError for an unreadable file."""
    fields = Fields(path, parse_json(path, read_text(path, limit_bytes=MAX_BYTES), unique_keys=True, constants=False))
    check_format(fields, FORMAT, VERSION)
    return read_record(fields, TreeSchedule)
