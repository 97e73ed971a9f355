"""The draft record: the draft model's scores at every position of measured sequences, and the target's continuation.

With it any dynamic tree can be replayed without a model.
"""

import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Float32, Int32, Int64
from treeopt.errors import InvalidValueError
from treeopt.files.arrays_file import Arrays
from treeopt.files.atomic_files import read_bytes, write_bytes
from treeopt.records.sampling import Sampling

FORMAT = "treeopt-draft-record"
VERSION = 1
MAX_BYTES = 1_000_000_000
_ARRAYS = (
    ("sequence_starts", np.int64, 1),
    ("node_starts", np.int64, 1),
    ("parent", np.int32, 1),
    ("rank", np.int32, 1),
    ("log_probs", np.float32, 2),
    ("accepted_ranks", np.int32, 2),
)
"""Name, dtype and number of dimensions."""
NOT_DRAFTED = -1
"""The rank of a token outside the draft's top K."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class DraftRecord(ArrayRecord):
    """Draft scores and accepted ranks at R positions (roots) of J sequences that the target generated.

    Below each root, the record contains every draft node that a dynamic tree with top-k up to K and depth up to D can
    expand. The nodes of one root are contiguous: first the root's own node, then parents before children.

    Arrays are converted to the dtypes below.

    Raises InvalidValueError naming the first array whose shape or content is invalid.
    """

    _shown: ClassVar[tuple[str, ...]] = ("pair", "temperature", "sequences", "roots", "depth", "top_k", "log_probs")
    pair: str
    """Target and draft model."""
    created: str
    """Date and time, ISO 8601."""
    temperature: float
    """Of the target; 0 is greedy."""
    top_p: float
    """Of the target's sampling."""
    target_top_k: int
    """Of the target's sampling; 0 is all tokens."""
    depth: int
    """D: drafted levels."""
    sequence_starts: Int64
    """int64 (J + 1,): sequence j has the roots `sequence_starts[j]` to `sequence_starts[j + 1]` - 1, one per token."""
    node_starts: Int64
    """int64 (R + 1,): root r has the expanded nodes `node_starts[r]` to `node_starts[r + 1]` - 1."""
    parent: Int32
    """int32 (E,): index of each expanded node's parent among its root's nodes; -1 for the first node."""
    rank: Int32
    """int32 (E,): rank among the parent's children; 0 for the first node."""
    log_probs: Float32
    """float32 (E, K): log-probabilities of the draft's top K tokens after each node at temperature 1, non-increasing;
    -inf for tokens that the draft excludes."""
    accepted_ranks: Int32
    """int32 (R, D): at each depth, the rank of the target's token among the children of the previous depth's node;
    -1 from the first depth where the token is outside the top K or the node was not expanded."""

    @property
    def top_k(self) -> int:
        """K: scored children per expanded node."""
        return int(self.log_probs.shape[1])

    @property
    def roots(self) -> int:
        """R: recorded positions."""
        return len(self.node_starts) - 1

    @property
    def sequences(self) -> int:
        """J: recorded sequences."""
        return len(self.sequence_starts) - 1

    def __post_init__(self) -> None:
        Sampling(self.temperature, self.top_p, self.target_top_k)  # raises
        _check_starts("sequence_starts", self.sequence_starts, self.roots)
        _check_starts("node_starts", self.node_starts, len(self.parent))
        if self.top_k < 1 or self.depth < 1 or self.accepted_ranks.shape != (self.roots, self.depth):
            raise InvalidValueError(
                f"accepted_ranks: expected shape {(self.roots, self.depth)}. Got {self.accepted_ranks.shape}."
            )
        if len(self.rank) != len(self.parent) or len(self.log_probs) != len(self.parent):
            raise InvalidValueError(f"rank, log_probs: expected {len(self.parent)} rows, one per node.")
        self._check_nodes()
        if np.any((self.accepted_ranks < NOT_DRAFTED) | (self.accepted_ranks >= self.top_k)):
            raise InvalidValueError(f"accepted_ranks: expected -1 to {self.top_k - 1}.")
        if np.any((self.accepted_ranks[:, :-1] == NOT_DRAFTED) & (self.accepted_ranks[:, 1:] != NOT_DRAFTED)):
            raise InvalidValueError("accepted_ranks: expected -1 at every depth after the first -1.")
        if not np.all(self.log_probs <= 0) or np.any(self.log_probs[:, 1:] > self.log_probs[:, :-1]):
            raise InvalidValueError("log_probs: expected non-increasing numbers of at most 0.")
        with np.errstate(over="ignore"):  # float64 below the range of float32 becomes -inf
            for name, dtype, _ in _ARRAYS:
                object.__setattr__(self, name, getattr(self, name).astype(dtype, copy=False))
        freeze(self)

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
        """Write the record file, a numpy archive, atomically."""
        arrays: dict[str, Any] = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, format=np.array(FORMAT), version=np.array(VERSION), **arrays)
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> "DraftRecord":
        """Read a record file.

        Raises FormatError for invalid content, TreeoptError if the file cannot be read.
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
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != count or np.any(np.diff(starts) < 1):
        raise InvalidValueError(f"{name}: expected to rise from 0 to {count}.")
