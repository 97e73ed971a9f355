"""The schedule file, `schedule.json`: a tree for every batch size."""

import json
from dataclasses import dataclass
from pathlib import Path

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields, check_format
from treeopt.files.json_file import parse_json
from treeopt.files.record_form import read_record, written_record
from treeopt.files.whole_files import read_text, write_text
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import Provenance, read_parents

FORMAT, VERSION = "treeopt-schedule", 1
MAX_BYTES = 8_000_000
HEAD_BYTES = 200


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ScheduledTree(ShortRepr):
    """A tree and its range of batch sizes."""

    first_texts: int
    last_texts: int
    """The largest batch size; for the last tree the largest that was planned."""
    tree: TokenTree


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TreeSchedule(ShortRepr):
    """Trees by batch size.

    Raises InvalidValueError unless the batch sizes start at 1 and have no gaps.
    """

    trees: tuple[ScheduledTree, ...]
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        expected = 1
        for each in self.trees:
            if each.first_texts != expected or each.last_texts < each.first_texts:
                raise InvalidValueError(
                    f"expected trees for 1, 2, … texts without gaps, the next from {expected} on. Got one for "
                    f"{each.first_texts} to {each.last_texts}: plan again.",
                    field="trees",
                )
            expected = each.last_texts + 1
        if not self.trees:
            raise InvalidValueError("expected at least one tree. Got none: plan again.", field="trees")

    @property
    def most_texts(self) -> int:
        """The largest batch size that was planned."""
        return self.trees[-1].last_texts

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest tree."""
        return max(each.tree.nodes for each in self.trees)

    def tree(self, texts: int) -> TokenTree:
        """Return the tree for a batch of `texts` sequences; beyond `most_texts` the last tree."""
        if texts < 1:
            raise InvalidValueError(f"texts: expected at least 1. Got {texts}.")
        return next((each.tree for each in self.trees if texts <= each.last_texts), self.trees[-1].tree)

    def save(self, path: Path | str) -> None:
        """Write the file whole or not at all; '-' is standard output."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Return the file's text; equal schedules give equal bytes."""
        lines = [f'  "format": "{FORMAT}"', f'  "version": {VERSION}']
        trees = ",\n".join(f"    {json.dumps(_fields(each))}" for each in self.trees)
        lines.append(f'  "trees": [\n{trees}\n  ]')
        if self.provenance is not None:
            lines.append(f'  "provenance": {json.dumps(written_record(self.provenance), allow_nan=False)}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def is_schedule(path: Path) -> bool:
    """Return whether a file is a schedule, by its first line; False for pipes, which reading would empty."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as opened:
            return f'"{FORMAT}"'.encode() in opened.read(HEAD_BYTES)
    except OSError:
        return False


def load_schedule(path: Path | str) -> TreeSchedule:
    """Return the content of a schedule file.

    Raises FormatError naming the file, the field and the reason, and TreeoptError when it cannot be read.
    """
    fields = Fields(path, parse_json(path, read_text(path, limit_bytes=MAX_BYTES), unique_keys=True, constants=False))
    check_format(fields, FORMAT, VERSION)
    trees = tuple(_tree(each) for each in fields.mappings("trees"))
    provenance = read_record(fields.mapping("provenance"), Provenance) if "provenance" in fields else None
    fields.end()
    return fields.build("trees", lambda: TreeSchedule(trees=trees, provenance=provenance))


def _fields(each: ScheduledTree) -> dict[str, object]:
    parents = each.tree.parents.tolist()
    return {"first_texts": each.first_texts, "last_texts": each.last_texts, "parents": parents}


def _tree(fields: Fields) -> ScheduledTree:
    first, last = fields.integer("first_texts"), fields.integer("last_texts")
    tree = read_parents(fields)
    fields.end()
    return ScheduledTree(first_texts=first, last_texts=last, tree=tree)
