"""The rules as plain loops over the host's memory, where a loop costs less than the calls it replaces.

They say the same as the functions on tensors, node after node, of one tree or of the trees of several texts, whose nodes
are counted through.  All of them take

    nodes       int64 (m, 3): each parent, its first child, and how many it has; parents rise, so that a level comes
                before the next
    tokens      int64 (n,)
    draft       float (n, V), the draft's distribution after each node; rows of leaves are not read
    target      float (n, V), likewise
    residual    float64 (m, V): here the distribution, up to a factor, of the token after a path that ends at each
                parent is written
    acceptance  float64 (n,): 1 at each root; how probable each node is to be accepted is written here, and at a root
                whatever else
"""

import numpy as np
from numba import njit

from treeopt.arrays import Float64, Floats, Int64
from treeopt.compiling import watch
from treeopt.runtime.rules.sample_children import LAST
from treeopt.runtime.rules.typical import ENTROPY_SHARE, LEAST_PROBABILITY

watch()


@njit(cache=True)
def sequoia(nodes: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64) -> None:
    """Test as `rejection.sequoia` does."""
    _in_turn(nodes, tokens, draft, target, residual, acceptance, False)


@njit(cache=True)
def specinfer(
    nodes: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64
) -> None:
    """Test as `rejection.specinfer` does."""
    _in_turn(nodes, tokens, draft, target, residual, acceptance, True)


@njit(cache=True)
def target(nodes: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64) -> None:  # noqa: ARG001
    """Test as `rejection.sampled_target` does."""
    for row in range(len(nodes)):
        parent, first, count = nodes[row]
        p = residual[row]
        _load(target[parent], p, 0.0)
        for child in range(first, first + count):
            x = tokens[child]
            acceptance[child] = p[x]
            p[x] = 0.0
            _normalise(p)


@njit(cache=True)
def traversal(
    nodes: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64
) -> None:
    """Test as `traversal.traversal` does."""
    q = np.empty(residual.shape[1])
    for row in range(len(nodes)):
        parent, first, count = nodes[row]
        p, a = residual[row], acceptance[parent]
        _load(target[parent], p, 0.0)
        _load(draft[parent], q, LAST)
        for child in range(first, first + count):
            x = tokens[child]
            acceptance[child] = min(1.0, a * p[x] / q[x])
            s = _subtract(p, q, a)
            a = s / (s + (1 - a)) if s > 0 else 0.0  # 1 - a first: s may be too small to be seen beside 1
            q[x] = 0.0
            _normalise(q)
        acceptance[parent] = a


@njit(cache=True)
def typical(nodes: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64) -> None:  # noqa: ARG001
    """Test as `typical.typical` does."""
    for row in range(len(nodes)):
        parent, first, count = nodes[row]
        p, entropy = residual[row], 0.0
        _load(target[parent], p, 0.0)
        for x in range(len(p)):
            if p[x] > 0:
                entropy -= p[x] * np.log(p[x])
        least = min(LEAST_PROBABILITY, ENTROPY_SHARE * np.exp(-entropy))
        for child in range(first, first + count):
            probability = p[tokens[child]]
            acceptance[child] = acceptance[parent] * probability if probability > least else 0.0


@njit(cache=True)
def _in_turn(
    nodes: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64, replaced: bool
) -> None:
    q = np.empty(residual.shape[1])
    for row in range(len(nodes)):
        parent, first, count = nodes[row]
        p = residual[row]
        _load(target[parent], p, 0.0)
        _load(draft[parent], q, LAST)
        for child in range(first, first + count):
            x = tokens[child]
            acceptance[child] = min(1.0, p[x] / q[x])
            _subtract(p, q, 1.0)
            if not replaced:
                q[x] = 0.0
                _normalise(q)


@njit(cache=True)
def quantile(distribution: Floats, share: float) -> int:
    """Return the first token up to which more than a share of a distribution lies.

    Where rounding leaves none it is the last token that has a probability; V if no token has one.
    """
    left = 0.0
    for x in range(len(distribution)):
        left += distribution[x]
    left *= share
    last = len(distribution)
    for x in range(len(distribution)):
        left -= distribution[x]
        if left < 0:
            return x
        if distribution[x] > 0:
            last = x
    return last


@njit(cache=True)
def token_at(distribution: Floats, share: float) -> int:
    """Return the token that a share of a distribution stands for, the last one if no token has a probability."""
    return min(quantile(distribution, share), len(distribution) - 1)


@njit(cache=True)
def sample_each(distributions: Floats, shares: Float64, tokens: Int64) -> None:
    """Sample a token from each distribution, float (texts, m, V), by its share, float64 (texts, m), into int64 (texts, m)."""
    texts, nodes, _ = distributions.shape
    for text in range(texts):
        for node in range(nodes):
            tokens[text, node] = token_at(distributions[text, node], shares[text, node])


@njit(cache=True)
def _load(distribution: Floats, into: Float64, least: float) -> None:
    """Copy a distribution, adding `least` to each entry, and normalise it."""
    for x in range(len(distribution)):
        into[x] = distribution[x] + least
    _normalise(into)


@njit(cache=True)
def _subtract(p: Float64, q: Float64, a: float) -> float:
    """Make p what is left of a p after q, normalised where anything is, and return how much that is."""
    s = 0.0
    for x in range(len(p)):
        p[x] = max(a * p[x] - q[x], 0.0)
        s += p[x]
    _divide(p, s)
    return s


@njit(cache=True)
def _normalise(p: Float64) -> None:
    _divide(p, p.sum())


@njit(cache=True)
def _divide(p: Float64, s: float) -> None:
    if s > 0:
        for x in range(len(p)):
            p[x] /= s
