"""A tree as the arrays that a decoder works with, for programs that would rather load than compute them.

int32 `parents` (n,), `depth` (n,), `positions` (n,); bool `mask` (n, n), row i marking node i and its ancestors; int32
`leaf_paths` (leaves, max_depth + 1), the nodes from the root to each leaf, -1 behind the shorter paths; and those of
`treeopt.trees.formats.kernel_arrays`.
"""

from treeopt.arrays import Array
from treeopt.errors import InfeasibleError
from treeopt.files.arrays_file import Arrays
from treeopt.trees.formats.checks import MASK_NODES, difference, label
from treeopt.trees.formats.kernel_arrays import flashinfer_arrays, sglang_arrays, tensorrt_llm_arrays
from treeopt.trees.token_tree import TokenTree

MAX_BYTES = 6 * MASK_NODES**2
"""Of all arrays together: the mask, paths twice of at most twice its size each, even as int64, and packed masks."""

_OTHERS = {
    "depth": "i",
    "mask": "b",
    "positions": "i",
    "leaf_paths": "i",
    "retrieve_index": "i",
    "retrieve_next_token": "i",
    "retrieve_next_sibling": "i",
    "medusa_packed_mask": "i",
    "medusa_paths": "i",
    "packed_custom_mask": "u",
}
"""What may stand beside `parents`, and its kind."""


def arrays_of_tree(tree: TokenTree) -> dict[str, Array]:
    """Return the arrays, little-endian; raises InfeasibleError for trees whose mask would be too large."""
    if tree.nodes > MASK_NODES:
        raise InfeasibleError(
            f"nodes: expected at most {MASK_NODES}, because the file holds an n x n mask. Got {tree.nodes}: "
            "solve again with a smaller --budget."
        )
    return {name: array.astype(array.dtype.newbyteorder("<")) for name, array in _arrays(tree).items()}


def tree_of_arrays(arrays: Arrays) -> TokenTree:
    """Return the tree of `parents`, with which every other array must agree.

    Raises FormatError naming the file, the array and the reason.
    """
    for name in arrays.names:
        if name != "parents" and name not in _OTHERS:
            known = ", ".join(["parents", *_OTHERS])
            raise arrays.error(label(name), f"unknown array. A tree has {known}: is it another kind of file?")
    parents = arrays.take("parents", "i", 1)
    if len(parents) > MASK_NODES:
        raise arrays.error("parents", f"expected at most {MASK_NODES} nodes. Got {len(parents)}.")
    tree = arrays.build("parents", TokenTree, parents)
    expected = _arrays(tree)
    for name, kind in _OTHERS.items():
        reason = difference(arrays.take(name, kind), expected[name]) if name in arrays else None
        if reason:
            raise arrays.error(name, f"{reason} It has to agree with parents.")
    return tree


def _arrays(tree: TokenTree) -> dict[str, Array]:
    mask, leaf_paths = tree.ancestor_mask, tree.leaf_paths
    return {
        "parents": tree.parents,
        "depth": tree.depth,
        "mask": mask,
        "positions": tree.positions,
        "leaf_paths": leaf_paths,
        **sglang_arrays(tree),
        **tensorrt_llm_arrays(mask, leaf_paths),
        **flashinfer_arrays(mask),
    }
