"""vLLM's `speculative_token_tree`, read by vLLM up to 0.20.2: paths as a Python list of tuples in a JSON text."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from treeopt.errors import FormatError, InfeasibleError, InvalidValueError, Warning
from treeopt.trees.formats.checks import short
from treeopt.trees.formats.paths import paths_of_tree, tree_of_paths
from treeopt.trees.formats.python_text import MAX_CHARS, literal
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, WriteOptions, Written
from treeopt.trees.token_tree import TokenTree

COUNT, TREE = "num_speculative_tokens", "speculative_token_tree"
NEWEST = (0, 20, 2)
WARNING = Warning(
    "vLLM 0.21.0 and later refuse speculative_token_tree, and earlier samplers accept along one path only, so branches "
    "cost time and win nothing.",
    "Export a chain with --to vllm instead.",
)


def write(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the JSON for `--speculative-config`, to which the method and the draft model have to be added.

    Raises InfeasibleError for trees that vLLM would draft otherwise than written, and for a vLLM that is too new.
    """
    del suffix
    _check_version(options.engine_version)
    paths = paths_of_tree(tree)
    _check_uniform(tree)
    text = str(paths)
    if len(text) > MAX_CHARS:
        raise InfeasibleError(
            f"tree: expected at most {MAX_CHARS} characters. Got {len(text)}: solve with a smaller --budget."
        )
    return Written(data=f"{json.dumps({COUNT: len(paths), TREE: text}, indent=2)}\n".encode(), warnings=(WARNING,))


def read_config(path: Path, content: Mapping[str, object]) -> tuple[NamedTree, ...]:
    """Return the tree of a parsed speculative config, whose other keys are passed over.

    Raises FormatError naming the file, the key and the reason.
    """
    for key in (COUNT, TREE):
        if key not in content:
            raise FormatError(path, key, f"is missing. A tree needs {COUNT} and {TREE}.")
    count, text = content[COUNT], content[TREE]
    if not isinstance(text, str):
        raise FormatError(path, TREE, f'expected text such as "[(0,), (1,), (0, 0)]". Got {short(text)}.')
    tree = tree_of_paths(path, TREE, literal(path, TREE, text))
    if type(count) is not int or count != tree.nodes - 1:
        raise FormatError(path, COUNT, f"expected {tree.nodes - 1}, the paths of {TREE}. Got {short(count)}.")
    return (NamedTree(None, tree),)


def read_list(path: Path, content: object) -> tuple[NamedTree, ...]:
    """Return the tree of the bare list of tuples; raises FormatError naming the file, the path and the reason."""
    return (NamedTree(None, tree_of_paths(path, TREE, content)),)


def _check_version(version: str | None) -> None:
    if version is None:
        return
    numbers = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", version, re.ASCII)
    if not numbers:
        raise InvalidValueError(f"version: expected a version of vLLM such as 0.20.2. Got {version!r}.")
    if tuple(int(number or 0) for number in numbers.groups()) > NEWEST:
        raise InfeasibleError(
            f"version: expected vLLM 0.20.2 or older, because 0.21.0 removed {TREE}. Got {version}: "
            "export a chain with --to vllm."
        )


def _check_uniform(tree: TokenTree) -> None:
    for depth, level in enumerate(tree.levels):
        counts = tree.child_counts[level]
        if np.any(counts != counts[0]):
            raise InfeasibleError(
                f"tree: expected equally many children of all nodes of a level, which is all that vLLM drafts. "
                f"Got {counts.min()} to {counts.max()} at depth {depth}: take a chain or another k-ary tree."
            )


FORMAT = TopologyFormat(
    name="vllm-tree",
    title="vLLM (speculative_token_tree)",
    versions="up to 0.20.2; removed in 0.21.0",
    needs="equally many children of all nodes of a level",
    text=True,
    write=write,
    takes=("engine_version",),
)
