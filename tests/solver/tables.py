"""The tables that the solver is tried on: named ones, each with a difficulty of its own, and drawn ones."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.solver.oracles import Table
from tests.support import drawn

NAMED: dict[str, Table] = {
    "one child that is always accepted": [1.0],
    "always, then never": [1.0, 0.0],
    "a single branch": [0.6],
    "a single branch per depth": [[0.9], [0.1], [0.5]],
    "non-increasing": [0.6, 0.2, 0.1],
    "increasing": [0.1, 0.2, 0.6],
    "only the second": [0.0, 1.0],
    "never": [0.0, 0.0],
    "never after the first level": [[0.5, 0.4], [0.0, 0.0], [0.7, 0.2]],
    "zeros inside": [0.5, 0.0, 0.3, 0.0],
    "one spike deep in the row": [0.0, 0.0, 0.0, 1.0],
    "a spike worth a detour": [[0.3, 0.0, 0.7], [0.9, 0.1, 0.0], [0.0, 0.2, 0.8]],
    "tiny": [1e-300, 1e-300],
    "tiny beside large": [[0.5, 1e-300], [1e-300, 0.5], [0.5, 0.5]],
    "smallest float": [5e-324, 0.5],
    "sum of exactly 1": [0.5, 0.25, 0.25],
    "equal": [0.25, 0.25, 0.25, 0.25],
    "equal but for rounding": [1e-9, 0.2467303812912936],  # a twelfth node that brings nothing, or so little
    "worth hardly more than rounding": [[0.0, 1e-13], [0.25, 0.5], [0.0, 1.0]],
    "per depth": [[0.8, 0.1], [0.3, 0.3], [0.1, 0.6], [0.5, 0.4], [1.0, 0.0]],
    "non-increasing per depth": [[0.8, 0.1], [0.4, 0.4], [0.9, 0.0], [0.5, 0.25], [0.3, 0.2]],
    "one rank of the parent": [[[0.7, 0.2]], [[0.1, 0.6]], [[0.5, 0.4]]],
    "worse below a later child": [[[0.7, 0.2], [0.4, 0.1]]] * 4,
    "better below a later child": [[[0.3, 0.3, 0.2], [0.9, 0.1, 0.0]]] * 4,
    "only below the second": [[[0.5, 0.5], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]],
    "never below the first": [[[0.0, 1.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.2, 0.0]]],
    "more ranks than children": [[[0.6], [0.1], [1.0]], [[0.5], [0.9], [1.0]]],
    "three ranks of the parent": [
        [[0.5, 0.3, 0.1], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        [[0.1, 0.2, 0.6], [0.0, 0.0, 1.0], [0.9, 1e-300, 0.1]],
        [[0.4, 0.4, 0.2], [0.3, 0.0, 0.7], [1.0, 0.0, 0.0]],
    ],
}
named = pytest.mark.parametrize("p", NAMED.values(), ids=NAMED)


def examples(count: int) -> settings:
    return settings(deadline=None, derandomize=True, max_examples=drawn.examples(count))


@st.composite
def row(draw: st.DrawFn, branching: int, non_increasing: bool) -> list[float]:
    entry = st.sampled_from([0.0, 0.0, 1e-300, 1e-9, 0.25, 0.5, 1.0]) | st.floats(0, 1)
    weights = draw(st.lists(entry, min_size=branching, max_size=branching))
    kind = (
        "non-increasing" if non_increasing else draw(st.sampled_from(["any", "non-increasing", "increasing", "spike"]))
    )
    if kind in ("non-increasing", "increasing"):
        weights.sort(reverse=kind == "non-increasing")
    if kind == "spike":
        weights = [0.0] * (branching - 1) + weights[:1]
    total = sum(weights)
    fill = total > 0 and draw(st.booleans())
    return [weight / total for weight in weights] if fill or total > 1 else weights


@st.composite
def tables(
    draw: st.DrawFn, max_depth: int, max_branching: int, max_ranks: int = 3, non_increasing: bool = False
) -> Table:
    """Draw one row (`max_depth` 0 levels of lists), a row per depth, or a row per depth and rank of the parent."""
    rows = row(draw(st.integers(1, max_branching)), non_increasing)
    form = draw(
        st.sampled_from(["one row", "row per depth", "row per depth and rank of the parent"][: 2 + (max_ranks > 1)])
    )
    if form == "one row":
        return draw(rows)
    depth = draw(st.integers(1, max_depth))
    if form == "row per depth":
        return draw(st.lists(rows, min_size=depth, max_size=depth))
    ranks = draw(st.integers(1, max_ranks))
    return draw(st.lists(st.lists(rows, min_size=ranks, max_size=ranks), min_size=depth, max_size=depth))
