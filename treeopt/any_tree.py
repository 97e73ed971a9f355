"""Load a tree from a tree file, a solution file or another program's file.

`treeopt.trees` exports `load` and `load_file`; they are defined here because they depend on the solver.
"""

import io
import zipfile
from pathlib import Path

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.files.atomic_files import file_path, read_unpacked
from treeopt.files.fields import quote_name
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import Provenance, TreeFile
from treeopt.version import TOOL

SOLUTION_ARRAYS = {"p.npy", "method.npy"}
MAX_LISTED = 20
"""Tree names that an error lists."""


def load(path: Path | str, name: str | None = None) -> TokenTree:
    """Return the tree of a file.

    Args:
        path: a tree file, another program's file (`treeopt import --list` lists the formats), or a solution file, of which the
            tree with the most tokens is returned.
        name: of the tree, for a file with several named trees.

    The format is recognised by content. Nothing in the file is executed.
    Raises FormatError naming the file, the field and the reason; TreeoptError if the file cannot be read, contains several
    trees and `name` is None, or contains no tree of that name.
    """
    return load_file(path, name).tree


def load_file(path: Path | str, name: str | None = None) -> TreeFile:
    """Return the tree with its drafter, prediction and provenance; arguments and errors as for `load`."""
    path = file_path(path)
    return parse(path, read_tree_bytes(path), name)


def parse(
    path: Path, data: bytes, name: str | None = None, *, max_nodes: int | None = None, max_depth: int | None = None
) -> TreeFile:
    """Parse the bytes of a file as `load_file` does.

    Args:
        path: the file, for errors and provenance.
        data: its content.
        name: as for `load`.
        max_nodes: most nodes of the tree, for a solution file; by default all that were solved.
        max_depth: most levels, likewise.
    """
    if is_solution(data):
        if name is None:
            return _from_solution(path, data, max_nodes, max_depth)
        raise InvalidValueError(
            f"name: {path} is a solution file, whose trees have no names. Got {name!r:.60}: leave it out.", field="name"
        )
    from treeopt.trees import formats

    return _select_tree(path, formats.parse(path, data), name)


def read_tree_bytes(path: Path) -> bytes:
    """Return the bytes of a file or pipe; solution files may be larger than other files.

    Raises TreeoptError if it cannot be read or is too large.
    """
    from treeopt.trees.formats import MAX_BYTES

    return read_unpacked(path, limit_bytes=_solution_bytes() if path.is_file() and _has_solution(path) else MAX_BYTES)


def is_solution(data: bytes) -> bool:
    """Whether bytes are a solution file."""
    return _has_solution(io.BytesIO(data))


def _has_solution(file: Path | io.BytesIO) -> bool:
    """Whether an archive contains the arrays of a solution; False for unreadable files, on which other readers raise."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(archive.namelist()) >= SOLUTION_ARRAYS
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _select_tree(path: Path, trees: dict[str | None, TreeFile], name: str | None) -> TreeFile:
    if name in trees:
        return trees[name]
    if name is None and len(trees) == 1:
        return next(iter(trees.values()))
    named = [tree_name for tree_name in trees if tree_name is not None]
    names = ", ".join(map(quote_name, named[:MAX_LISTED])) + (", ..." if len(named) > MAX_LISTED else "")
    if not named:
        raise TreeoptError(f"{path}: its tree has no name. Got --name {name}: leave it out.")
    if name is None:
        raise TreeoptError(f"{path}: contains {len(trees)} trees, {names}. Choose one with --name, name= from Python.")
    raise TreeoptError(
        f"{path}: contains no tree named {quote_name(name)}. Choose one of {names} with --name, name= from Python."
    )


def _from_solution(path: Path, data: bytes, nodes: int | None, depth: int | None) -> TreeFile:
    """Return the tree with the most tokens within the limits; raises InvalidValueError if they exceed the solved ones."""
    from treeopt.solver import Solution

    solution = Solution.parse(path, data)
    for name, value, limit in (("max_nodes", nodes, solution.max_nodes), ("max_depth", depth, solution.max_depth)):
        if value is not None and value > limit:
            raise InvalidValueError(
                f"{name}: {path} was solved up to {limit}. Got {value}: ask for less, or solve more.", field=name
            )
    tree = solution.tree(solution.max_nodes if nodes is None else nodes, solution.max_depth if depth is None else depth)
    reach = solution.table.reach(tree)
    provenance = Provenance(tool=TOOL, source=str(path), tokens_per_step=float(reach.sum()))
    return TreeFile(tree=tree, reach=reach, provenance=provenance)


def _solution_bytes() -> int:
    from treeopt.solver.solution import MAX_BYTES  # in the function, because the solver is slow to import

    return MAX_BYTES
