"""A tree as a small SVG for notebooks, made without matplotlib, for light and dark themes."""

import numpy as np

from treeopt.arrays import Float64, Int32
from treeopt.pictures.style import BLUE
from treeopt.trees.layout import branch_curves, node_places, rank_paths

MOST_NODES = 1024
"""Larger trees are not drawn, because browsers show them slowly and nodes overlap."""
GREY = "#7d8590"
"""Readable on white and on black."""
MARGIN, BETWEEN_NODES, BETWEEN_LEVELS, RADIUS = 20.0, 34.0, 40.0, 7.0
MOST_WIDTH = 900.0


def svg_text(parents: Int32, rank: Int32, *, reach: Float64 | None = None) -> str | None:
    """Return the SVG, whose nodes have their number, path and reach as titles; None for more than 1024 nodes.

    Args:
        parents: int32 (n,) in level order, as `TokenTree.parents`.
        rank: int32 (n,), order among siblings.
        reach: float64 (n,), probability that a step reaches each node; without it all nodes look the same.
    """
    if len(parents) > MOST_NODES:
        return None
    paths, x = rank_paths(parents, rank), node_places(parents)
    across = min(BETWEEN_NODES, MOST_WIDTH / max(1.0, float(x.max())))
    points = MARGIN + np.stack([across * x, BETWEEN_LEVELS * np.array([len(path) for path in paths])], axis=1)
    width, height = (float(end) + MARGIN for end in points.max(axis=0))
    radius = max(1.5, min(RADIUS, 0.4 * across))
    parts = [_branch(curve) for curve in branch_curves(points, parents).tolist()]
    for node, place in enumerate(points.tolist()):
        reached = None if reach is None else float(reach[node])
        parts.append(_node(place, radius, _title(node, paths[node], reached), reached))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" role="img">{"".join(parts)}</svg>'
    )


def _title(node: int, path: tuple[int, ...], reach: float | None) -> str:
    name = f"node {node}, depth {len(path)}, ranks {', '.join(map(str, path))}" if node else "node 0, the root"
    return name if reach is None else f"{name}: reached by {100 * reach:.3g} %"


def _branch(curve: list[list[float]]) -> str:
    start, *controls, end = (f"{x:.1f} {y:.1f}" for x, y in curve)
    return f'<path d="M{start}C{" ".join([*controls, end])}" fill="none" stroke="{GREY}"/>'


def _node(place: list[float], radius: float, title: str, reach: float | None) -> str:
    strength = 1.0 if reach is None else 0.15 + 0.85 * max(0.0, reach) ** 0.4
    return (
        f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius:.1f}" fill="{BLUE}" fill-opacity="{strength:.2f}" '
        f'stroke="{GREY}"><title>{title}</title></circle>'
    )
