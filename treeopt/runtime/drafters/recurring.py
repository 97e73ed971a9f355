"""Trees that come again as the same object, so that whatever is prepared for one serves again."""

from functools import lru_cache

from treeopt.trees import TokenTree

KEPT_TREES = 256
KEPT_PASSES = 64
"""Fewer, because the mask of a pass takes more memory than a tree."""


@lru_cache(maxsize=KEPT_TREES)
def recurring_tree(parents: tuple[int, ...]) -> TokenTree:
    """Return the tree of some parents, the same object as before where it was asked for not long ago."""
    return TokenTree(parents)


@lru_cache(maxsize=KEPT_TREES)
def recurring_chain(length: int) -> TokenTree:
    """Return the chain of so many draft tokens, the same object each time.

    >>> recurring_chain(2) is recurring_chain(2)
    True
    """
    return recurring_tree(tuple(range(-1, length)))


ROOT_ALONE = recurring_chain(0)
