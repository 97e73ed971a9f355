"""vLLM's `speculative_token_tree`, read by vLLM up to 0.20.2: paths as a Python list of tuples in a JSON text."""

from collections.abc import Mapping
from pathlib import Path

from treeopt.errors import FormatError
from treeopt.trees.formats.checks import short
from treeopt.trees.formats.paths import tree_of_paths
from treeopt.trees.formats.python_text import literal
from treeopt.trees.formats.topology import NamedTree, TreeFormat

COUNT, TREE = "num_speculative_tokens", "speculative_token_tree"


def read_config(path: Path, content: Mapping[str, object]) -> tuple[NamedTree, ...]:
    """Return the tree of a parsed speculative config; its other keys are ignored.

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


FORMAT = TreeFormat(
    name="vllm-tree",
    title="vLLM (speculative_token_tree)",
    versions="read only; removed in 0.21.0",
    needs="num_speculative_tokens and speculative_token_tree, or the bare list of tuples",
)
