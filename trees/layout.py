"""Where the nodes of a drawn tree stand."""

import numpy as np

from treeopt.arrays import Float64
from treeopt.trees.token_tree import TokenTree


def layout(tree: TokenTree) -> tuple[Float64, Float64]:
    """Place the nodes: siblings in rank order, a parent above the middle of its children, no branches crossing.

    Subtrees stand as close as they can while neighbours on a level stay 1 apart (after Reingold and Tilford, 1981).

    Returns x and y, both float64 (n,): x from 0 to the right, y the depth, downwards.
    """
    x = np.zeros(tree.nodes)  # from the parent, until the last lines
    # The leftmost and rightmost x of every level of a subtree, from its root.
    left: dict[int, Float64] = {}
    right: dict[int, Float64] = {}
    for node in range(tree.nodes - 1, -1, -1):
        outline_left = outline_right = np.zeros(0)
        children = tree.children(node)
        for child in children:
            child_left, child_right = left.pop(child), right.pop(child)
            shared = min(len(outline_right), len(child_left))
            x[child] = np.max(outline_right[:shared] - child_left[:shared]) + 1 if shared else 0
            outline_left = np.append(outline_left, child_left[shared:] + x[child])
            outline_right = np.append(child_right + x[child], outline_right[len(child_right) :])
        middle = x[children[-1]] / 2 if children else 0.0
        x[children.start : children.stop] -= middle
        left[node], right[node] = np.append(0, outline_left - middle), np.append(0, outline_right - middle)
    for level in tree.levels[1:]:
        x[level] += x[tree.parents[level]]
    return x - x.min(), tree.depth.astype(np.float64)
