"""What the commands are given: a tree in any format, a solution, or a profile."""

import functools
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt import __version__
from treeopt.cli.options import Function
from treeopt.cli.values import COUNT, LENGTH, TEXT
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.files import read_bytes

if TYPE_CHECKING:
    from treeopt.trees import TreeFile
    from treeopt.trees.formats import NamedTree

PROFILE_MARK = b"format: treeopt-profile"
PROFILE_HEAD_BYTES = 200
SOLUTION_ARRAYS = {"p.npy", "method.npy"}


def tree_options(sized: str) -> Callable[[Function], Function]:
    """Add the options that choose one of the trees that a file holds.

    Args:
        sized: the files out of which a budget and a depth take a tree, in words.
    """
    options = [
        click.option("--name", type=TEXT, metavar="NAME", help="Which tree of a file that holds several."),
        click.option("--budget", type=COUNT, help=f"Of {sized}: most nodes; by default all it holds."),
        click.option("--depth", type=LENGTH, help=f"Of {sized}: most levels; by default all it holds."),
    ]
    return lambda function: functools.reduce(lambda done, option: option(done), reversed(options), function)


def is_profile(path: Path) -> bool:
    """Tell a profile by its first line; pipes, which a look inside would empty, are left to the reader of trees."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as opened:
            return _is_profile(opened.read(PROFILE_HEAD_BYTES))
    except OSError:
        return False


def read_any_tree(
    path: Path, *, name: str | None = None, budget: int | None = None, depth: int | None = None
) -> "TreeFile":
    """Return the tree of a file in any known format, or out of a solution file the one for a budget and depth.

    The file, or pipe, is read once.  Raises click.UsageError for a name, budget or depth that it has no use for,
    TreeoptError for a profile, and as the readers do.
    """
    from treeopt.trees.formats import MAX_BYTES, parse_tree

    data = read_bytes(path, limit_bytes=_solution_bytes() if path.is_file() and _is_solution(path) else MAX_BYTES)
    if _is_solution(io.BytesIO(data)):
        if name is not None:
            raise click.UsageError(f"--name: {path} is a solution file. Choose with --budget and --depth.")
        return _taken_out(path, data, budget, depth)
    _refuse_profile(path, data)
    if (budget, depth) != (None, None):
        raise click.UsageError(f"--budget and --depth choose a tree; {path} holds trees as they are. Leave them out.")
    return parse_tree(path, data, name)


def read_all_trees(path: Path) -> "tuple[NamedTree, ...]":
    """Return every tree of a file in any known format; raises TreeoptError for a profile, and as the readers do."""
    from treeopt.trees.formats import MAX_BYTES, parse_trees

    data = read_bytes(path, limit_bytes=MAX_BYTES)
    _refuse_profile(path, data)
    return parse_trees(path, data)


def _is_profile(data: bytes) -> bool:
    return PROFILE_MARK in data[:PROFILE_HEAD_BYTES]


def _refuse_profile(path: Path, data: bytes) -> None:
    if _is_profile(data):
        raise TreeoptError(
            f"{path}: expected a tree. Got a profile: treeopt solve --profile {path} finds its best tree, "
            f"treeopt export {path} --to NAME writes its setting."
        )


def _is_solution(file: Path | io.BytesIO) -> bool:
    """Tell a solution by the names of its arrays; what cannot be read is left to the reader of trees to refuse."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(archive.namelist()) >= SOLUTION_ARRAYS
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _solution_bytes() -> int:
    from treeopt.solver.solution_file import MAX_BYTES  # here, because the solver is slow to import

    return MAX_BYTES


def _taken_out(path: Path, data: bytes, budget: int | None, depth: int | None) -> "TreeFile":
    """Return the tree of most tokens for a budget and depth out of a solution file."""
    from treeopt.solver import solution_file
    from treeopt.trees import Provenance, TreeFile

    solution = solution_file.parse(path, data)
    for name, asked, most in (("--budget", budget, solution.max_nodes), ("--depth", depth, solution.max_depth)):
        if asked is not None and asked > most:
            raise InvalidValueError(
                f"{name}: {path} was solved up to {most}. Got {asked}: ask for less, or solve more."
            )
    tree = solution.tree(
        solution.max_nodes if budget is None else budget, solution.max_depth if depth is None else depth
    )
    reach = solution.table.reach(tree)
    provenance = Provenance(tool=f"treeopt {__version__}", source=str(path), tokens_per_step=float(reach.sum()))
    return TreeFile(tree=tree, reach=reach, provenance=provenance)
