"""Which sequence ids of llama.cpp the nodes of one text's trees carry.

A token of llama.cpp's unified cache belongs to any number of sequences, and sees the tokens of its own first one that
stand before it.  So each leaf of a tree has a sequence: the text, and the path down to the leaf.  A node carries the ids
of all leaves below it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np

from treeopt.arrays import Bool, Int32, Integers
from treeopt.errors import InvalidValueError

END = -1
"""Stands for "up to the last position"."""
NO_TREE = "mask: expected that of a tree. Got nodes that see others than those above them: take a drafter that proposes trees."


class Memory(Protocol):
    """What a context can do with the sequences of its cache, positions first to end, `END` for all of them."""

    def copy(self, source: int, to: int, first: int, end: int) -> None:
        """Let what belongs to one sequence belong to another as well."""

    def remove(self, sequence: int, first: int, end: int) -> None:
        """Take it out of a sequence; what belongs to none is forgotten."""


class SequenceIds:
    """Gives every sequence of a context an id of its own.

    Args:
        most: sequences of the context.
        texts: that share it.
    """

    def __init__(self, most: int, texts: int) -> None:
        self._most, self._texts = most, texts
        self._ids = count()

    def __call__(self) -> int:
        """Return an id that no sequence has; raises InvalidValueError where there is none."""
        found = next(self._ids)
        if found >= self._most:
            several = self._texts > 1
            fewer = ", or fewer texts at a time" if several else ""
            raise InvalidValueError(
                f"tree: expected at most {self._most // self._texts - 1} leaves, because llama.cpp has {self._most} "
                f"sequences for {self._texts} text{'s' * several}. Got more: take a narrower tree, fewer nodes "
                f"(--max-tokens){fewer}."
            )
        return found


@dataclass(slots=True)
class _Line:
    """One sequence of a text: the first tokens of the text, and behind them a path of nodes."""

    id: int
    held: int = 0
    """Tokens of the text."""
    path: list[int] = field(default_factory=list)
    """Slots of its nodes, from the root down; the first stands at position `held`."""


class Placed:
    """Sequence ids of the nodes of one pass.

    Args:
        sees: bool (leaves, rows), the nodes on the path to each leaf.
        lines: of each leaf.
        first: slot of the first row.
    """

    def __init__(self, sees: Bool, lines: Sequence[_Line], first: int) -> None:
        self._sees, self._lines, self._first = sees, lines, first

    def ids(self) -> tuple[Int32, Int32]:
        """Return how many ids each row has, and the ids of all rows one after the other."""
        ids = np.array([line.id for line in self._lines], np.int32)
        _, leaves = np.nonzero(self._sees.T)
        return self._sees.sum(0, dtype=np.int32), ids[leaves]

    def stored(self) -> None:
        """Note that the nodes are in the cache now."""
        for line, row in zip(self._lines, self._sees, strict=True):
            line.path += (self._first + np.flatnonzero(row)).tolist()


class Sequences:
    """The sequences of one text.

    The first holds the text and never a node, so that a shorter text can be looked at and the whole one again.  The
    others are made when a tree has more leaves than any before.

    Args:
        memory: of the context.
        new_id: gives an id that no sequence has.
    """

    def __init__(self, memory: Memory, new_id: Callable[[], int]) -> None:
        self._memory = memory
        self._new_id = new_id
        self.text = _Line(new_id())
        self._lines: list[_Line] = []

    def clear(self) -> None:
        """Forget the text and all nodes, those of a pass that was broken off too; the ids stay."""
        for line in (self.text, *self._lines):
            self._memory.remove(line.id, 0, END)
            line.held, line.path = 0, []

    def forget_nodes(self, first: int) -> None:
        """Forget the nodes in slots from `first` on."""
        for line in self._lines:
            if line.path and line.path[-1] >= first:
                self._cut(line, sum(slot < first for slot in line.path))

    def place(self, visible: Bool, length: int, start: int) -> Placed:
        """Return the ids of nodes that stand behind `length` tokens of the text.

        Args:
            visible: bool (rows, start + rows), the nodes that each may attend to.
            length: of the text, which is in the cache.
            start: nodes that were fed before; the rows go to slots length + start …

        Raises InvalidValueError for a mask that is not of a tree, and where no id is left.
        """
        rows = visible[:, start:]
        leaves = np.flatnonzero(rows.sum(0) == 1)
        sees = rows[leaves]
        _check_paths(visible, leaves, sees, start)
        attached = [(length + np.flatnonzero(visible[leaf, :start])).tolist() for leaf in leaves]
        return Placed(sees, self._lines_behind(attached, length), length + start)

    def keep(self, path: Sequence[int], length: int) -> None:
        """Commit nodes in the slots of a path that begins behind `length` tokens of the text; those below them stay.

        Raises InvalidValueError where no such path was fed.
        """
        size = len(path)
        source = next((line for line in self._lines if line.held == length and line.path[:size] == [*path]), None)
        if source is None:
            raise InvalidValueError(f"path: expected nodes that were fed. Got {[*path]}: feed them first.")
        if self.text.held > length:
            self._memory.remove(self.text.id, length, END)
        self._memory.copy(source.id, self.text.id, length, length + size)
        self.text.held = length + size
        for line in self._lines:
            if line.path:
                common = _common(line.path, path)
                if common < size:
                    self._cut(line, common)
                line.held += common
                line.path = line.path[common:]

    def _cut(self, line: _Line, nodes: int) -> None:
        """Leave so many nodes on a path."""
        if len(line.path) > nodes:
            self._memory.remove(line.id, line.held + nodes, END)
            del line.path[nodes:]

    def _lines_behind(self, paths: Sequence[list[int]], length: int) -> list[_Line]:
        """Return a sequence of its own for each path of nodes, that ends with it; an empty one ends with the text."""
        free = [line for line in reversed(self._lines) if not line.path]
        holders = {slot: line for line in self._lines for slot in line.path}
        ends: dict[int, list[_Line]] = {}
        for line in self._lines:
            if line.path:
                ends.setdefault(line.path[-1], []).append(line)
        found = []
        for path in paths:
            here = ends.get(path[-1]) if path else None
            if here and here[-1].path == path:
                found.append(here.pop())
            else:
                line = free.pop() if free else self._new_line()
                self._hold(line, length)
                if path:
                    self._copy_path(path, holders.get(path[-1]), line)
                found.append(line)
        return found

    def _new_line(self) -> _Line:
        self._lines.append(_Line(self._new_id()))
        return self._lines[-1]

    def _hold(self, line: _Line, length: int) -> None:
        """Let a sequence without nodes hold so many tokens of the text."""
        if line.held > length:
            self._memory.remove(line.id, length, END)
        elif line.held < length:
            self._memory.copy(self.text.id, line.id, line.held, length)
        line.held = length

    def _copy_path(self, path: list[int], source: _Line | None, to: _Line) -> None:
        """Let a sequence that ends with the text hold a path of nodes that another holds."""
        size = len(path)
        if source is None or source.path[:size] != path:
            raise InvalidValueError(NO_TREE)
        self._memory.copy(source.id, to.id, to.held, to.held + size)
        to.path = path


def _common(path: Sequence[int], other: Sequence[int]) -> int:
    """Return how many nodes two paths share from their beginning."""
    pairs = enumerate(zip(path, other, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(path), len(other)))


def _check_paths(visible: Bool, leaves: Integers, sees: Bool, start: int) -> None:
    """Refuse a mask in which a node sees others than a leaf below it does up to there."""
    if sees.any(0).all():
        below = leaves[sees.argmax(0)]
        before = np.tri(visible.shape[0], visible.shape[1], start, dtype=np.bool_)
        if np.array_equal(visible, visible[below] & before):
            return
    raise InvalidValueError(NO_TREE)
