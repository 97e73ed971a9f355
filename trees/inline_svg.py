"""A tree as a small SVG for notebooks: made of text alone, without matplotlib, and the same in light and dark themes."""

from treeopt.arrays import Float64, Int32
from treeopt.pictures.style import BLUE
from treeopt.trees.node_places import node_places

MOST_NODES = 1024
"""Larger trees are not drawn: a browser would be slow to show them, and nobody could tell their nodes apart."""
GREY = "#7d8590"
"""Read on white and on black."""
MARGIN, BETWEEN_NODES, BETWEEN_LEVELS, RADIUS = 20.0, 34.0, 40.0, 7.0
MOST_WIDTH = 900.0


def svg_text(parents: Int32, rank: Int32, *, reach: Float64 | None = None) -> str | None:
    """Return the SVG, each node with its place, and how often it is reached, as its title; None for too large a tree.

    Args:
        parents: int32 (n,) in level order, as `TokenTree.parents`.
        rank: int32 (n,), order among siblings.
        reach: float64 (n,), probability that a step reaches each node; without it all nodes look alike.
    """
    if len(parents) > MOST_NODES:
        return None
    paths = _paths(parents.tolist(), rank.tolist())
    x = node_places(parents)
    across = min(BETWEEN_NODES, MOST_WIDTH / max(1.0, float(x.max())))
    places = [
        (MARGIN + across * at, MARGIN + BETWEEN_LEVELS * len(path)) for at, path in zip(x.tolist(), paths, strict=True)
    ]
    width, height = max(at for at, _ in places) + MARGIN, places[-1][1] + MARGIN
    radius = max(1.5, min(RADIUS, 0.4 * across))
    parts = [_branch(places[parent], places[node]) for node, parent in enumerate(parents.tolist()) if node]
    for node, place in enumerate(places):
        reached = None if reach is None else float(reach[node])
        parts.append(_node(place, radius, _title(node, paths[node], reached), reached))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" role="img">{"".join(parts)}</svg>'
    )


def _paths(parents: list[int], rank: list[int]) -> list[tuple[int, ...]]:
    """Return the ranks on the way from the root to every node."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(parents)):
        paths.append((*paths[parents[node]], rank[node]))
    return paths


def _title(node: int, path: tuple[int, ...], reach: float | None) -> str:
    name = f"node {node}, depth {len(path)}, ranks {', '.join(map(str, path))}" if node else "node 0, the root"
    return name if reach is None else f"{name}: reached by {100 * reach:.3g} %"


def _branch(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = start, end
    middle = (y0 + y1) / 2
    curve = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return f'<path d="{curve}" fill="none" stroke="{GREY}"/>'


def _node(place: tuple[float, float], radius: float, title: str, reach: float | None) -> str:
    strength = 1.0 if reach is None else 0.15 + 0.85 * max(0.0, reach) ** 0.4
    return (
        f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius:.1f}" fill="{BLUE}" fill-opacity="{strength:.2f}" '
        f'stroke="{GREY}"><title>{title}</title></circle>'
    )
