"""A tree from a file in any known format: a tree file, another program's, or a solution file.

`treeopt.trees` offers `load` and `load_file`. They are here, above the solver, which reads solution files.
"""

import io
import zipfile
from pathlib import Path

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.files.whole_files import file_path, read_bytes
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import Provenance, TreeFile
from treeopt.version import TOOL

SOLUTION_ARRAYS = {"p.npy", "method.npy"}
LISTED = 20
"""Most names of trees that an error lists."""


def load(path: Path | str, name: str | None = None) -> TokenTree:
    """Return the tree of a file in any known format.

    Args:
        path: a tree file, another program's trees (`treeopt import --list` lists the formats), or a solution file, whose
            tree with the most tokens is taken.
        name: the tree to take from a file with several named trees.

    The format is found by content. Nothing in the file is executed.
    Raises FormatError naming the file, the field and the reason; TreeoptError if the file cannot be read, has several trees
    and no `name` was given, or has none of that name.
    """
    return load_file(path, name).tree


def load_file(path: Path | str, name: str | None = None) -> TreeFile:
    """Return the tree with its drafter, prediction and provenance; arguments and errors as for `load`."""
    path = file_path(path)
    return parse(path, read_tree_bytes(path), name)


def parse(
    path: Path, data: bytes, name: str | None = None, *, max_nodes: int | None = None, max_depth: int | None = None
) -> TreeFile:
    """Return the tree of a file's bytes, as `load_file` does.

    Args:
        path: the file, for errors and provenance.
        data: its content.
        name: as for `load`.
        max_nodes: most nodes of the tree from a solution file; by default all that were solved. Other files ignore it.
        max_depth: the same of levels.
    """
    if is_solution(data):
        if name is None:
            return _from_solution(path, data, max_nodes, max_depth)
        raise InvalidValueError(
            f"name: {path} is a solution file, whose trees have none. Got {name!r:.60}: leave it out.", field="name"
        )
    from treeopt.trees import formats

    return _choose(path, formats.parse(path, data), name)


def read_tree_bytes(path: Path) -> bytes:
    """Return the bytes of a file or pipe; solution files may be larger than others.

    Raises TreeoptError if it cannot be read or is too large.
    """
    from treeopt.trees.formats import MAX_BYTES

    return read_bytes(path, limit_bytes=_solution_bytes() if path.is_file() and _has_solution(path) else MAX_BYTES)


def is_solution(data: bytes) -> bool:
    """Return whether bytes are a solution file."""
    return _has_solution(io.BytesIO(data))


def _has_solution(file: Path | io.BytesIO) -> bool:
    """Return whether an archive has the arrays of a solution; False for unreadable files, which other readers refuse."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(archive.namelist()) >= SOLUTION_ARRAYS
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _choose(path: Path, trees: dict[str | None, TreeFile], name: str | None) -> TreeFile:
    from treeopt.trees.formats.topology import label

    if name in trees:
        return trees[name]
    if name is None and len(trees) == 1:
        return next(iter(trees.values()))
    named = [each for each in trees if each is not None]
    names = ", ".join(map(label, named[:LISTED])) + (", ..." if len(named) > LISTED else "")
    if not named:
        raise TreeoptError(f"{path}: its tree has no name. Got --name {name}: leave it out.")
    if name is None:
        raise TreeoptError(f"{path}: holds {len(trees)} trees, {names}. Choose one with --name, name= from Python.")
    raise TreeoptError(
        f"{path}: holds no tree named {label(name)}. Choose one of {names} with --name, name= from Python."
    )


def _from_solution(path: Path, data: bytes, nodes: int | None, depth: int | None) -> TreeFile:
    """Return the tree with the most tokens; raises InvalidValueError for more nodes or levels than were solved."""
    from treeopt.solver import Solution

    solution = Solution.parse(path, data)
    for name, value, most in (("max_nodes", nodes, solution.max_nodes), ("max_depth", depth, solution.max_depth)):
        if value is not None and value > most:
            raise InvalidValueError(
                f"{name}: {path} was solved up to {most}. Got {value}: ask for less, or solve more.", field=name
            )
    tree = solution.tree(solution.max_nodes if nodes is None else nodes, solution.max_depth if depth is None else depth)
    reach = solution.table.reach(tree)
    provenance = Provenance(tool=TOOL, source=str(path), tokens_per_step=float(reach.sum()))
    return TreeFile(tree=tree, reach=reach, provenance=provenance)


def _solution_bytes() -> int:
    from treeopt.solver.solution_file import MAX_BYTES  # here, because the solver is slow to import

    return MAX_BYTES
