"""A tree as the arrays that tree kernels of SGLang, TensorRT-LLM and FlashInfer take, of one text.

Names, types and packing are those of the kernels' own tests; docs/engines/arrays.md says which, and what a batch changes.
"""

import numpy as np

from treeopt.arrays import Array, Bool, Int32
from treeopt.trees.token_tree import TokenTree

_WORD_BITS = 32


def sglang_arrays(tree: TokenTree) -> dict[str, Array]:
    """Return what `verify_tree_greedy` walks, int64 (n,), -1 for none (SGLang, `test_eagle_utils.py`).

    `retrieve_index`: each node's row in the target's output; `retrieve_next_token`: its first child;
    `retrieve_next_sibling`: the sibling of the next rank.

    >>> {name: array.tolist() for name, array in sglang_arrays(TokenTree([-1, 0, 0, 1])).items()}
    {'retrieve_index': [0, 1, 2, 3], 'retrieve_next_token': [1, 3, -1, -1], 'retrieve_next_sibling': [-1, 2, -1, -1]}
    """
    node = np.arange(tree.nodes, dtype=np.int64)
    has_next = np.append(tree.parents[1:] == tree.parents[:-1], False)
    return {
        "retrieve_index": node,
        "retrieve_next_token": np.where(tree.child_counts > 0, tree.first_child, -1).astype(np.int64),
        "retrieve_next_sibling": np.where(has_next, node + 1, -1),
    }


def tensorrt_llm_arrays(mask: Bool, leaf_paths: Int32) -> dict[str, Array]:
    """Return what TensorRT-LLM's tree attention and acceptance take, int32 (`medusaModuleTest.cpp`).

    `medusa_packed_mask` (n, ceil(n / 32)): bit b of word w in row i is set where node i attends to node 32 w + b;
    `medusa_paths` (leaves, max_depth + 1): as `leaf_paths`, in depth-first order.

    >>> tree = TokenTree([-1, 0, 0, 1])
    >>> {name: array.tolist() for name, array in tensorrt_llm_arrays(tree.ancestor_mask, tree.leaf_paths).items()}
    {'medusa_packed_mask': [[1], [3], [5], [11]], 'medusa_paths': [[0, 1, 3], [0, 2, -1]]}
    """
    padded = np.pad(mask, ((0, 0), (0, -len(mask) % _WORD_BITS)))
    # Siblings are numbered in rank order, and no path is the start of another: the order of the numbers is depth-first.
    depth_first = np.lexsort(leaf_paths.T[::-1])
    return {
        "medusa_packed_mask": np.packbits(padded, axis=1, bitorder="little").view("<i4"),
        "medusa_paths": leaf_paths[depth_first],
    }


def flashinfer_arrays(mask: Bool) -> dict[str, Array]:
    """Return what attention with a custom mask takes, uint8 (ceil(n * n / 8),) (FlashInfer, `packbits`).

    `packed_custom_mask`: bit k % 8 of byte k // 8 is the mask's row k // n, column k % n.

    >>> flashinfer_arrays(TokenTree([-1, 0, 0]).ancestor_mask)["packed_custom_mask"].tolist()
    [89, 1]
    """
    return {"packed_custom_mask": np.packbits(mask.ravel(), bitorder="little")}
