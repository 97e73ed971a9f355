"""Input files of commands: a tree in any format, a solution, or a profile."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from treeopt.any_tree import is_solution, parse, read_tree_bytes
from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import COUNT, LENGTH, NAME
from treeopt.cli.outputs import FigureFile, InputFile, OutputFile
from treeopt.errors import TreeoptError
from treeopt.files.atomic_files import read_unpacked
from treeopt.records.profile import MAX_BYTES, Profile
from treeopt.report.text import quoted
from treeopt.trees import TreeFile
from treeopt.trees.tree_schedule import FORMAT, HEAD_BYTES

PROFILE = Path("profile.yaml")
"""Default profile."""
OTHER_MODELS = "Use models other than those that the file names; predictions then do not hold."
REPLACE_FILES = "Replace existing files that no option names: checkpoints, side files and folders."
PROFILE_FORMAT = re.compile(
    rb"""(?:^(?:\xef\xbb\xbf)?|[{,])\s*["']?format["']?\s*:\s*["']?treeopt-profile\b""", re.MULTILINE
)
"""The field `format` of a profile, in any order of fields, in block YAML, flow YAML or JSON."""
file = InputFile()


def output_option(help_text: str, **attributes: Any) -> Any:
    """Return the option `-o` of the file to write, or standard output."""
    stream = OutputFile(stream=True)
    return Heading.OUTPUT.option("-o", "--output", type=stream, help=help_text, **attributes)


def plot_option() -> Any:
    return Heading.OUTPUT.option("--plot", type=FigureFile(), help="Also write a figure: .svg, .png or .pdf.")


def json_option() -> Any:
    return Heading.OUTPUT.option("--json", is_flag=True, help="Print one JSON object instead of tables.")


def profile_option(
    help_text: str = "Profile, as written by treeopt profile or treeopt probe.", **attributes: Any
) -> Any:
    return option("--profile", type=file, default=PROFILE, help=help_text, **attributes)


def force_option(*helps: str, heading: Heading = Heading.OUTPUT) -> Any:
    """Return the option `--force`; `helps` are sentences."""
    return heading.option("--force", is_flag=True, help=" ".join(helps))


def load_profile(path: Path) -> Profile:
    """Load a profile; the error for a missing file names the command that writes one."""
    if not path.exists():
        raise TreeoptError(f"{path}: no such file. Run treeopt profile first, or name another with --profile.")
    return Profile.load(path)


def is_profile(path: Path) -> bool:
    """Return whether a regular file has the format of a profile; a pipe is not read, because that would empty it."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            return _has_profile_format(stream.read(MAX_BYTES))
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeChoiceOptions:
    """Which tree of a file to use."""

    name: str | None = option("--name", type=NAME, help="Name of a tree, if FILE has several.")
    max_nodes: int | None = option(
        "--budget", type=COUNT, help="Maximum number of nodes, if FILE has trees of all sizes; by default all."
    )
    max_depth: int | None = option(
        "--depth", type=LENGTH, help="Maximum depth, if FILE has trees of all sizes; by default all levels."
    )


ANY_TREE = TreeChoiceOptions(name=None, max_nodes=None, max_depth=None)


def read_any_tree(path: Path, choice: TreeChoiceOptions = ANY_TREE) -> TreeFile:
    """Read the tree of a file in any known format, or the tree for a budget and depth of a solution file.

    The file, or pipe, is read once. Raises click.UsageError for a choice that does not apply to the file, TreeoptError for
    a profile or a schedule, and the errors of the readers.
    """
    data = read_tree_bytes(path)
    if is_solution(data):
        if choice.name is not None:
            raise click.UsageError(f"--name: {path} is a solution file. Choose with --budget and --depth.")
    else:
        _refuse_other_kinds(path, data)
        if (choice.max_nodes, choice.max_depth) != (None, None):
            raise click.UsageError(
                f"--budget and --depth choose a tree; {path} holds trees as they are. Leave them out."
            )
    return parse(path, data, choice.name, max_nodes=choice.max_nodes, max_depth=choice.max_depth)


def read_all_trees(path: Path) -> dict[str | None, TreeFile]:
    """Read every tree of a file in any known format, by name; raises the errors of `read_any_tree`."""
    from treeopt.trees import formats

    data = read_unpacked(path, limit_bytes=formats.MAX_BYTES)
    _refuse_other_kinds(path, data)
    return formats.parse(path, data)


def _has_profile_format(data: bytes) -> bool:
    # the plain search spares large files of other kinds that of the pattern, which takes a second for 30 MB
    return b"treeopt-profile" in data and PROFILE_FORMAT.search(data) is not None


def _refuse_other_kinds(path: Path, data: bytes) -> None:
    """Raise TreeoptError for a profile or a schedule."""
    if _has_profile_format(data):
        raise TreeoptError(
            f"{path}: expected a tree. Got a profile: treeopt solve --profile {quoted(path)} finds its best tree, "
            f"treeopt export {quoted(path)} --to NAME writes its setting."
        )
    if f'"{FORMAT}"'.encode() in data[:HEAD_BYTES]:
        raise TreeoptError(
            f"{path}: expected one tree. Got a schedule: treeopt run {quoted(path)} --prompts FILE decodes with it, "
            f"treeopt bench batches {quoted(path)} --batch-sizes 1,2,4,8 compares it with its predictions."
        )
