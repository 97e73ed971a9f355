"""A tree as text: one column per depth, one line per path, numbers in percent."""

import numpy as np
import numpy.typing as npt

from treeopt.arguments import instance, whole
from treeopt.arrays import Bool, Float64, Int32
from treeopt.trees.layout import most_reached_first, percent
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import TreeFile

WIDTH = 100
"""Default characters of a line."""
LEAST_WIDTH = 24
LEAST_ROWS = 9
"""Six lines of title and levels, one of tree, two about omitted nodes."""

_MARGIN = 8  # characters left of the root, for the names of the lines
_TAIL = 8  # characters kept free behind the last column, for ' +65535' or '21-4095'
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


def draw_text(tree: TokenTree, *, reach: Float64 | None = None, max_rows: int = 64, width: int = WIDTH) -> str:
    """Return a diagram of at most `max_rows` lines of at most `width` characters, growing from left to right.

    A node's first child is to its right on the same line, the others below in rank order. A node shows the percentage of
    steps that reach it. Nodes that do not fit are omitted, least reached first; `+n` at the end of a line counts the omitted
    nodes that would branch off it. The widths of the levels count every node. A title that is too long is cut with `…`.

    Args:
        tree: the tree to draw.
        reach: float64 (n,), probability that a step reaches each node; without it every node is a dot.
        max_rows: lines, at least 9.
        width: characters of a line, at least 24.

    Raises InvalidValueError when `reach` does not fit the tree, or `max_rows` or `width` is too small.

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
    instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
    max_rows, width = whole("max_rows", max_rows, LEAST_ROWS), whole("width", width, LEAST_WIDTH)
    if reach is not None:
        reach = TreeFile(tree=tree, reach=reach).reach  # checks that they fit
    visible = _choose_visible(tree, reach, max_rows, width)
    cell = _cell(tree, visible, width)
    lines = [_fitting(_titles(tree, reach), width), "", *_level_lines(tree, visible, cell), ""]
    lines += _tree_lines(tree, reach, visible, cell, width)
    if not visible.all():
        lines += ["", _fitting(_left_out_lines(tree, reach, visible), width)]
    return "\n".join(lines)


def _fitting(forms: list[str], width: int) -> str:
    """Return the first form of a line that fits, or the last one, cut with `…`."""
    return next((form for form in forms if len(form) <= width), f"{forms[-1][: width - 1]}…")


def _choose_visible(tree: TokenTree, reach: Float64 | None, max_rows: int, width: int) -> Bool:
    """Mark the most reached nodes that fit, never one without its parent and its earlier siblings."""
    fitting = tree.depth < (width - _MARGIN - _TAIL) // _least_cell(tree)
    if fitting.all() and np.count_nonzero(tree.child_counts == 0) <= max_rows - LEAST_ROWS + 3:
        return fitting
    visible = np.zeros(tree.nodes, np.bool_)
    visible[0] = True
    free_rows = max_rows - LEAST_ROWS
    for node in most_reached_first(tree.parents, tree.rank, reach).tolist()[1:]:
        if not visible[tree.parents[node]] or not fitting[node]:
            continue
        if tree.rank[node] > 0 and free_rows == 0:
            break
        free_rows -= int(tree.rank[node] > 0)
        visible[node] = True
    return visible


def _titles(tree: TokenTree, reach: Float64 | None) -> list[str]:
    size = f"{tree.nodes} node{'s' * (tree.nodes > 1)}, depth {tree.max_depth}"
    if reach is None:
        return [size]
    return [f"{size}, {reach.sum():.2f} expected tokens per step", f"{size}, {reach.sum():.2f} tokens/step", size]


def _left_out_lines(tree: TokenTree, reach: Float64 | None, visible: Bool) -> list[str]:
    nodes = f"{np.count_nonzero(~visible)} of {tree.nodes} nodes"
    tokens = "" if reach is None else f", {reach[~visible].sum():.2f} of {reach.sum():.2f} expected tokens"
    return [
        f"+n: n more nodes branch off there; left out: {nodes}{tokens}",
        f"+n: n more nodes; left out: {nodes}{tokens.removesuffix(' expected tokens') + ' tokens' * bool(tokens)}",
        f"+n: {nodes} left out",
    ]


def _least_cell(tree: TokenTree) -> int:
    return max(4, len(str(tree.level_widths.max())) + 1)


def _cell(tree: TokenTree, visible: Bool, width: int) -> int:
    """Return the characters from one column to the next, as many as fit."""
    columns = int(tree.depth[visible].max()) + 1
    return max(min((width - _MARGIN - _TAIL) // columns, 8), _least_cell(tree))


def _level_lines(tree: TokenTree, visible: Bool, cell: int) -> list[str]:
    """Return depth, width and bar of every level; those without a visible node share the last column."""
    shown = int(tree.depth[visible].max()) + 1
    parts = [range(depth, depth + 1) for depth in range(shown)]
    if shown <= tree.max_depth:
        parts.append(range(shown, tree.max_depth + 1))
    widths = tree.level_widths
    names = [f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts]
    counts = [str(widths[part].sum()) for part in parts]
    bars = [_BARS[-(-len(_BARS) * widths[part].max() // widths.max()) - 1] * 3 for part in parts]
    lines = (("depth", names), ("nodes", counts), ("", bars))
    return [f"{name:{_MARGIN}}{''.join(f'{text:{cell}}' for text in texts)}".rstrip() for name, texts in lines]


def _tree_lines(tree: TokenTree, reach: Float64 | None, visible: Bool, cell: int, width: int) -> list[str]:
    lines, left_out = _arrange(tree, visible)
    lead = min((cell - 3) // 2, 2)  # characters between a branch and its number: none, '─' or '─ '
    sides = np.zeros((len(left_out), width), np.uint8)
    texts = [(0, 0, "tree" if reach is None else "reach %")]
    for node in np.flatnonzero(visible).tolist():
        line, column = int(lines[node]), _MARGIN + cell * int(tree.depth[node])
        label = "●" if reach is None else percent(float(reach[node]))
        below = [int(lines[child]) for child in tree.children(node) if visible[child]]
        if below:
            branch = column + cell - lead - 1
            sides[line, column + len(label) + lead // 2 : branch] = _LEFT | _RIGHT
            _join(sides[:, branch], below)
            sides[below, branch + 1 : branch + 1 + (lead > 0)] = _LEFT | _RIGHT
        elif left_out[line]:
            label += f" +{left_out[line]}"
        texts.append((line, column, label))
    return _paint(sides, texts)


def _arrange(tree: TokenTree, visible: Bool) -> tuple[Int32, Int32]:
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
    left_out = np.bincount(lines[visible], weights=hidden[visible]).astype(np.int32)
    return lines, left_out


def _join(column: npt.NDArray[np.uint8], lines: list[int]) -> None:
    """Draw the branch from a node to the lines of its children; the first is the node's own line."""
    column[lines] |= _RIGHT
    column[lines[0]] |= _LEFT
    column[lines[0] : lines[-1]] |= _DOWN
    column[lines[0] + 1 : lines[-1] + 1] |= _UP


def _paint(sides: npt.NDArray[np.uint8], texts: list[tuple[int, int, str]]) -> list[str]:
    lines = [[_BOX[value] for value in line] for line in sides.tolist()]
    for row, column, text in texts:
        lines[row][column : column + len(text)] = text
    return ["".join(line).rstrip() for line in lines]
