"""The tree file, `tree.json`: parents and where they came from; docs/tree-file.md is its specification."""

from dataclasses import dataclass
from pathlib import Path

from treeopt.arguments import instance
from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields, check_format
from treeopt.files.json_file import parse_json
from treeopt.files.record_form import read_record
from treeopt.files.whole_files import read_text, write_text
from treeopt.tabular import Row
from treeopt.trees.drafter_setting import DrafterSetting, checked_setting
from treeopt.trees.provenance import Provenance
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_text import FORMAT, MAX_NODES, VERSION, check_size, checked_reach, tree_text

__all__ = ["FORMAT", "MAX_BYTES", "MAX_NODES", "VERSION", "Provenance", "TreeFile", "load", "load_file", "parse"]

MAX_BYTES = 8_000_000


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class TreeFile(ArrayRecord):
    """What a tree file holds; two are equal when their files are.

    Raises InvalidValueError when `reach` does not fit the tree, the tree is too large for a file, or the drafter's numbers
    are not those that it has.
    """

    tree: TokenTree
    """Where the drafter brings trees of its own, a stand-in: a chain as long as its longest draft."""
    drafter: DrafterSetting | None = None
    """None for the draft model, also where a setting of that name is given."""
    reach: Float64 | None = None
    """float64 (n,): predicted probability that a step accepts each node; the root's is 1."""
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        instance("tree", self.tree, TokenTree, "make one with treeopt.TokenTree(parents)")
        check_size(self.tree.nodes)
        if self.reach is not None:
            object.__setattr__(self, "reach", checked_reach(self.tree.parents, self.reach))
        if self.drafter is not None:
            object.__setattr__(self, "drafter", None if checked_setting(self.drafter).name == "model" else self.drafter)

    def save(self, path: Path | str) -> None:
        """Write the file whole or not at all; '-' is standard output."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Return the file's text; equal trees give equal bytes."""
        return tree_text(self.tree.parents, self.reach, self.provenance, self.drafter)

    def to_records(self) -> list[Row]:
        """Return a row for every node, as `TokenTree.to_records` does, and how often a step reaches it, where that is known."""
        known = [None] * self.tree.nodes if self.reach is None else self.reach.tolist()
        return [{**row, "reach": reach} for row, reach in zip(self.tree.to_records(), known, strict=True)]

    def _repr_svg_(self) -> str | None:
        from treeopt.trees.inline_svg import svg_text

        return svg_text(self.tree.parents, self.tree.rank, reach=self.reach)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeFile) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())


def load(path: Path | str) -> TokenTree:
    """Return the tree of a tree file and of no other; `load_file` gives its probabilities and provenance too.

    Raises FormatError naming the file, the field and the reason.
    """
    return load_file(path).tree


def load_file(path: Path | str) -> TreeFile:
    """Return everything a tree file holds.

    Raises FormatError naming the file, the field and the reason, and TreeoptError when it cannot be read.
    """
    return parse(path, read_text(path, limit_bytes=MAX_BYTES))


def parse(path: Path | str, text: str) -> TreeFile:
    """Return everything that the text of a tree file holds; raises FormatError as `load_file` does."""
    fields = Fields(path, parse_json(path, text, unique_keys=True, constants=False))
    check_format(fields, FORMAT, VERSION)
    tree = read_parents(fields)
    drafter = _read_drafter(fields) if "drafter" in fields else None
    reach = fields.build("reach", checked_reach, tree.parents, fields.numbers("reach")) if "reach" in fields else None
    provenance = read_record(fields.mapping("provenance"), Provenance) if "provenance" in fields else None
    fields.end()
    return TreeFile(tree=tree, drafter=drafter, reach=reach, provenance=provenance)


def _read_drafter(fields: Fields) -> DrafterSetting:
    named = fields.mapping("drafter")
    setting = read_record(named, DrafterSetting)
    try:
        return checked_setting(setting)
    except InvalidValueError as error:
        raise named.error(error.field or "name", str(error)) from None


def read_parents(fields: Fields) -> TokenTree:
    """Return the tree of the field `parents`; raises FormatError for more nodes than a file may have."""

    def make(parents: list[int]) -> TokenTree:
        check_size(len(parents))
        return TokenTree(parents)

    return fields.build("parents", make, fields.integers("parents"))
