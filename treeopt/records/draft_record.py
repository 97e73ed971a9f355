"""The draft record: what the draft model thought at every position of some texts, and how the target went on.

It answers, without running a model again, what any dynamic tree would have drafted there and how much of it would have
been accepted.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from treeopt.arguments import text, whole
from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float32, Int32, Int64
from treeopt.errors import InvalidValueError
from treeopt.files.arrays_file import Arrays
from treeopt.files.whole_files import read_bytes, write_bytes
from treeopt.records.sampling import Sampling

FORMAT = "treeopt-draft-record"
VERSION = 1
MAX_BYTES = 1_000_000_000
_KINDS = {"i": "signed integers", "f": "floating-point numbers"}
_ARRAYS = (
    ("text_starts", np.int64, 1),
    ("node_starts", np.int64, 1),
    ("parent", np.int32, 1),
    ("rank", np.int32, 1),
    ("log_probs", np.float32, 2),
    ("outcome", np.int32, 2),
)
"""Name, type and dimensions."""
NOT_DRAFTED = -1
"""Stands for the rank of a token that the draft did not have among its likeliest."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class DraftRecord(ArrayRecord):
    """Draft scores and target accepted ranks, at R positions (roots) of J texts that the target generated.

    Below each root a tree of draft nodes was expanded: all that a dynamic tree of any top-k up to `top_k` (K) and depth
    up to `depth` (D) expands.  Nodes of one root are contiguous, the root's own first, parents before children.

    Arrays of other widths are converted to the types below.

    Raises InvalidValueError naming the first array of another kind, or that does not fit the others.
    """

    _shown: ClassVar[tuple[str, ...]] = ("pair", "temperature", "texts", "roots", "depth", "top_k", "log_probs")
    pair: str
    """Target and draft model."""
    created: str
    """Date and time, ISO 8601."""
    temperature: float
    """At which the target generated the texts; 0 is greedy."""
    top_p: float
    """Share of the target's distribution that was kept."""
    target_top_k: int
    """Tokens of the target's distribution that were kept; 0 is all."""
    depth: int
    """D: levels that were drafted."""
    text_starts: Int64
    """int64 (J + 1,): text j has the roots `text_starts[j]` to `text_starts[j + 1]` - 1, one per generated token."""
    node_starts: Int64
    """int64 (R + 1,): root r has the expanded nodes `node_starts[r]` to `node_starts[r + 1]` - 1."""
    parent: Int32
    """int32 (E,): each expanded node's parent, counted from its root's first node; -1 for that one."""
    rank: Int32
    """int32 (E,): rank among the children of the parent; 0 for the root's own."""
    log_probs: Float32
    """float32 (E, K): the draft's log-probabilities, at temperature 1, of the K likeliest tokens after each, falling;
    -inf for tokens that the draft excludes."""
    outcome: Int32
    """int32 (R, D): rank, at each depth, of the token that the text went on with, among the children of the node that
    the text went through before; -1 from the first depth where it is not among K or that node was not expanded."""

    @property
    def top_k(self) -> int:
        """K: children scored per expanded node."""
        return int(self.log_probs.shape[1])

    @property
    def roots(self) -> int:
        """R: positions recorded."""
        return len(self.node_starts) - 1

    @property
    def texts(self) -> int:
        """J: texts recorded."""
        return len(self.text_starts) - 1

    def __post_init__(self) -> None:
        self._check_kinds()
        _check_starts("text_starts", self.text_starts, self.roots)
        _check_starts("node_starts", self.node_starts, len(self.parent))
        if self.top_k < 1 or self.depth < 1 or self.outcome.shape != (self.roots, self.depth):
            raise InvalidValueError(f"outcome: expected shape {(self.roots, self.depth)}. Got {self.outcome.shape}.")
        if len(self.rank) != len(self.parent) or len(self.log_probs) != len(self.parent):
            raise InvalidValueError(f"rank, log_probs: expected {len(self.parent)} rows, one per node.")
        self._check_nodes()
        if np.any((self.outcome < NOT_DRAFTED) | (self.outcome >= self.top_k)):
            raise InvalidValueError(f"outcome: expected -1 to {self.top_k - 1}.")
        if np.any((self.outcome[:, :-1] == NOT_DRAFTED) & (self.outcome[:, 1:] != NOT_DRAFTED)):
            raise InvalidValueError("outcome: expected -1 at every depth behind the first -1.")
        if not np.all(self.log_probs <= 0) or np.any(self.log_probs[:, 1:] > self.log_probs[:, :-1]):
            raise InvalidValueError("log_probs: expected numbers of at most 0 that do not rise with the rank.")
        with np.errstate(over="ignore"):  # what float32 cannot tell from a probability of 0 is one
            for name, dtype, _ in _ARRAYS:
                object.__setattr__(self, name, getattr(self, name).astype(dtype, copy=False))
        freeze(self)

    def _check_kinds(self) -> None:
        """Refuse values that a file cannot hold; types of other widths are left as they are, so that checks see them."""
        for name in ("pair", "created"):
            text(name, getattr(self, name))
        sampling = Sampling(self.temperature, self.top_p, self.target_top_k)
        object.__setattr__(self, "temperature", float(sampling.temperature))
        object.__setattr__(self, "top_p", float(sampling.top_p))
        object.__setattr__(self, "target_top_k", int(sampling.top_k))
        object.__setattr__(self, "depth", whole("depth", self.depth))
        for name, dtype, dimensions in _ARRAYS:
            array = np.asarray(getattr(self, name))
            kind = np.dtype(dtype).kind
            if array.dtype.kind != kind or array.ndim != dimensions:
                raise InvalidValueError(
                    f"{name}: expected {_KINDS[kind]}, {dimensions} dimensions. Got {array.dtype}, shape {array.shape}."
                )
            object.__setattr__(self, name, array)

    def _check_nodes(self) -> None:
        start = np.repeat(self.node_starts[:-1], np.diff(self.node_starts))
        within = np.arange(len(self.parent)) - start
        first = within == 0
        if np.any(self.parent[first] != -1) or np.any((self.parent < 0) & ~first) or np.any(self.parent >= within):
            raise InvalidValueError("parent: expected -1 for each root's first node and then an earlier node of it.")
        if np.any((self.rank < 0) | (self.rank >= self.top_k)):
            raise InvalidValueError(f"rank: expected 0 to {self.top_k - 1}.")
        children = (start + self.parent)[~first] * self.top_k + self.rank[~first]
        if len(np.unique(children)) < len(children):
            raise InvalidValueError("rank: expected each child of a node once.")

    def save(self, path: Path | str) -> None:
        """Write the record file, a numpy archive, whole or not at all."""
        arrays: dict[str, Any] = {name: np.asarray(getattr(self, name)) for name in self.__dataclass_fields__}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, format=np.array(FORMAT), version=np.array(VERSION), **arrays)
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> "DraftRecord":
        """Read a record file.

        Raises FormatError naming the file, the array and the reason, TreeoptError when it cannot be read.
        """
        arrays = Arrays.read(path, read_bytes(path, limit_bytes=MAX_BYTES), limit_bytes=2 * MAX_BYTES)
        if arrays.text("format") != FORMAT:
            raise arrays.error("format", f"expected {FORMAT!r}. Is it another kind of file?")
        if (version := arrays.integer("version")) != VERSION:
            raise arrays.error("version", f"expected {VERSION}. Got {version}: update treeopt to read it.")
        return arrays.build(
            "content",
            cls,
            pair=arrays.text("pair"),
            created=arrays.text("created"),
            temperature=float(arrays.take("temperature", "f", 0)),
            top_p=float(arrays.take("top_p", "f", 0)),
            target_top_k=arrays.integer("target_top_k"),
            depth=arrays.integer("depth"),
            **{
                name: arrays.take(name, np.dtype(dtype).kind, dimensions, finite=False)
                for name, dtype, dimensions in _ARRAYS
            },
        )


def _check_starts(name: str, starts: Int64, count: int) -> None:
    """Refuse starts that do not rise from 0 to `count`, so that no root or text is empty."""
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != count or np.any(np.diff(starts) < 1):
        raise InvalidValueError(f"{name}: expected to rise from 0 to {count}.")
