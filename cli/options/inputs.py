"""Files that commands are given: a tree in any format, a solution, or a profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options.record import Heading, Metadata, option
from treeopt.cli.options.values import COUNT, LENGTH, TEXT
from treeopt.cli.outputs import InputFile, OutputFile
from treeopt.errors import TreeoptError
from treeopt.files.whole_files import read_bytes

if TYPE_CHECKING:
    from treeopt.records.profile import Profile
    from treeopt.trees import TreeFile

file = InputFile()
output = OutputFile(stream=True)
output_file = OutputFile(stream=False)


def output_option(name: str, description: str, **attributes: Any) -> Metadata:
    """Return the option of the file that a command writes, or standard output; other arguments are those of `option`."""
    return option("-o", "--output", name, heading=Heading.OUTPUT, type=output, help=description, **attributes)


PROFILE = Path("profile.yaml")
"""What was measured, where no other file is named."""
PROFILE_PATH = option(
    "--profile",
    "profile_path",
    type=file,
    default=PROFILE,
    show_default=True,
    help="What was measured, written by treeopt profile.",
)
FORCE = option(
    "--force",
    heading=Heading.OUTPUT,
    is_flag=True,
    help="Replace files that no option names: checkpoints, side files and folders that exist.",
)
OTHER_MODELS = "Use other models than the file names, whose prediction then does not hold."
FORCE_MODELS = option("--force", heading=Heading.MODELS, is_flag=True, help=OTHER_MODELS)
FORCE_ALL = option(
    "--force",
    heading=Heading.OUTPUT,
    is_flag=True,
    help=f"{OTHER_MODELS} Replace files that no option names: checkpoints, side files and folders that exist.",
)
TREE_NAME = option("--name", type=TEXT, metavar="NAME", help="Which tree of a file that holds several.")
PROFILE_MARK = b"format: treeopt-profile"
PROFILE_HEAD_BYTES = 200


def tree_budget(sized: str) -> Metadata:
    """Return the option of most nodes; `sized` says out of which files it takes a tree, in words."""
    return option("--budget", type=COUNT, help=f"Of {sized}: most nodes; by default all it holds.")


def tree_depth(sized: str) -> Metadata:
    """Return the option of most levels; as `tree_budget`."""
    return option("--depth", type=LENGTH, help=f"Of {sized}: most levels; by default all it holds.")


def record_beside(profile_path: Path) -> Path:
    """Return where the draft record of a profile lies, unless it was given another place."""
    return profile_path.with_suffix(".record.npz")


def load_profile(path: Path) -> "Profile":
    """Return the profile of a file; where there is none, say how to make one."""
    from treeopt.records.profile import Profile

    if not path.exists():
        raise TreeoptError(f"{path}: no such file. Run treeopt profile first, or name another with --profile.")
    return Profile.load(path)


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
    from treeopt.any_tree import is_solution, parse, read_tree_bytes

    data = read_tree_bytes(path)
    if is_solution(data):
        if name is not None:
            raise click.UsageError(f"--name: {path} is a solution file. Choose with --budget and --depth.")
    else:
        _refuse_profile(path, data)
        if (budget, depth) != (None, None):
            raise click.UsageError(
                f"--budget and --depth choose a tree; {path} holds trees as they are. Leave them out."
            )
    return parse(path, data, name, max_nodes=budget, max_depth=depth)


def read_all_trees(path: Path) -> "dict[str | None, TreeFile]":
    """Return every tree of a file in any known format by its name; raises TreeoptError for a profile, and as the readers do."""
    from treeopt.trees.formats import MAX_BYTES, parse

    data = read_bytes(path, limit_bytes=MAX_BYTES)
    _refuse_profile(path, data)
    return parse(path, data)


def _is_profile(data: bytes) -> bool:
    return PROFILE_MARK in data[:PROFILE_HEAD_BYTES]


def _refuse_profile(path: Path, data: bytes) -> None:
    if _is_profile(data):
        raise TreeoptError(
            f"{path}: expected a tree. Got a profile: treeopt solve --profile {path} finds its best tree, "
            f"treeopt export {path} --to NAME writes its setting."
        )
