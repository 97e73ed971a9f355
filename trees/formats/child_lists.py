"""Trees written as the ids of every node's children: Sequoia's `Successors`, NxD Inference's adjacency."""

from collections.abc import Callable, Sequence

from treeopt.errors import FormatError
from treeopt.trees.formats.checks import short
from treeopt.trees.token_tree import TokenTree


def child_lists(tree: TokenTree) -> list[list[int]]:
    """Return the ids of every node's children, in rank order.

    >>> child_lists(TokenTree([-1, 0, 0, 1]))
    [[1, 2], [3], [], []]
    """
    lists: list[list[int]] = [[] for _ in range(tree.nodes)]
    for node, parent in enumerate(tree.parents[1:].tolist(), start=1):
        lists[parent].append(node)
    return lists


def tree_of_child_lists(
    children: Sequence[Sequence[int]], fault: Callable[[int, str], FormatError], *, any_order: bool = False
) -> TokenTree:
    """Return the tree in which `children[i]` are the children of node i, in rank order.

    Args:
        children: of every node.
        fault: makes the error of the node whose list is wrong and the reason.
        any_order: take nodes numbered in any order, and number them in level order.

    Raises what `fault` makes of an id that is no node, two parents, a node that nothing leads to, a cycle, or numbers that
    are not in level order.
    """
    nodes = len(children)
    parents = [-1] * nodes
    for node, ids in enumerate(children):
        for child in ids:
            if not 0 < child < nodes:
                what = "the root, which has no parent" if child == 0 else short(child)
                raise fault(node, f"expected nodes from 1 to {nodes - 1}. Got {what}.")
            if parents[child] >= 0:
                raise fault(node, f"expected one parent for node {child}. Got two, {parents[child]} and {node}.")
            parents[child] = node
    for node in range(1, nodes):
        if parents[node] < 0:
            raise fault(node, f"expected a parent for every node. Got none for {node}: it cannot be reached.")
    order = [0]
    for node in order:  # grows while it is read: a breadth-first walk
        order.extend(children[node])
    if len(order) < nodes:
        lost = min(set(range(nodes)).difference(order))
        raise fault(lost, f"expected a way from the root to node {lost}. Got a cycle.")
    if any_order:
        position_of = {node: position for position, node in enumerate(order)}
        return TokenTree([-1, *(position_of[parents[node]] for node in order[1:])])
    for position, node in enumerate(order):
        if node != position:
            raise fault(parents[node], f"expected nodes numbered level by level, so {position} here. Got {node}.")
    return TokenTree(parents)
