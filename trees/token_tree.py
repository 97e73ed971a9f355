"""The speculation tree: parents in level order; everything else follows from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.arrays import Bool, Int32, Integers
from treeopt.errors import InvalidValueError
from treeopt.files.atomic_files import write_text
from treeopt.tabular import Row

FORMAT, VERSION = "treeopt-tree", 1
MAX_NODES = 65_536
"""Most nodes of a tree in a file."""
SHOWN_WIDTHS = 16
"""Most level widths in `repr`."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """A tree of draft tokens below the root, which is the last committed token.

    Nodes are in level order, siblings in rank order: `parents[0] == -1` and `parents` is non-decreasing. So the children of
    every node and the nodes of every level are contiguous, and equal trees have equal arrays.

    Args:
        parents: int32 (n,), the index of each node's parent; -1 for the root.

    Raises InvalidValueError naming the first node that breaks the order; `TokenTree.ordered` sorts any parents.

    >>> tree = TokenTree([-1, 0, 0, 1, 1, 2])
    >>> tree.depth.tolist(), tree.rank.tolist()
    ([0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 0])
    """

    parents: Int32
    depth: Int32
    """int32 (n,): levels below the root, which has depth 0."""
    rank: Int32
    """int32 (n,): order among siblings, 0 first; 0 for the root."""

    def __init__(self, parents: Sequence[int] | Integers) -> None:
        checked = _check_indices(parents)
        depth, rank = _depth_and_rank(checked.tolist())
        for name, values in (("parents", checked), ("depth", depth), ("rank", rank)):
            array = np.array(values, np.int32)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def ordered(cls, parents: Sequence[int] | Integers) -> "TokenTree":
        """Return the tree of a parents array in which every parent comes before its children.

        Siblings keep their relative order as ranks.

        >>> TokenTree.ordered([-1, 0, 1, 0]).parents.tolist()
        [-1, 0, 0, 1]
        """
        array = _check_indices(parents)
        if len(array) == 0 or array[0] != -1 or any(not 0 <= array[i] < i for i in range(1, len(array))):
            raise InvalidValueError("parents: expected -1 first and then, for every node, a parent before it.")
        children: list[list[int]] = [[] for _ in array]
        for node in range(1, len(array)):
            children[array[node]].append(node)
        order, new_parents = [0], [-1]
        for position, node in enumerate(order):  # grows during the loop: a breadth-first walk
            order.extend(children[node])
            new_parents.extend([position] * len(children[node]))
        return cls(new_parents)

    @property
    def nodes(self) -> int:
        """Tokens that the target verifies in one pass, root included."""
        return len(self.parents)

    @property
    def max_depth(self) -> int:
        """Draft levels: the most draft tokens that one step can accept."""
        return int(self.depth[-1])

    @property
    def child_counts(self) -> Int32:
        """int32 (n,): children of each node."""
        return np.bincount(self.parents[1:], minlength=self.nodes).astype(np.int32)

    @property
    def first_child(self) -> Int32:
        """int32 (n,): index of each node's first child; for a leaf, the index that a child would have."""
        return np.searchsorted(self.parents, np.arange(self.nodes), side="left").astype(np.int32)

    def children(self, node: int) -> range:
        """Return the indices of a node's children in rank order."""
        start, stop = np.searchsorted(self.parents, [node, node + 1], side="left")
        return range(int(start), int(stop))

    @property
    def levels(self) -> tuple[slice, ...]:
        """One slice of node indices per depth, root level first."""
        starts = np.searchsorted(self.depth, np.arange(self.max_depth + 2))
        return tuple(slice(int(start), int(stop)) for start, stop in pairwise(starts))

    @property
    def level_widths(self) -> Int32:
        """int32 (max_depth + 1,): nodes of each depth."""
        return np.bincount(self.depth).astype(np.int32)

    @property
    def draft_widths(self) -> Int32:
        """int32 (max_depth,): internal nodes of each depth, which the drafter runs on."""
        internal = self.child_counts > 0
        return np.bincount(self.depth[internal], minlength=self.max_depth).astype(np.int32)

    @property
    def ancestor_mask(self) -> Bool:
        """Bool (n, n): row i marks node i and its ancestors, the tree tokens that node i may attend to."""
        rows = [bytearray(self.nodes)]  # bytes are faster than a numpy call per level
        for node, parent in enumerate(self.parents.tolist()):
            rows.append(rows[parent + 1].copy())
            rows[-1][node] = True
        return np.frombuffer(bytearray().join(rows[1:]), np.bool_).reshape(self.nodes, self.nodes)

    @property
    def leaf_paths(self) -> Int32:
        """int32 (leaves, max_depth + 1): the nodes from the root to each leaf, padded with -1."""
        leaves = np.flatnonzero(self.child_counts == 0)
        paths = np.full((len(leaves), self.max_depth + 1), -1, np.int32)
        for row, leaf in enumerate(leaves):
            node = int(leaf)
            while node >= 0:
                paths[row, self.depth[node]] = node
                node = int(self.parents[node])
        return paths

    def save(self, path: Path | str) -> None:
        """Write a tree file that contains the tree alone; `TreeFile.save` writes predictions and provenance too.

        Raises InvalidValueError for more than 65,536 nodes.
        """
        check_size(self.nodes)
        write_text(path, file_text({"parents": self.parents.tolist()}))

    def to_records(self) -> list[Row]:
        """Return a row per node, for `pandas.DataFrame`."""
        columns = (self.parents.tolist(), self.depth.tolist(), self.rank.tolist())
        return [
            {"node": node, "parent": parent, "depth": depth, "rank": rank}
            for node, (parent, depth, rank) in enumerate(zip(*columns, strict=True))
        ]

    def _repr_svg_(self) -> str | None:
        from treeopt.trees.figure import inline_svg

        return inline_svg(self)

    def __len__(self) -> int:
        return self.nodes

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TokenTree) and self.parents.tobytes() == other.parents.tobytes())

    def __hash__(self) -> int:
        return hash(self.parents.tobytes())

    def __reduce__(self) -> tuple[type["TokenTree"], tuple[Int32]]:
        return TokenTree, (self.parents,)  # so that copies are read-only too

    def __repr__(self) -> str:
        widths = ", ".join(map(str, self.level_widths[:SHOWN_WIDTHS])) + ", ..." * (self.max_depth >= SHOWN_WIDTHS)
        return f"TokenTree(nodes={self.nodes}, max_depth={self.max_depth}, widths=[{widths}])"


def file_text(content: Mapping[str, Any]) -> str:
    """Return the text of a tree file, one key per line, so that equal trees give equal bytes."""
    content = {"format": FORMAT, "version": VERSION, **content}
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def check_size(nodes: int) -> None:
    """Raise InvalidValueError for more nodes than a file may have."""
    if nodes > MAX_NODES:
        raise InvalidValueError(f"expected at most {MAX_NODES} nodes. Got {nodes}.")


def _check_indices(parents: Sequence[int] | Integers) -> Int32:
    try:
        array = np.asarray(parents)
    except ValueError:  # lists of different lengths
        raise InvalidValueError("parents: expected one integer per node. Got lists inside the list.") from None
    if isinstance(parents, list | tuple) and bool in map(type, parents):
        raise InvalidValueError("parents: expected one integer per node. Got a boolean: give its node's number.")
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise InvalidValueError(
            f"parents: expected one integer per node, the root's -1 first. Got shape {array.shape}, {array.dtype}."
        )
    nodes: list[int] = array.tolist()
    if max(nodes) >= len(nodes) or min(nodes) < -1:
        raise InvalidValueError(
            f"parents: expected node indices from -1 to {len(nodes) - 1}. Got {min(nodes)} to {max(nodes)}."
        )
    return array.astype(np.int32)


def _depth_and_rank(parents: list[int]) -> tuple[list[int], list[int]]:
    if parents[0] != -1:
        raise InvalidValueError(f"parents[0]: expected -1, the root. Got {parents[0]}.")
    depth, rank, previous, first = [0], [0], -1, 1
    for node, parent in enumerate(parents[1:], start=1):
        if not previous <= parent < node or parent < 0:
            raise _order_error(node, parent, previous)
        if parent != previous:
            previous, first = parent, node
        depth.append(depth[parent] + 1)
        rank.append(node - first)
    return depth, rank


def _order_error(node: int, parent: int, previous: int) -> InvalidValueError:
    if parent < 0:
        return InvalidValueError(f"parents[{node}]: expected a node before {node}. Got {parent}, a second root.")
    if parent >= node:
        return InvalidValueError(f"parents[{node}]: expected a node before {node}. Got {parent}.")
    return InvalidValueError(
        f"parents[{node}]: expected level order with siblings together, so at least {previous}. "
        f"Got {parent}; TokenTree.ordered() sorts nodes in another order."
    )
