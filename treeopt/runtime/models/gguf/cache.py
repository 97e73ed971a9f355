"""The cache of one sequence and its tree nodes in a context of llama.cpp.

A token in llama.cpp's unified cache carries any number of sequence ids (`seq_id`), and attends to earlier tokens that
carry its first one.  So each leaf of a tree has an id of its own, for the committed tokens and the path down to the leaf.
A node carries the ids of all leaves below it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from treeopt.arrays import Bool, Int32, Integers
from treeopt.errors import InvalidValueError
from treeopt.runtime.models.gguf.library import END, Context
from treeopt.runtime.models.model import SequenceCache

NO_TREE = "mask: expected that of a tree. Got nodes that see others than those above them: take a drafter that proposes trees."


class SequenceIds:
    """Hands out the sequence ids of a context, which `caches` caches share."""

    def __init__(self, most: int, caches: int) -> None:
        self._most, self._caches = most, caches
        self._ids = count()

    def __call__(self) -> int:
        """Return an unused id; raises InvalidValueError if there is none."""
        new_id = next(self._ids)
        if new_id >= self._most:
            batch = f" for a batch of {self._caches}" if self._caches > 1 else ""
            smaller = ", or a smaller batch" if self._caches > 1 else ""
            raise InvalidValueError(
                f"tree: expected at most {self._most // self._caches - 1} leaves, because llama.cpp has {self._most} "
                f"sequences{batch}. Got more: take a narrower tree, fewer nodes (--max-tokens){smaller}."
            )
        return new_id


@dataclass(slots=True)
class _Line:
    """The tokens that carry one sequence id: the first committed ones, and a path of nodes after them."""

    id: int
    length: int = 0
    path: list[int] = field(default_factory=list)
    """Slots of its nodes, from the root down; the first is at position `length`."""


class NodeIds:
    """Sequence ids of the nodes of one pass; `visible`, bool (leaves, rows), has the nodes on the path to each leaf."""

    def __init__(self, visible: Bool, lines: Sequence[_Line], first: int) -> None:
        self._visible, self._lines, self._first = visible, lines, first

    def ids(self) -> tuple[Int32, Int32]:
        """Return the number of ids per row, and the ids of all rows, concatenated."""
        ids = np.array([line.id for line in self._lines], np.int32)
        _, leaves = np.nonzero(self._visible.T)
        return self._visible.sum(0, dtype=np.int32), ids[leaves]

    def mark_stored(self) -> None:
        """Record that the nodes are in the cache."""
        for line, row in zip(self._lines, self._visible, strict=True):
            line.path += (self._first + np.flatnonzero(row)).tolist()


class GGUFCache(SequenceCache):
    """The cache of one sequence, in a context that may contain those of others.

    One id carries the committed tokens and never a node.  So the length can be reduced, which hides the last of them,
    and set again, which restores them.  Setting it beyond them commits the nodes that were fed after them, which must
    be a path.  More ids are added when a tree has more leaves than any before.
    """

    store: Context

    def __init__(self, store: Context, capacity: int, new_id: Callable[[], int]) -> None:
        self.store = store
        self.committed = _Line(new_id())
        self._new_id = new_id
        self._lines: list[_Line] = []
        self._length = 0
        super().__init__(capacity)

    @property
    def length(self) -> int:
        """Committed tokens; setting it raises InvalidValueError for nodes that were not fed."""
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        if length > self.committed.length:
            self._commit(range(self._length, length))
        elif length != self._length:
            self._drop_nodes(0)
        self._length = length

    def commit(self, path: Sequence[int]) -> None:
        self._commit([self._length + offset for offset in path])
        self._drop_nodes(0)
        self._length += len(path)

    def commit_prefill(self, tokens: int) -> None:
        """Commit `tokens` tokens that were fed with the id of the committed ones."""
        self.committed.length += tokens
        self._length = self.committed.length

    def assign_ids(self, visible: Bool, start: int) -> NodeIds:
        """Drop the nodes in the slots from `start` on, and return the sequence ids of the nodes that replace them.

        `visible`, bool (rows, start + rows), has the nodes that each attends to.  Raises InvalidValueError for a mask
        that is not of a tree, and if the context has too few sequence ids.
        """
        first = self._length + start
        self._drop_nodes(first)
        rows = visible[:, start:]
        leaves = np.flatnonzero(rows.sum(0) == 1)
        paths = rows[leaves]
        _check_paths(visible, leaves, paths, start)
        fed_paths = [(self._length + np.flatnonzero(visible[leaf, :start])).tolist() for leaf in leaves]
        return NodeIds(paths, self._lines_after(fed_paths), first)

    def clear(self) -> None:
        """Drop all tokens and nodes, also those of an interrupted pass; the ids stay."""
        for line in (self.committed, *self._lines):
            self.store.remove(line.id, 0, END)
            line.length, line.path = 0, []
        self._length = 0

    def _zero_nodes(self) -> None:
        """Do nothing: slots after the committed tokens carry no id, so nothing attends to them."""

    def _drop_nodes(self, first: int) -> None:
        for line in self._lines:
            if line.path and line.path[-1] >= first:
                self._cut(line, sum(slot < first for slot in line.path))

    def _commit(self, path: Sequence[int]) -> None:
        """Commit the nodes in the slots of a path, if they were fed, else InvalidValueError; nodes below them stay."""
        size, length = len(path), self._length
        source = next((line for line in self._lines if line.length == length and line.path[:size] == [*path]), None)
        if source is None:
            raise InvalidValueError(f"path: expected nodes that were fed. Got {[*path]}: feed them first.")
        if self.committed.length > length:
            self.store.remove(self.committed.id, length, END)
        self.store.copy(source.id, self.committed.id, length, length + size)
        self.committed.length = length + size
        for line in self._lines:
            if line.path:
                common = _count_common(line.path, path)
                if common < size:
                    self._cut(line, common)
                line.length += common
                line.path = line.path[common:]
            elif line.length > length:
                self.store.remove(line.id, length, END)
                line.length = length

    def _cut(self, line: _Line, nodes: int) -> None:
        if len(line.path) > nodes:
            self.store.remove(line.id, line.length + nodes, END)
            del line.path[nodes:]

    def _lines_after(self, paths: Sequence[list[int]]) -> list[_Line]:
        """Return a separate line that ends with each path; for an empty path, with the committed tokens."""
        free = [line for line in reversed(self._lines) if not line.path]
        holders = {slot: line for line in self._lines for slot in line.path}
        ends: dict[int, list[_Line]] = {}
        for line in self._lines:
            if line.path:
                ends.setdefault(line.path[-1], []).append(line)
        lines = []
        for path in paths:
            matching = ends.get(path[-1]) if path else None
            if matching and matching[-1].path == path:
                lines.append(matching.pop())
            else:
                line = free.pop() if free else self._add_line()
                self._extend(line)
                if path:
                    self._copy_path(path, holders.get(path[-1]), line)
                lines.append(line)
        return lines

    def _add_line(self) -> _Line:
        self._lines.append(_Line(self._new_id()))
        return self._lines[-1]

    def _extend(self, line: _Line) -> None:
        """Give a line without nodes all committed tokens up to the length, and no more."""
        if line.length > self._length:
            self.store.remove(line.id, self._length, END)
        elif line.length < self._length:
            self.store.copy(self.committed.id, line.id, line.length, self._length)
        line.length = self._length

    def _copy_path(self, path: list[int], source: _Line | None, to: _Line) -> None:
        size = len(path)
        if source is None or source.path[:size] != path:
            raise InvalidValueError(NO_TREE)
        self.store.copy(source.id, to.id, to.length, to.length + size)
        to.path = path


def _count_common(path: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two paths."""
    pairs = enumerate(zip(path, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(path), len(other)))


def _check_paths(visible: Bool, leaves: Integers, paths: Bool, start: int) -> None:
    """Refuse a mask in which a node attends to other nodes than a leaf below it does up to there."""
    if paths.any(0).all():
        leaf_below = leaves[paths.argmax(0)]
        earlier = np.tri(visible.shape[0], visible.shape[1], start, dtype=np.bool_)
        if np.array_equal(visible, visible[leaf_below] & earlier):
            return
    raise InvalidValueError(NO_TREE)
