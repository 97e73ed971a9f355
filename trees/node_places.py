"""Where the nodes of a drawn tree stand from left to right, by their parents alone."""

import numpy as np

from treeopt.arrays import Float64, Int32


def node_places(parents: Int32) -> Float64:
    """Return x, float64 (n,) from 0 on: siblings in rank order, a parent above the middle of its children, no crossing.

    Subtrees stand as close as they can while neighbours on a level stay 1 apart (after Reingold and Tilford, 1981).

    Args:
        parents: int32 (n,) in level order, as `TokenTree.parents`.
    """
    x = np.zeros(len(parents))  # from the parent, until the last lines
    first: list[int] = np.searchsorted(parents, np.arange(len(parents) + 1), side="left").tolist()
    # The leftmost and rightmost x of every level of a subtree, from its root.
    left: dict[int, Float64] = {}
    right: dict[int, Float64] = {}
    for node in range(len(parents) - 1, -1, -1):
        outline_left = outline_right = np.zeros(0)
        children = range(first[node], first[node + 1])
        for child in children:
            child_left, child_right = left.pop(child), right.pop(child)
            shared = min(len(outline_right), len(child_left))
            x[child] = np.max(outline_right[:shared] - child_left[:shared]) + 1 if shared else 0
            outline_left = np.append(outline_left, child_left[shared:] + x[child])
            outline_right = np.append(child_right + x[child], outline_right[len(child_right) :])
        middle = x[children[-1]] / 2 if children else 0.0
        x[children.start : children.stop] -= middle
        left[node], right[node] = np.append(0, outline_left - middle), np.append(0, outline_right - middle)
    for node in range(1, len(parents)):
        x[node] += x[parents[node]]
    return np.asarray(x - x.min())
