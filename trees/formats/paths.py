"""Trees written as paths: for every node but the root, the ranks from the root to the node.

vLLM up to 0.20.2 read them in `speculative_token_tree`, as a Python list of tuples in a JSON text.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from treeopt.errors import FormatError, InfeasibleError, TreeoptWarning
from treeopt.files.fields import abbreviate
from treeopt.trees.formats.python_text import literal
from treeopt.trees.formats.topology import TreeFormat
from treeopt.trees.layout import rank_paths
from treeopt.trees.token_tree import MAX_NODES, TokenTree

VLLM_COUNT, VLLM_TREE = "num_speculative_tokens", "speculative_token_tree"
MAX_RANKS = 1_000_000
"""Most ranks in a written file: a chain of n nodes has n²/2."""
MAX_NESTING = 4
TEXT = re.compile(r"\s*\d{1,9}\s*(?:,\s*\d{1,9}\s*)*", re.ASCII)
"""A path as text, such as `0,1`."""


def paths_from_tree(tree: TokenTree) -> list[tuple[int, ...]]:
    """Return the path of every node but the root, in level order.

    Raises InfeasibleError for the root alone, which has no path, and for trees whose paths would be too long.

    >>> paths_from_tree(TokenTree([-1, 0, 0, 1]))
    [(0,), (1,), (0, 0)]
    """
    if tree.nodes == 1:
        raise InfeasibleError("tree: expected at least one draft token. Got the root alone: decode without a draft.")
    if int(tree.depth.sum()) > MAX_RANKS:
        raise InfeasibleError(
            f"tree: expected paths of at most {MAX_RANKS} ranks together. Got {tree.depth.sum()}: "
            "solve again with a smaller --budget or --depth."
        )
    return rank_paths(tree)[1:]


def tree_from_paths(path: Path, field: str, value: object) -> TokenTree:
    """Return the tree of a list of paths in any order.

    Repeated paths count once, as in the engines. The empty path, the root, may be listed; paths may be text such as "0,1",
    and may be in lists of lists. Medusa allows gaps between ranks; the returned tree has none, and a TreeoptWarning names the
    first. Raises FormatError naming the file, the path and the reason, such as a missing prefix.
    """
    if not isinstance(value, list | tuple) or not value:
        raise FormatError(path, field, f"expected a list of paths such as [[0], [1], [0, 0]]. Got {abbreviate(value)}.")
    if len(value) > MAX_NODES:
        raise FormatError(path, field, f"expected at most {MAX_NODES} paths. Got {len(value)}.")
    field_of: dict[tuple[int, ...], str] = {}
    for item_field, ranks in _flatten_paths(path, field, value, MAX_NESTING):
        field_of.setdefault(ranks, item_field)
    field_of.pop((), None)
    if len(field_of) >= MAX_NODES:
        raise FormatError(path, field, f"expected at most {MAX_NODES - 1} paths. Got {len(field_of)}.")
    if not field_of:
        raise FormatError(path, field, "expected at least one draft token. Got the root alone: decode without a draft.")
    in_level_order = sorted(field_of, key=lambda ranks: (len(ranks), ranks))
    node_of = {(): 0} | {ranks: node for node, ranks in enumerate(in_level_order, start=1)}
    parents, gap = [-1], None
    for previous, ranks in pairwise(node_of):
        parent = ranks[:-1]
        if parent not in node_of:
            reason = f"path {abbreviate(ranks)} needs {abbreviate(parent)}, which is missing. Add it."
            raise FormatError(path, field_of[ranks], reason)
        is_first_child = previous[:-1] != parent or len(previous) != len(ranks)
        if gap is None and ranks[-1] != (0 if is_first_child else previous[-1] + 1):
            gap = ranks
        parents.append(node_of[parent])
    if gap is not None:
        warnings.warn(
            TreeoptWarning(
                f"{path}: {field_of[gap]}: path {abbreviate(gap)} skips ranks, so its engine drafts less probable "
                "tokens there; treeopt's trees draft the most probable ones. Number ranks without gaps if you meant those."
            ),
            stacklevel=3,
        )
    return TokenTree(parents)


def _flatten_paths(
    path: Path, field: str, items: Sequence[object], nesting: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the field and the ranks of every path in a list, or in lists of lists."""
    for number, item in enumerate(items):
        item_field = f"{field}[{number}]"
        if nesting and isinstance(item, list | tuple) and item and isinstance(item[0], list | tuple):
            yield from _flatten_paths(path, item_field, item, nesting - 1)
        else:
            yield item_field, _read_path(path, item_field, item)


def _read_path(path: Path, field: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) and TEXT.fullmatch(value):
        return tuple(map(int, value.split(",")))
    if not isinstance(value, list | tuple):
        raise FormatError(path, field, f"expected a path such as [0, 1]. Got {abbreviate(value)}.")
    if not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        raise FormatError(path, field, f"expected ranks, whole numbers of at least 0. Got {abbreviate(value)}.")
    return tuple(value)


def read_vllm_config(path: Path, content: Mapping[str, object]) -> TokenTree:
    """Return the tree of a parsed speculative config; its other keys are ignored.

    Raises FormatError naming the file, the key and the reason.
    """
    for key in (VLLM_COUNT, VLLM_TREE):
        if key not in content:
            raise FormatError(path, key, f"is missing. A tree needs {VLLM_COUNT} and {VLLM_TREE}.")
    count, text = content[VLLM_COUNT], content[VLLM_TREE]
    if not isinstance(text, str):
        raise FormatError(path, VLLM_TREE, f'expected text such as "[(0,), (1,), (0, 0)]". Got {abbreviate(text)}.')
    tree = tree_from_paths(path, VLLM_TREE, literal(path, VLLM_TREE, text))
    if type(count) is not int or count != tree.nodes - 1:
        raise FormatError(
            path, VLLM_COUNT, f"expected {tree.nodes - 1}, the paths of {VLLM_TREE}. Got {abbreviate(count)}."
        )
    return tree


VLLM = TreeFormat(
    name="vllm-tree",
    title="vLLM (speculative_token_tree)",
    versions="read only; removed in 0.21.0",
    needs="num_speculative_tokens and speculative_token_tree, or the bare list of tuples",
)
