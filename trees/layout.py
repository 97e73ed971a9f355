"""Where the nodes of a drawn tree stand."""

import numpy as np

from treeopt.arrays import Float64
from treeopt.trees.node_places import node_places
from treeopt.trees.token_tree import TokenTree


def layout(tree: TokenTree) -> tuple[Float64, Float64]:
    """Return x, see `node_places`, and y, the depth, downwards: both float64 (n,)."""
    return node_places(tree.parents), tree.depth.astype(np.float64)
