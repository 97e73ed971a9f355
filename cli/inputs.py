"""What the commands are given: a tree in any format, a solution, or a profile."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt import __version__
from treeopt.errors import InvalidValueError

if TYPE_CHECKING:
    from treeopt.trees import TreeFile

PROFILE_MARK = b"format: treeopt-profile"
PROFILE_HEAD_BYTES = 200
SOLUTION_ARRAYS = {"p.npy", "method.npy"}

name_option = click.option("--name", help="Which tree of a file that holds several.")
budget_option = click.option(
    "--budget", type=click.IntRange(min=1), help="Of a solution file or a profile: most nodes; by default all it holds."
)
depth_option = click.option(
    "--depth", type=click.IntRange(min=0), help="Of a solution file or a profile: most levels; by default all it holds."
)


def is_profile(path: Path) -> bool:
    """Tell a profile by its first line; what cannot be read is left to the reader of trees to refuse."""
    try:
        with path.open("rb") as opened:
            return PROFILE_MARK in opened.read(PROFILE_HEAD_BYTES)
    except OSError:
        return False


def is_solution(path: Path) -> bool:
    """Tell a solution file by the names of its arrays; what cannot be read is left to the reader of trees to refuse."""
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist()) >= SOLUTION_ARRAYS
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def read_any_tree(
    path: Path, *, name: str | None = None, budget: int | None = None, depth: int | None = None
) -> "TreeFile":
    """Return the tree of a file in any known format, or out of a solution file the one for a budget and depth.

    Raises click.UsageError for a budget or depth that the file has no use for, and as the readers do.
    """
    if is_solution(path):
        if name is not None:
            raise click.UsageError(f"--name: {path} is a solution file. Choose with --budget and --depth.")
        return _taken_out(path, budget, depth)
    if (budget, depth) != (None, None) and path.exists():
        raise click.UsageError(f"--budget and --depth choose a tree; {path} holds trees as they are. Leave them out.")
    from treeopt.trees.formats import read_tree

    return read_tree(path, name)


def _taken_out(path: Path, budget: int | None, depth: int | None) -> "TreeFile":
    """Return the tree of most tokens for a budget and depth out of a solution file."""
    from treeopt.solver import Solution
    from treeopt.trees import Provenance, TreeFile

    solution = Solution.load(path)
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
