"""The tree file, `tree.json`, as specified in docs/reference/tree-file.md."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from treeopt.arguments import check_instance, check_number
from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.files.atomic_files import write_text
from treeopt.files.fields import Fields, check_format
from treeopt.files.json_file import parse_json
from treeopt.files.serialization import in_file, read_record, rounded, serialize_record
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
            if not 0 <= check_number(name, value) <= sys.float_info.max:
                raise InvalidValueError(f"{name}: expected a finite number of at least 0. Got {value}.")
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are equal, so they have to give equal bytes


def _read_drafter(fields: Fields, name: str) -> DrafterSetting:
    drafter = fields.mapping(name)
    setting = read_record(drafter, DrafterSetting)
    try:
        return checked_setting(setting)
    except InvalidValueError as error:
        raise drafter.error(error.field or "name", str(error)) from None


def read_tree(fields: Fields, name: str) -> TokenTree:
    """Return the tree of a list of parents; raises FormatError for more than 65,536 nodes."""

    def make(parents: list[int]) -> TokenTree:
        check_size(len(parents))
        return TokenTree(parents)

    return fields.build(name, make, fields.integers(name))


TREE = in_file("parents", read=read_tree, write=lambda tree: tree.parents.tolist())
"""The file form of a record's tree."""


def checked_reach(tree: TokenTree, values: Sequence[float] | Float64) -> Float64:
    """Return reach as float64 (n,), read-only; raises InvalidValueError if it does not fit the tree."""
    reach = np.array(values, np.float64)
    if reach.shape != (tree.nodes,):
        raise InvalidValueError(f"expected {tree.nodes} numbers, one per node. Got shape {reach.shape}.", field="reach")
    if not np.all((reach >= 0) & (reach <= 1)):
        raise InvalidValueError("expected probabilities from 0 to 1.", field="reach")
    if reach[0] != 1:
        raise InvalidValueError(f"expected 1 for the root, which every step yields. Got {reach[0]}.", field="reach")
    # Without tolerance, so that the order survives the file's rounding to six digits.
    if np.any(reach[1:] > reach[tree.parents[1:]]):
        raise InvalidValueError("expected no node to be reached more often than its parent.", field="reach")
    reach.flags.writeable = False
    return reach


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class TreeFile(ArrayRecord):
    """The content of a tree file; two are equal if their files are.

    Raises InvalidValueError if `reach` does not fit the tree, the tree has more than 65,536 nodes, or the drafter has other
    parameters.
    """

    tree: TokenTree = field(metadata=TREE)
    """For drafters that build their own trees: a chain as long as their longest draft."""
    drafter: DrafterSetting | None = field(default=None, metadata=in_file(read=_read_drafter))
    """None for the draft model; a setting named `model` becomes None."""
    reach: Float64 | None = field(default=None, metadata=in_file(read=Fields.numbers, write=rounded))
    """float64 (n,): predicted probability that a step accepts each node; the root's is 1."""
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        check_instance("tree", self.tree, TokenTree, "make one with treeopt.TokenTree(parents)")
        check_size(self.tree.nodes)
        if self.reach is not None:
            object.__setattr__(self, "reach", checked_reach(self.tree, self.reach))
        if self.drafter is not None:
            object.__setattr__(self, "drafter", None if checked_setting(self.drafter).name == "model" else self.drafter)

    @property
    def tokens_per_step(self) -> float | None:
        """As predicted; None if unknown."""
        return None if self.provenance is None else self.provenance.tokens_per_step

    def save(self, path: Path | str) -> None:
        """Write the file whole or not at all; '-' is standard output."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Return the file's text; equal trees give equal bytes."""
        return file_text(serialize_record(self))

    def to_records(self) -> list[Row]:
        """Return the rows of `TokenTree.to_records`, with the reach of every node, or None."""
        reaches = [None] * self.tree.nodes if self.reach is None else self.reach.tolist()
        return [{**row, "reach": reach} for row, reach in zip(self.tree.to_records(), reaches, strict=True)]

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
    return read_record(fields, TreeFile)


def headline(content: TreeFile) -> tuple[str, str]:
    """Return a title with size and prediction, and a subtitle with the conditions of the prediction, empty if unknown.

    >>> from treeopt.trees import chain
    >>> origin = Provenance(pair="big + small", machine="CPU", threads=2, rule="sequoia", temperature=0.6, speedup=1.9)
    >>> headline(TreeFile(tree=chain(4), provenance=origin))
    ('5 nodes, depth 4: predicted 1.90 times plain decoding', 'big + small on CPU (2 threads), sequoia at temperature 0.6')
    """
    tree, provenance = content.tree, content.provenance or Provenance()
    tokens, predictions = provenance.tokens_per_step, []
    if tokens is None and content.reach is not None:
        tokens = float(content.reach.sum())
    if tokens is not None:
        predictions.append(f"{tokens:.2f} tokens per step")
    if provenance.speedup is not None:
        predictions.append(f"{provenance.speedup:.2f} times plain decoding")
    size = f"{tree.nodes} node{'s' * (tree.nodes > 1)}, depth {tree.max_depth}"
    title = f"{size}: predicted {', '.join(predictions)}" if predictions else size
    drafter = "" if content.drafter is None else content.drafter.description
    return title, ", ".join(filter(None, (drafter, _describe_conditions(provenance))))


def _describe_conditions(provenance: Provenance) -> str:
    threads = "" if provenance.threads is None else f" ({provenance.threads} thread{'s' * (provenance.threads > 1)})"
    machine = "" if provenance.machine is None else f"on {provenance.machine}{threads}"
    rule = "" if provenance.rule is None else provenance.rule + " (lossy)" * bool(provenance.lossy)
    temperature = "" if provenance.temperature is None else f"at temperature {provenance.temperature:g}"
    parts = [" ".join(filter(None, pair)) for pair in ((provenance.pair, machine), (rule, temperature))]
    day = "" if provenance.created is None else f"measured {provenance.created[:10]}"
    return ", ".join(filter(None, (*parts, day)))


def describe_drafter(content: TreeFile) -> str:
    """Return a sentence about the drafter of a tree, empty for the draft model.

    >>> from treeopt.trees import chain
    >>> from treeopt.trees.drafter_setting import drafter_setting
    >>> describe_drafter(TreeFile(tree=chain(4), drafter=drafter_setting("medusa", source="heads")))
    'Drafted by medusa, heads from heads.'
    """
    setting = content.drafter
    if setting is None:
        return ""
    heads = "" if setting.source is None else f", heads from {setting.source}"
    layers = f", reading hidden-state layers {','.join(map(str, setting.layers))}" if setting.layers else ""
    own_trees = ", which builds its own trees, none deeper than this chain" if setting.builds_own_trees else ""
    return f"Drafted by {setting.description}{heads}{layers}{own_trees}."
