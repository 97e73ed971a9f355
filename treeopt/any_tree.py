"""A tree out of a file in any known format: a tree file, another program's, or a solution file.

This is `treeopt.trees.load`; it stands above the solver, which takes trees out of solution files.
"""

import io
import zipfile
from pathlib import Path

from treeopt.errors import InvalidValueError
from treeopt.files.whole_files import file_path, read_bytes
from treeopt.trees.provenance import Provenance
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import TreeFile
from treeopt.version import TOOL

SOLUTION_ARRAYS = {"p.npy", "method.npy"}


def load(path: Path | str, name: str | None = None) -> TokenTree:
    """Return the tree of a file in any known format; `load_file` gives its probabilities and provenance too.

    Args:
        path: a tree file, another program's trees (`treeopt import --list` lists the formats), or a solution file, of
            which the tree of most tokens is taken.
        name: which tree of a file that holds several by name.

    Nothing in the file is executed, whatever its format.
    Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read, or when the file
    has several trees and no `name` is given, or none of that name.
    """
    return load_file(path, name).tree


def load_file(path: Path | str, name: str | None = None) -> TreeFile:
    """Return the tree of a file in any known format with all that the file says of it; arguments as for `load`."""
    path = file_path(path)
    data = read_tree_bytes(path)
    if not is_solution(io.BytesIO(data)):
        from treeopt.trees.formats import parse_tree

        return parse_tree(path, data, name)
    if name is not None:
        raise InvalidValueError(
            f"name: {path} is a solution file, whose trees have none. Got {name!r:.60}: leave it out.", field="name"
        )
    return out_of_solution(path, data)


def read_tree_bytes(path: Path) -> bytes:
    """Return the bytes of a file, or a pipe, that may hold a tree; solution files may be larger than others.

    Raises TreeoptError when it cannot be read or is too large.
    """
    from treeopt.trees.formats import MAX_BYTES

    return read_bytes(path, limit_bytes=_solution_bytes() if path.is_file() and is_solution(path) else MAX_BYTES)


def is_solution(file: Path | io.BytesIO) -> bool:
    """Tell a solution by the names of its arrays; what cannot be read is left to the other readers to refuse."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(archive.namelist()) >= SOLUTION_ARRAYS
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def out_of_solution(path: Path, data: bytes, nodes: int | None = None, depth: int | None = None) -> TreeFile:
    """Return the tree of most tokens out of a solution file's bytes, by default of all nodes and levels that it holds.

    Raises FormatError as `Solution.load` does, InvalidValueError for more nodes or levels than were solved.
    """
    from treeopt.solver import Solution

    solution = Solution.parse(path, data)
    for name, asked, most in (("max_nodes", nodes, solution.max_nodes), ("max_depth", depth, solution.max_depth)):
        if asked is not None and asked > most:
            raise InvalidValueError(
                f"{name}: {path} was solved up to {most}. Got {asked}: ask for less, or solve more.", field=name
            )
    tree = solution.tree(solution.max_nodes if nodes is None else nodes, solution.max_depth if depth is None else depth)
    reach = solution.table.reach(tree)
    provenance = Provenance(tool=TOOL, source=str(path), tokens_per_step=float(reach.sum()))
    return TreeFile(tree=tree, reach=reach, provenance=provenance)


def _solution_bytes() -> int:
    from treeopt.solver.solution_file import MAX_BYTES  # here, because the solver is slow to import

    return MAX_BYTES
