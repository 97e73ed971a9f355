"""A tree out of a file in any known format: a tree file, another program's, or a solution file.

This is `treeopt.trees.load`; it stands above the solver, which takes trees out of solution files.
"""

import zipfile
from pathlib import Path

from treeopt import __version__
from treeopt.errors import InvalidValueError
from treeopt.files import file_path
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import Provenance, TreeFile

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
    if not _is_solution(path):
        from treeopt.trees.formats import read_tree

        return read_tree(path, name)
    if name is not None:
        raise InvalidValueError(
            f"name: {path} is a solution file, whose trees have none. Got {name!r:.60}: leave it out."
        )
    return _most_tokens(path)


def _most_tokens(path: Path) -> TreeFile:
    """Return the tree of most tokens of all that a solution file holds."""
    from treeopt.solver import Solution

    solution = Solution.load(path)
    tree = solution.tree(solution.max_nodes, solution.max_depth)
    reach = solution.table.reach(tree)
    provenance = Provenance(tool=f"treeopt {__version__}", source=str(path), tokens_per_step=float(reach.sum()))
    return TreeFile(tree=tree, reach=reach, provenance=provenance)


def _is_solution(path: Path) -> bool:
    """Tell a solution file by the names of its arrays; what cannot be read is left to the other readers."""
    if not path.is_file():  # a look into a pipe would empty it
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist()) >= SOLUTION_ARRAYS
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False
