"""A tree as a figure of the page: of every node its path, its rank and how often a step reaches it."""

import numpy as np

from treeopt.arrays import Bool, Float64
from treeopt.report.html.shapes import Entry, Figure, Shape, number, shape, shortened
from treeopt.report.html.tables import Table
from treeopt.trees import TokenTree, TreeFile
from treeopt.trees.layout import branch_curves, most_reached_first, node_places, rank_paths
from treeopt.trees.tree_file import headline

MOST_NODES = 700
"""Drawn nodes, the most reached ones; the table has all."""
BETWEEN_NODES, BETWEEN_LEVELS, MARGIN, NAMES = 24.0, 58.0, 22.0, 46.0
LEGEND = (0.01, 0.1, 0.3, 0.6, 1.0)


def tree_figure(name: str, label: str, content: TreeFile) -> Figure:
    """Return a tree that grows downwards, or to the right where it has more levels than nodes side by side."""
    tree, reach = content.tree, content.reach
    drawn = np.zeros(tree.nodes, np.bool_)
    drawn[most_reached_first(tree.parents, tree.rank, reach)[:MOST_NODES]] = True
    part = TokenTree(_renumbered(tree, drawn))
    shown = np.flatnonzero(drawn)
    x, y = node_places(part.parents), part.depth
    sideways = part.max_depth + 1 > 1.6 * (x.max() + 1)
    across, along = MARGIN + BETWEEN_NODES * x, NAMES + BETWEEN_LEVELS * y
    places = np.stack([along, across] if sideways else [across + NAMES - MARGIN, along - NAMES + MARGIN], axis=-1)
    width, height = (
        float(places[:, axis].max()) + MARGIN + (20.0 if sideways and axis == 1 else 0.0) for axis in (0, 1)
    )
    paths, title = node_paths(tree), headline(content)
    shapes = [*_levels(part, tree, places, sideways, width, height), *_branches(part, places, sideways)]
    for place, node in enumerate(shown.tolist()):
        probability = None if reach is None else float(reach[node])
        shapes.append(_node(places[place], node, tree, paths[node], probability))
    left_out = tree.nodes - part.nodes
    caption = f"{title[0]}. {title[1]}" if title[1] else title[0]
    if left_out:
        caption += f". Drawn: the {part.nodes} {'most reached' if reach is not None else 'first'} nodes; {left_out} more are in the table's file"
    legend = (
        ()
        if reach is None
        else tuple(Entry(f"cell{round(100 * _opacity(each))}", "tree", f"{100 * each:g} %") for each in LEGEND)
    )
    return Figure(
        name=name,
        title=f"Tree of {shortened(label, 60)}",
        caption=f"{shortened(caption, 400)}.",
        shapes=tuple(shapes),
        legend=legend,
        width=max(width, 200.0),
        height=max(height, 60.0),
        zoomed=True,
    )


def nodes_table(name: str, label: str, content: TreeFile) -> Table:
    """Return every node of a tree."""
    tree, reach, paths = content.tree, content.reach, node_paths(content.tree)
    rows = tuple(
        (
            node,
            int(tree.parents[node]),
            int(tree.depth[node]),
            int(tree.rank[node]),
            paths[node],
            None if reach is None else float(reach[node]),
        )
        for node in range(tree.nodes)
    )
    header = ("node", "parent", "depth", "rank", "path", "reach")
    return Table(name=name, title=f"Nodes of {shortened(label, 60)}", header=header, rows=rows)


def node_paths(tree: TokenTree) -> list[str]:
    """Return the ranks from the root to each node.

    >>> node_paths(TokenTree([-1, 0, 0, 2]))
    ['root', '0', '1', '1 0']
    """
    return ["root", *(" ".join(map(str, path)) for path in rank_paths(tree.parents, tree.rank)[1:])]


def _renumbered(tree: TokenTree, drawn: Bool) -> list[int]:
    new = np.cumsum(drawn) - 1
    return [-1, *(int(new[tree.parents[node]]) for node in np.flatnonzero(drawn)[1:])]


def _levels(
    part: TokenTree, tree: TokenTree, places: Float64, sideways: bool, width: float, height: float
) -> list[Shape]:
    """Return a pale line for every level, with its depth and how many nodes the whole tree has there."""
    found = [shape("text", "tick", x=2, y=height - 4 if sideways else 12, text="depth")]
    for depth, level in enumerate(part.levels):
        at = float(places[level][0, 0 if sideways else 1])
        said = f"depth {depth}: {tree.level_widths[depth]} nodes"
        if sideways:
            found.append(shape("path", "grid", d=f"M{number(at)} 4V{number(height - 16)}", title=said))
            found.append(shape("text", "tick middle", x=at, y=height - 4, text=str(depth)))
        else:
            found.append(shape("path", "grid", d=f"M{number(NAMES - 14)} {number(at)}H{number(width)}", title=said))
            found.append(shape("text", "tick", x=8, y=at + 4, text=str(depth)))
    return found if sideways else found[1:]


def _branches(part: TokenTree, places: Float64, sideways: bool) -> list[Shape]:
    parts = []
    for curve in branch_curves(places, part.parents, sideways=sideways).tolist():
        start, *rest = (" ".join(map(number, point)) for point in curve)
        parts.append(f"M{start}C{' '.join(rest)}")
    return [shape("path", "branch", d="".join(parts))]


def _node(place: Float64, node: int, tree: TokenTree, path: str, reach: float | None) -> Shape:
    said = f"node {node}: " + (
        "the root" if node == 0 else f"path {shortened(path, 100)}, rank {tree.rank[node]} at depth {tree.depth[node]}"
    )
    if reach is not None:
        said += f", reached in {100 * reach:.3g} % of steps"
    radius = 7.0 if reach is None else 3.0 + 8.0 * reach**0.5
    dense = 1.0 if reach is None else _opacity(reach)
    return shape(
        "circle", "node tree", cx=float(place[0]), cy=float(place[1]), r=radius, fill_opacity=f"{dense:.2f}", title=said
    )


def _opacity(reach: float) -> float:
    return float(0.12 + 0.88 * reach**0.5)
