"""Descriptions of the formats of other programs, and helpers of their readers and writers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Array
from treeopt.errors import InfeasibleError
from treeopt.files.fields import abbreviate
from treeopt.trees.token_tree import TokenTree

MASK_NODES = 4096
"""Most nodes in formats with an n x n mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFormat:
    """A format of other programs that is read."""

    name: str
    title: str
    """The programs that read it."""
    versions: str
    """Their versions."""
    needs: str
    """Requirements on the tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFormat(TreeFormat):
    """A format that is read and written, with its name in `treeopt export --to`."""

    text: bool
    """Whether its files are text."""
    write: Callable[..., bytes]
    """Returns the file of a tree; raises InfeasibleError for unsuitable trees."""
    takes: tuple[str, ...] = ()
    """Keyword arguments of `write`, all with defaults."""
    drafters: tuple[str, ...] = ()
    """Drafters of the programs that read it, as in `treeopt solve --drafter`; empty for any."""


def check_mask_nodes(tree: TokenTree, max_nodes: int) -> None:
    """Raise InfeasibleError for more nodes than a format with an n x n mask may have."""
    if tree.nodes > max_nodes:
        raise InfeasibleError(
            f"nodes: expected at most {max_nodes}, because the file contains an n x n mask. Got {tree.nodes}: "
            "solve again with a smaller --budget."
        )


def describe_difference(actual: Array, expected: Array) -> str | None:
    """Return the first difference between two arrays as a sentence, or None if they are equal."""
    if actual.shape != expected.shape:
        return f"expected shape {expected.shape}. Got {abbreviate(actual.shape)}."
    differing = np.argwhere(actual != expected)
    if not len(differing):
        return None
    index = tuple(differing[0].tolist())
    return f"expected {expected[index].item()} at {list(index)}. Got {actual[index].item()}."
