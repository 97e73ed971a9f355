"""The tree file, `tree.json`: parents and where they came from; docs/tree-file.md is its specification."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.arguments import instance, number
from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError, printable
from treeopt.files.fields import Fields, check_format
from treeopt.files.json_file import parse_json
from treeopt.files.whole_files import read_text, write_text
from treeopt.trees.token_tree import TokenTree

FORMAT = "treeopt-tree"
VERSION = 1
MAX_NODES = 65_536
MAX_BYTES = 8_000_000


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Provenance(ShortRepr):
    """Where a tree came from and what was promised of it; every field may be absent.

    Raises InvalidValueError when a number is negative or not finite, `threads` is below 1, or `lossy` is False.
    """

    tool: str | None = None
    """Program and version that made the tree."""
    created: str | None = None
    """Date and time, ISO 8601."""
    source: str | None = None
    """What it was made from, such as the profile's path."""
    pair: str | None = None
    """Target and draft model."""
    target: str | None = None
    """What that target was loaded from: a folder as it was given, or a name on the hub; None for the bundled one."""
    draft: str | None = None
    target_digest: str | None = None
    """What the target's files hold; equal models have equal digests wherever they lie."""
    draft_digest: str | None = None
    dtype: str | None = None
    """Number format that both ran in."""
    machine: str | None = None
    """Processor or accelerator of the profile."""
    device: str | None = None
    """`cpu`, `cuda:0`, …"""
    threads: int | None = None
    """CPU threads of the profile."""
    rule: str | None = None
    """Verification rule whose acceptance was used."""
    lossy: bool | None = None
    """True where the text no longer follows the target's law under that rule; False is not said."""
    temperature: float | None = None
    """Sampling temperature of that acceptance."""
    tokens_per_step: float | None = None
    """Predicted tokens that a step yields on average."""
    step_s: float | None = None
    """Predicted seconds of a step."""
    speedup: float | None = None
    """Predicted tokens per second over those of plain decoding."""

    def __post_init__(self) -> None:
        if self.lossy is False:
            raise InvalidValueError("lossy: expected True or None. Got False: leave it out.")
        if self.threads is not None and self.threads < 1:
            raise InvalidValueError(f"threads: expected at least 1. Got {self.threads}.")
        for name in ("temperature", "tokens_per_step", "step_s", "speedup"):
            value = getattr(self, name)
            if value is None:
                continue
            if not 0 <= number(name, value) <= sys.float_info.max:
                raise InvalidValueError(f"{name}: expected a finite number of at least 0. Got {value}.")
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are equal, so they have to give equal bytes


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class TreeFile(ArrayRecord):
    """What a tree file holds; two are equal when their files are.

    Raises InvalidValueError when `reach` does not fit the tree or the tree is too large for a file.
    """

    tree: TokenTree
    reach: Float64 | None = None
    """float64 (n,): predicted probability that a step accepts each node; the root's is 1."""
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        instance("tree", self.tree, TokenTree, "make one with treeopt.TokenTree(parents)")
        _check_size(self.tree.nodes)
        if self.reach is not None:
            object.__setattr__(self, "reach", _checked_reach(self.tree, self.reach))

    def save(self, path: Path | str) -> None:
        """Write the file whole or not at all; '-' is standard output."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Return the file's text: one key a line, keys in a fixed order, so that equal trees give equal bytes."""
        fields: list[tuple[str, Any]] = [
            ("format", FORMAT),
            ("version", VERSION),
            ("parents", self.tree.parents.tolist()),
        ]
        if self.reach is not None:
            fields.append(("reach", [float(f"{value:.6g}") for value in self.reach]))
        if self.provenance is not None:
            known = {key: value for key, value in asdict(self.provenance).items() if value is not None}
            shown = {key: printable(value) if isinstance(value, str) else value for key, value in known.items()}
            fields.append(("provenance", shown))
        lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in fields)
        return "{\n" + ",\n".join(lines) + "\n}\n"

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
    tree = fields.build("parents", _make_tree, fields.integers("parents"))
    reach = fields.build("reach", _checked_reach, tree, fields.numbers("reach")) if "reach" in fields else None
    provenance = _read_provenance(fields.mapping("provenance")) if "provenance" in fields else None
    fields.end()
    return TreeFile(tree=tree, reach=reach, provenance=provenance)


def _read_provenance(fields: Fields) -> Provenance:
    read: dict[Any, Callable[[str], str | float]] = {
        str | None: fields.text,
        float | None: fields.number,
        int | None: fields.integer,
        bool | None: fields.true,
    }
    known = [field for field in dataclasses.fields(Provenance) if field.name in fields]
    values: dict[str, Any] = {field.name: read[field.type](field.name) for field in known}
    fields.end()
    return Provenance(**values)


def _make_tree(parents: list[int]) -> TokenTree:
    _check_size(len(parents))
    return TokenTree(parents)


def _check_size(nodes: int) -> None:
    if nodes > MAX_NODES:
        raise InvalidValueError(f"expected at most {MAX_NODES} nodes. Got {nodes}.")


def _checked_reach(tree: TokenTree, values: Sequence[float] | Float64) -> Float64:
    reach = np.array(values, np.float64)
    if reach.shape != (tree.nodes,):
        raise InvalidValueError(f"expected {tree.nodes} numbers, one per node. Got shape {reach.shape}.")
    if not np.all((reach >= 0) & (reach <= 1)):
        raise InvalidValueError("expected probabilities from 0 to 1.")
    if reach[0] != 1:
        raise InvalidValueError(f"expected 1 for the root, which every step yields. Got {reach[0]}.")
    # Without any slack, because rounding keeps this order but not the order of values that are only nearly in it.
    if np.any(reach[1:] > reach[tree.parents[1:]]):
        raise InvalidValueError("expected no node to be reached more often than its parent.")
    reach.flags.writeable = False
    return reach
