"""Named tree shapes: baselines for the optimum."""

from collections.abc import Sequence

from treeopt.arguments import check_integer, check_list
from treeopt.trees.token_tree import TokenTree


def chain(depth: int) -> TokenTree:
    """Return one sequence of `depth` draft tokens; depth 0 is plain decoding (Leviathan et al., 2023).

    >>> chain(2).parents.tolist()
    [-1, 0, 1]
    """
    return chains(1, depth)


def chains(count: int, depth: int) -> TokenTree:
    """Return `count` independent sequences of `depth` draft tokens below one root (Miao et al., 2024).

    >>> chains(2, 2).parents.tolist()
    [-1, 0, 0, 1, 2]
    """
    count, depth = check_integer("count", count, 1), check_integer("depth", depth, 0)
    first_level = [0] * count if depth else []
    deeper = [1 + i for i in range(count * (depth - 1))] if depth else []
    return TokenTree([-1, *first_level, *deeper])


def k_ary(branching: int, depth: int) -> TokenTree:
    """Return the complete tree in which every node above the last level has `branching` children.

    >>> k_ary(2, 2).parents.tolist()
    [-1, 0, 0, 1, 1, 2, 2]
    """
    branching, depth = check_integer("branching", branching, 1), check_integer("depth", depth, 0)
    inner = sum(branching**level for level in range(depth))
    return TokenTree([-1, *(node for node in range(inner) for _ in range(branching))])


def level_widths(widths: Sequence[int]) -> TokenTree:
    """Return the tree with `widths` nodes at depth 1, 2, …, split as evenly as possible.

    If the division has a remainder, the first nodes of a level get one more child.

    >>> level_widths([2, 3]).parents.tolist()
    [-1, 0, 0, 1, 1, 2]
    """
    parents, above = [-1], [0]
    for depth, value in enumerate(check_list("widths", widths), start=1):
        width = check_integer(f"width at depth {depth}", value, 1)
        quotient, remainder = divmod(width, len(above))
        counts = [quotient + (i < remainder) for i in range(len(above))]
        start = len(parents)
        parents.extend(node for node, count in zip(above, counts, strict=True) for _ in range(count))
        above = list(range(start, len(parents)))
    return TokenTree(parents)


def kind_of(tree: TokenTree) -> str:
    """Return `plain`, `chain` or `tree`.

    >>> kind_of(TokenTree([-1])), kind_of(TokenTree([-1, 0, 1])), kind_of(TokenTree([-1, 0, 0]))
    ('plain', 'chain', 'tree')
    """
    if tree.nodes == 1:
        return "plain"
    return "tree" if tree.nodes > tree.max_depth + 1 else "chain"


def describe_tree(tree: TokenTree) -> str:
    """Return a short description.

    >>> describe_tree(chain(0)), describe_tree(chain(3)), describe_tree(k_ary(2, 2))
    ('plain decoding', 'chain of 3 draft tokens', 'tree of 7 nodes, depth 2')
    """
    kind = kind_of(tree)
    if kind == "plain":
        return "plain decoding"
    if kind == "chain":
        return f"chain of {tree.max_depth} draft token{'s' * (tree.max_depth > 1)}"
    return f"tree of {tree.nodes} nodes, depth {tree.max_depth}"
