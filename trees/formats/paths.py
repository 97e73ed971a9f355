"""Trees written as paths: for every node but the root, the ranks of the nodes that lead to it, itself last."""

from itertools import pairwise
from pathlib import Path

from treeopt.errors import FormatError, InfeasibleError
from treeopt.trees.formats.checks import short
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_text import MAX_NODES

MAX_RANKS = 1_000_000
"""Most ranks in all paths of a written file together: a chain of n nodes has n²/2."""


def paths_of_tree(tree: TokenTree) -> list[tuple[int, ...]]:
    """Return the path of every node but the root, in level order.

    Raises InfeasibleError for the root alone, which has no path, and for trees whose paths would be too long.

    >>> paths_of_tree(TokenTree([-1, 0, 0, 1]))
    [(0,), (1,), (0, 0)]
    """
    if tree.nodes == 1:
        raise InfeasibleError("tree: expected at least one draft token. Got the root alone: decode without a draft.")
    if int(tree.depth.sum()) > MAX_RANKS:
        raise InfeasibleError(
            f"tree: expected paths of at most {MAX_RANKS} ranks together. Got {tree.depth.sum()}: "
            "solve again with a smaller --budget or --depth."
        )
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents[1:].tolist(), tree.rank[1:].tolist(), strict=True):
        paths.append((*paths[parent], rank))
    return paths[1:]


def tree_of_paths(path: Path, field: str, value: object) -> TokenTree:
    """Return the tree of a list of paths in any order.

    Raises FormatError naming the file, the path and the reason: what is no path, a path that comes twice, a prefix or a
    lower-ranked sibling that is missing.
    """
    if not isinstance(value, list | tuple) or not value:
        raise FormatError(path, field, f"expected a list of paths such as [[0], [1], [0, 0]]. Got {short(value)}.")
    if len(value) >= MAX_NODES:
        raise FormatError(path, field, f"expected at most {MAX_NODES - 1} paths. Got {len(value)}.")
    place: dict[tuple[int, ...], int] = {}
    for i, ranks in enumerate(value):
        known = _path(path, f"{field}[{i}]", ranks)
        if known in place:
            raise FormatError(path, f"{field}[{i}]", f"path {short(ranks)} comes twice. Remove one.")
        place[known] = i
    node = {(): 0} | {ranks: node for node, ranks in enumerate(sorted(place, key=lambda p: (len(p), p)), start=1)}
    parents = [-1]
    for before, ranks in pairwise(node):
        where = f"{field}[{place[ranks]}]"
        if ranks[:-1] not in node:
            raise FormatError(path, where, f"path {short(ranks)} needs {short(ranks[:-1])}, which is missing. Add it.")
        first = before[:-1] != ranks[:-1] or len(before) != len(ranks)
        expected = 0 if first else before[-1] + 1
        if ranks[-1] != expected:
            missing = (*ranks[:-1], expected)
            reason = (
                f"path {short(ranks)} needs its sibling {short(missing)}, which is missing. Number ranks without gaps."
            )
            raise FormatError(path, where, reason)
        parents.append(node[ranks[:-1]])
    return TokenTree(parents)


def _path(path: Path, field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise FormatError(path, field, f"expected a path of at least one rank. Got {short(value)}.")
    if not set(map(type, value)) <= {int} or min(value) < 0:
        raise FormatError(path, field, f"expected ranks, whole numbers of at least 0. Got {short(value)}.")
    return tuple(value)
