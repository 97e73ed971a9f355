"""A tree as text: one column per depth, one line per path, numbers in percent."""

import numpy as np
import numpy.typing as npt

from treeopt.arguments import check_instance, check_integer
from treeopt.arrays import Bool, Float64, Int32
from treeopt.trees.layout import format_percent, sort_by_reach
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import checked_reach

WIDTH = 100
"""Default characters per line."""
MIN_WIDTH = 24
MIN_ROWS = 9
"""Six lines of title and levels, one of tree, two about omitted nodes."""

_MARGIN = 8  # characters before the root, for the labels of the lines
_TAIL = 8  # characters after the last column, for ' +65535' or '21-4095'
_BARS = "▁▂▃▄▅▆▇█"

# A branch character joins some of its four sides.
_LEFT, _RIGHT, _UP, _DOWN = 1, 2, 4, 8
_BOX = {
    0: " ",
    _LEFT | _RIGHT: "─",
    _LEFT | _RIGHT | _DOWN: "┬",
    _UP | _DOWN: "│",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _RIGHT: "└",
}


def draw_text(
    tree: TokenTree,
    *,
    reach: Float64 | None = None,
    tokens_per_step: float | None = None,
    max_rows: int = 64,
    width: int = WIDTH,
) -> str:
    """Return a diagram of at most `max_rows` lines of at most `width` characters, growing from left to right.

    A node's first child is to its right on the same line, the others below in rank order. A node shows the percentage of
    steps that reach it. Nodes that do not fit are omitted, least reached first; `+n` at the end of a line counts the omitted
    nodes that branch off it. The widths of the levels count every node. A title that is too long is cut with `…`.

    Args:
        tree: the tree to draw.
        reach: float64 (n,), probability that a step reaches each node; without it every node is a dot.
        tokens_per_step: for the title; by default the sum of `reach`, which ignores dependence between depths.
        max_rows: lines, at least 9.
        width: characters per line, at least 24.

    Raises InvalidValueError if `reach` does not fit the tree, or `max_rows` or `width` is too small.

    >>> print(draw_text(TokenTree([-1, 0, 0, 1]), reach=np.array([1, 0.6, 0.2, 0.36])))
    4 nodes, depth 2, 2.16 expected tokens per step
    <BLANKLINE>
    depth   0       1       2
    nodes   1       2       1
            ▄▄▄     ███     ▄▄▄
    <BLANKLINE>
    reach % 100 ─┬─ 60 ──── 36
                 └─ 20
    """
    check_instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
    max_rows, width = check_integer("max_rows", max_rows, MIN_ROWS), check_integer("width", width, MIN_WIDTH)
    if reach is not None:
        reach = checked_reach(tree, reach)
    visible = _choose_visible(tree, reach, max_rows, width)
    columns = int(tree.depth[visible].max()) + 1
    cell_width = max(min((width - _MARGIN - _TAIL) // columns, 8), _min_cell_width(tree))
    lines = [
        _choose_line(_titles(tree, reach, tokens_per_step), width),
        "",
        *_level_lines(tree, columns, cell_width),
        "",
    ]
    lines += _tree_lines(tree, reach, visible, cell_width, width)
    if not visible.all():
        lines += ["", _choose_line(_omission_lines(tree, reach, visible), width)]
    return "\n".join(lines)


def _choose_line(versions: list[str], width: int) -> str:
    """Return the first version of a line that fits, or the last one, cut with `…`."""
    return next((line for line in versions if len(line) <= width), f"{versions[-1][: width - 1]}…")


def _choose_visible(tree: TokenTree, reach: Float64 | None, max_rows: int, width: int) -> Bool:
    """Mark the most reached nodes that fit, never one without its parent and its earlier siblings."""
    fitting = tree.depth < (width - _MARGIN - _TAIL) // _min_cell_width(tree)
    if fitting.all() and np.count_nonzero(tree.child_counts == 0) <= max_rows - MIN_ROWS + 3:
        return fitting
    visible = np.zeros(tree.nodes, np.bool_)
    visible[0] = True
    free_rows = max_rows - MIN_ROWS
    for node in sort_by_reach(tree, reach).tolist()[1:]:
        if not visible[tree.parents[node]] or not fitting[node]:
            continue
        if tree.rank[node] > 0 and free_rows == 0:
            break
        free_rows -= int(tree.rank[node] > 0)
        visible[node] = True
    return visible


def _titles(tree: TokenTree, reach: Float64 | None, tokens_per_step: float | None) -> list[str]:
    size = f"{tree.nodes} node{'s' * (tree.nodes > 1)}, depth {tree.max_depth}"
    if reach is None:
        return [size]
    tokens = reach.sum() if tokens_per_step is None else tokens_per_step
    return [f"{size}, {tokens:.2f} expected tokens per step", f"{size}, {tokens:.2f} tokens/step", size]


def _omission_lines(tree: TokenTree, reach: Float64 | None, visible: Bool) -> list[str]:
    nodes = f"{np.count_nonzero(~visible)} of {tree.nodes} nodes"
    tokens = "" if reach is None else f", {reach[~visible].sum():.2f} of {reach.sum():.2f} expected tokens"
    return [
        f"+n: n more nodes branch off there; left out: {nodes}{tokens}",
        f"+n: n more nodes; left out: {nodes}{tokens.removesuffix(' expected tokens') + ' tokens' * bool(tokens)}",
        f"+n: {nodes} left out",
    ]


def _min_cell_width(tree: TokenTree) -> int:
    return max(4, len(str(tree.level_widths.max())) + 1)


def _level_lines(tree: TokenTree, columns: int, cell_width: int) -> list[str]:
    """Return depth, width and bar of every level; levels beyond `columns` share the last cell."""
    groups = [range(depth, depth + 1) for depth in range(columns)]
    if columns <= tree.max_depth:
        groups.append(range(columns, tree.max_depth + 1))
    widths = tree.level_widths
    depths = [f"{levels[0]}-{levels[-1]}" if len(levels) > 1 else f"{levels[0]}" for levels in groups]
    counts = [str(widths[levels].sum()) for levels in groups]
    bars = [_BARS[-(-len(_BARS) * widths[levels].max() // widths.max()) - 1] * 3 for levels in groups]
    rows = (("depth", depths), ("nodes", counts), ("", bars))
    return [f"{name:{_MARGIN}}{''.join(f'{cell:{cell_width}}' for cell in cells)}".rstrip() for name, cells in rows]


def _tree_lines(tree: TokenTree, reach: Float64 | None, visible: Bool, cell_width: int, width: int) -> list[str]:
    lines, omitted = _place_nodes(tree, visible)
    lead = min((cell_width - 3) // 2, 2)  # characters between a branch and its number: none, '─' or '─ '
    sides = np.zeros((len(omitted), width), np.uint8)
    labels = [(0, 0, "tree" if reach is None else "reach %")]
    for node in np.flatnonzero(visible).tolist():
        line, column = int(lines[node]), _MARGIN + cell_width * int(tree.depth[node])
        label = "●" if reach is None else format_percent(float(reach[node]))
        below = [int(lines[child]) for child in tree.children(node) if visible[child]]
        if below:
            branch = column + cell_width - lead - 1
            sides[line, column + len(label) + lead // 2 : branch] = _LEFT | _RIGHT
            _join(sides[:, branch], below)
            sides[below, branch + 1 : branch + 1 + (lead > 0)] = _LEFT | _RIGHT
        elif omitted[line]:
            label += f" +{omitted[line]}"
        labels.append((line, column, label))
    rows = [[_BOX[value] for value in row] for row in sides.tolist()]
    for line, column, label in labels:
        rows[line][column : column + len(label)] = label
    return ["".join(row).rstrip() for row in rows]


def _place_nodes(tree: TokenTree, visible: Bool) -> tuple[Int32, Int32]:
    """Return the line of each visible node, and for each line the number of omitted nodes that branch off it."""
    heights, hidden = np.zeros((2, tree.nodes), np.int32)
    for node in range(tree.nodes - 1, -1, -1):
        if visible[node]:
            heights[node] = max(1, heights[node])
        else:
            hidden[node] += 1
        if node:
            heights[tree.parents[node]] += heights[node]
            hidden[tree.parents[node]] += 0 if visible[node] else hidden[node]
    lines, next_line = np.zeros((2, tree.nodes), np.int32)
    for node in np.flatnonzero(visible)[1:]:
        lines[node] = next_line[node] = next_line[tree.parents[node]]
        next_line[tree.parents[node]] += heights[node]
    omitted = np.bincount(lines[visible], weights=hidden[visible]).astype(np.int32)
    return lines, omitted


def _join(column: npt.NDArray[np.uint8], lines: list[int]) -> None:
    """Draw the branch from a node to the lines of its children; the first is the node's own line."""
    column[lines] |= _RIGHT
    column[lines[0]] |= _LEFT
    column[lines[0] : lines[-1]] |= _DOWN
    column[lines[0] + 1 : lines[-1] + 1] |= _UP
