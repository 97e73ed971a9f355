"""What the commands are given: a tree in any format, a solution, or a profile."""

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options import Function
from treeopt.cli.values import COUNT, LENGTH, TEXT
from treeopt.errors import TreeoptError
from treeopt.files.whole_files import read_bytes

if TYPE_CHECKING:
    from treeopt.trees import TreeFile
    from treeopt.trees.formats import NamedTree

PROFILE_MARK = b"format: treeopt-profile"
PROFILE_HEAD_BYTES = 200


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
    from treeopt.any_tree import is_solution, out_of_solution, read_tree_bytes
    from treeopt.trees.formats import parse_tree

    data = read_tree_bytes(path)
    if is_solution(io.BytesIO(data)):
        if name is not None:
            raise click.UsageError(f"--name: {path} is a solution file. Choose with --budget and --depth.")
        return out_of_solution(path, data, budget, depth)
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
