"""The tree file, `tree.json`: a tree, its drafter and its prediction; docs/reference/tree-file.md is its specification."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.arguments import instance, number
from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64, Int32
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields, check_format
from treeopt.files.json_file import parse_json
from treeopt.files.record_form import read_record, written_record
from treeopt.files.whole_files import write_text
from treeopt.tabular import Row
from treeopt.trees.drafter_setting import DrafterSetting, checked_setting
from treeopt.trees.token_tree import FORMAT, VERSION, TokenTree, check_size, file_text


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Provenance(ShortRepr):
    """Where a tree came from and its prediction; every field may be absent.

    Raises InvalidValueError when a number is negative or not finite, `threads` is below 1, or `lossy` is False.
    """

    tool: str | None = None
    """Program and version that made the tree."""
    created: str | None = None
    """Date and time, ISO 8601."""
    source: str | None = None
    """What the tree was made from, such as the profile's path."""
    pair: str | None = None
    """Target and draft model."""
    target: str | None = None
    """Folder or hub name of the target, as the user typed it; None for the bundled target."""
    draft: str | None = None
    target_digest: str | None = None
    """Digest of the target's files, independent of their folder."""
    draft_digest: str | None = None
    dtype: str | None = None
    """Dtype of both models."""
    machine: str | None = None
    """Processor or accelerator of the profile."""
    device: str | None = None
    """`cpu`, `cuda:0`, …"""
    threads: int | None = None
    """CPU threads of the profile."""
    rule: str | None = None
    """Verification rule whose acceptance was used."""
    lossy: bool | None = None
    """True if the rule does not keep the target's distribution; never False."""
    temperature: float | None = None
    """Sampling temperature of that acceptance."""
    tokens_per_step: float | None = None
    """Predicted tokens per step."""
    step_s: float | None = None
    """Predicted seconds per step."""
    speedup: float | None = None
    """Predicted speedup over plain decoding."""

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
    """The content of a tree file; two are equal if their files are.

    Raises InvalidValueError if `reach` does not fit the tree, the tree has more than 65,536 nodes, or the drafter's settings
    are not its own.
    """

    tree: TokenTree
    """For drafters with trees of their own: a chain as long as their longest draft."""
    drafter: DrafterSetting | None = None
    """None for the draft model; a setting named `model` becomes None."""
    reach: Float64 | None = None
    """float64 (n,): predicted probability that a step accepts each node; the root's is 1."""
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        instance("tree", self.tree, TokenTree, "make one with treeopt.TokenTree(parents)")
        check_size(self.tree.nodes)
        if self.reach is not None:
            object.__setattr__(self, "reach", _checked_reach(self.tree.parents, self.reach))
        if self.drafter is not None:
            object.__setattr__(self, "drafter", None if checked_setting(self.drafter).name == "model" else self.drafter)

    def save(self, path: Path | str) -> None:
        """Write the file whole or not at all; '-' is standard output."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Return the file's text; equal trees give equal bytes."""
        return file_text(self.tree, self._fields())

    def _fields(self) -> dict[str, Any]:
        """Return what the file contains besides the tree, in the order of the file."""
        fields: dict[str, Any] = {}
        if self.drafter is not None:
            fields["drafter"] = written_record(self.drafter)
        if self.reach is not None:
            fields["reach"] = [float(f"{value:.6g}") for value in self.reach]
        if self.provenance is not None:
            fields["provenance"] = written_record(self.provenance)
        return fields

    def to_records(self) -> list[Row]:
        """Return the rows of `TokenTree.to_records`, with the reach of every node, or None."""
        known = [None] * self.tree.nodes if self.reach is None else self.reach.tolist()
        return [{**row, "reach": reach} for row, reach in zip(self.tree.to_records(), known, strict=True)]

    def _repr_svg_(self) -> str | None:
        from treeopt.trees.figure import inline_svg

        return inline_svg(self.tree, self.reach)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeFile) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())


def parse(path: Path | str, text: str) -> TreeFile:
    """Return the content of a tree file's text; raises FormatError naming the file, the field and the reason."""
    fields = Fields(path, parse_json(path, text, unique_keys=True, constants=False))
    check_format(fields, FORMAT, VERSION)
    tree = read_parents(fields)
    drafter = _read_drafter(fields) if "drafter" in fields else None
    reach = fields.build("reach", _checked_reach, tree.parents, fields.numbers("reach")) if "reach" in fields else None
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
    """Return the tree of the field `parents`; raises FormatError for more than 65,536 nodes."""

    def make(parents: list[int]) -> TokenTree:
        check_size(len(parents))
        return TokenTree(parents)

    return fields.build("parents", make, fields.integers("parents"))


def _checked_reach(parents: Int32, values: Sequence[float] | Float64) -> Float64:
    """Return reach as float64 (n,), read-only; raises InvalidValueError if it does not fit the tree."""
    reach = np.array(values, np.float64)
    if reach.shape != parents.shape:
        raise InvalidValueError(f"expected {parents.size} numbers, one per node. Got shape {reach.shape}.")
    if not np.all((reach >= 0) & (reach <= 1)):
        raise InvalidValueError("expected probabilities from 0 to 1.")
    if reach[0] != 1:
        raise InvalidValueError(f"expected 1 for the root, which every step yields. Got {reach[0]}.")
    # Exactly, because rounding to six digits keeps this order, but not with a tolerance.
    if np.any(reach[1:] > reach[parents[1:]]):
        raise InvalidValueError("expected no node to be reached more often than its parent.")
    reach.flags.writeable = False
    return reach


def headline(content: TreeFile) -> tuple[str, str]:
    """Return a title with size and prediction, and a subtitle with the conditions of the prediction, empty if unknown.

    >>> from treeopt.trees import chain
    >>> known = Provenance(pair="big + small", machine="CPU", threads=2, rule="sequoia", temperature=0.6, speedup=1.9)
    >>> headline(TreeFile(tree=chain(4), provenance=known))
    ('5 nodes, depth 4: predicted 1.90 times plain decoding', 'big + small on CPU (2 threads), sequoia at temperature 0.6')
    """
    tree, known = content.tree, content.provenance or Provenance()
    tokens = known.tokens_per_step
    if tokens is None and content.reach is not None:
        tokens = float(content.reach.sum())
    promised = [
        *([] if tokens is None else [f"{tokens:.2f} tokens per step"]),
        *([] if known.speedup is None else [f"{known.speedup:.2f} times plain decoding"]),
    ]
    size = f"{tree.nodes} node{'s' * (tree.nodes > 1)}, depth {tree.max_depth}"
    title = f"{size}: predicted {', '.join(promised)}" if promised else size
    by = "" if content.drafter is None else content.drafter.words
    return title, ", ".join(filter(None, (by, _conditions(known))))


def drafted_by(content: TreeFile) -> str:
    """Return a sentence about the drafter of a tree, empty for the draft model.

    >>> from treeopt.trees import chain
    >>> from treeopt.trees.drafter_setting import drafter_setting
    >>> drafted_by(TreeFile(tree=chain(4), drafter=drafter_setting("medusa", source="heads")))
    'Drafted by medusa, heads from heads.'
    """
    setting = content.drafter
    if setting is None:
        return ""
    heads = "" if setting.source is None else f", heads from {setting.source}"
    read = f", reading boundaries {','.join(map(str, setting.layers))}" if setting.layers else ""
    stand_in = ", with trees of its own: this one is as deep as they get" if setting.own_trees else ""
    return f"Drafted by {setting.words}{heads}{read}{stand_in}."


def _conditions(known: Provenance) -> str:
    threads = "" if known.threads is None else f" ({known.threads} thread{'s' * (known.threads > 1)})"
    where = "" if known.machine is None else f"on {known.machine}{threads}"
    rule = "" if known.rule is None else known.rule + " (lossy)" * bool(known.lossy)
    temperature = "" if known.temperature is None else f"at temperature {known.temperature:g}"
    parts = [" ".join(filter(None, pair)) for pair in ((known.pair, where), (rule, temperature))]
    day = "" if known.created is None else f"measured {known.created[:10]}"
    return ", ".join(filter(None, (*parts, day)))
