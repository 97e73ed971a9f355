"""Numba kernels over the vocabulary, for distributions in host memory.

`inverse_cdf` and `sample_children` sample tokens.  The others are named after the rules, and compute the same as the
tensor operations in `accept_tests`: on small vocabularies a loop costs less than the calls that it replaces.  They take

    groups      int64 (m, 3): a parent, its first child, and its number of children; for rules by level, after its own parent
    tokens      int64 (n,)
    draft       float (n, V), the draft's distribution after each node; rows of leaves are not read
    target      float (n, V), the target's distribution after each node; rows of leaves are not read
    residual    float64 (m, V), written: up to a factor, the distribution of the bonus token after a path to a parent
    acceptance  float64 (n,), written: the probability that each node is accepted when it is tested; initially 1
"""

import numpy as np
from numba import njit

from treeopt.arrays import Float64, Floats, Int64
from treeopt.compiling import watch_compilation
from treeopt.runtime.rules.accept_tests import ENTROPY_FACTOR, MAX_THRESHOLD
from treeopt.runtime.rules.distributions import EPSILON

BLOCK = 256
"""Weights per stored sum, so that sampling a token reads one block instead of the vocabulary."""
ANY_ORDER = {"reassoc"}
"""Lets the compiler add sums in any order, and so use vector instructions."""

watch_compilation()


@njit(cache=True)
def sequoia(
    groups: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64
) -> None:
    _test_children(groups, tokens, draft, target, residual, acceptance, False)


@njit(cache=True)
def specinfer(
    groups: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64
) -> None:
    _test_children(groups, tokens, draft, target, residual, acceptance, True)


@njit(cache=True)
def target(groups: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64) -> None:  # noqa: ARG001
    for row in range(len(groups)):
        parent, first, count = groups[row]
        p = residual[row]
        p_sum = _load(target[parent], p, 0.0)
        for child in range(first, first + count):
            x = tokens[child]
            acceptance[child] = _ratio(p[x], p_sum)
            p[x] = 0.0
            if child < first + count - 1:
                p_sum = _sum(p)


@njit(cache=True)
def traversal(
    groups: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64
) -> None:
    q = np.empty(residual.shape[1])
    for row in range(len(groups)):
        parent, first, count = groups[row]
        p, a = residual[row], acceptance[parent]
        p_sum, q_sum = _load(target[parent], p, 0.0), _load(draft[parent], q, EPSILON)
        for child in range(first, first + count):
            x = tokens[child]
            p_scale, q_scale = _ratio(a, p_sum, np.inf), 1 / q_sum
            acceptance[child] = _ratio(p_scale * p[x], q_scale * q[x])
            p_sum = _subtract(p, p_scale, q, q_scale)
            a = p_sum / (p_sum + (1 - a)) if p_sum > 0 else 0.0  # 1 - a first: p_sum + 1 may round to 1
            q[x] = 0.0
            if child < first + count - 1:
                q_sum = _sum(q)
        acceptance[parent] = a


@njit(cache=True)
def typical(
    groups: Int64,
    tokens: Int64,
    draft: Floats,  # noqa: ARG001
    target: Floats,
    residual: Float64,
    acceptance: Float64,
) -> None:
    for row in range(len(groups)):
        parent, first, count = groups[row]
        p, entropy = residual[row], 0.0
        p_sum = _load(target[parent], p, 0.0)
        for x in range(len(p)):
            if p[x] > 0:
                entropy -= p[x] / p_sum * np.log(p[x] / p_sum)
        threshold = min(MAX_THRESHOLD, ENTROPY_FACTOR * np.exp(-entropy))
        for child in range(first, first + count):
            probability = p[tokens[child]] / p_sum
            acceptance[child] = acceptance[parent] * probability if probability > threshold else 0.0


@njit(cache=True)
def _test_children(
    groups: Int64, tokens: Int64, draft: Floats, target: Floats, residual: Float64, acceptance: Float64, replace: bool
) -> None:
    q = np.empty(residual.shape[1])
    for row in range(len(groups)):
        parent, first, count = groups[row]
        p = residual[row]
        p_sum, q_sum = _load(target[parent], p, 0.0), _load(draft[parent], q, EPSILON)
        for child in range(first, first + count):
            x = tokens[child]
            scale = p_sum / q_sum
            acceptance[child] = _ratio(p[x], scale * q[x])
            p_sum = _subtract(p, 1.0, q, scale)
            if not replace and child < first + count - 1:
                q[x] = 0.0
                q_sum = _sum(q)


@njit(cache=True)
def inverse_cdf(weights: Floats, u: float) -> int:
    """Return the first token whose cumulative share of the weights exceeds u, in [0, 1); -1 if all weights are 0.

    A token of weight 0 is never returned: if rounding leaves none, it is the last with a weight above 0.
    """
    sums = np.empty((len(weights) + BLOCK - 1) // BLOCK)
    _sum_blocks(weights, sums)
    return _sample_in_blocks(weights, sums, u)


@njit(cache=True)
def sample_children(probs: Floats, parents: Int64, u: Float64, replace: bool, tokens: Int64) -> None:
    """Sample the children of the nodes of several sequences, siblings one after the other.

    Once a distribution is empty, further children are sampled uniformly from untried tokens.

    Args:
        probs: float (B, m, V), the draft's distribution after each node.
        parents: int64 (c,), rising: the parent of each child.
        u: float64 (B, c), uniform on [0, 1).
        replace: whether siblings may be equal.
        tokens: int64 (B, c), written.
    """
    sequences, _, vocabulary = probs.shape
    sums = np.empty((vocabulary + BLOCK - 1) // BLOCK)
    weights = np.empty(vocabulary, probs.dtype)
    for sequence in range(sequences):
        first = 0
        for child in range(len(parents)):
            if child == 0 or parents[child] != parents[child - 1]:
                first = child
                weights[:] = probs[sequence, parents[child]]
                _sum_blocks(weights, sums)
            token = _sample_in_blocks(weights, sums, u[sequence, child])
            if token < 0:
                weights[:] = 1
                if not replace:
                    for sibling in range(first, child):
                        weights[tokens[sequence, sibling]] = 0
                _sum_blocks(weights, sums)
                token = _sample_in_blocks(weights, sums, u[sequence, child])
            tokens[sequence, child] = token
            if not replace:
                weights[token] = 0
                block = token // BLOCK
                sums[block] = _sum(weights[block * BLOCK : (block + 1) * BLOCK])


@njit(cache=True)
def _sample_in_blocks(weights: Floats, sums: Float64, u: float) -> int:
    """Return what `inverse_cdf` returns, given the sums of the blocks."""
    threshold, selected, before, cumulative = u * _sum(sums), -1, 0.0, 0.0
    for block in range(len(sums)):
        if sums[block] > 0:
            selected, before = block, cumulative
            cumulative += sums[block]
            if cumulative > threshold:
                break
    token, cumulative = -1, before
    if selected >= 0:
        for x in range(selected * BLOCK, min(len(weights), (selected + 1) * BLOCK)):
            if weights[x] > 0:
                token = x
                cumulative += weights[x]
                if cumulative > threshold:
                    break
    return token


@njit(cache=True)
def _sum_blocks(weights: Floats, sums: Float64) -> None:
    for block in range(len(sums)):
        sums[block] = _sum(weights[block * BLOCK : (block + 1) * BLOCK])


@njit(cache=True, fastmath=ANY_ORDER)
def _sum(weights: Floats) -> float:
    total = 0.0
    for x in range(len(weights)):
        total += weights[x]
    return total


@njit(cache=True, fastmath=ANY_ORDER)
def _load(distribution: Floats, into: Float64, offset: float) -> float:
    """Copy a distribution, adding `offset` to each entry, and return its sum."""
    total = 0.0
    for x in range(len(distribution)):
        into[x] = distribution[x] + offset
        total += into[x]
    return total


@njit(cache=True, fastmath=ANY_ORDER)
def _subtract(p: Float64, p_scale: float, q: Float64, q_scale: float) -> float:
    """Replace p by max(p_scale p - q_scale q, 0), and return its sum."""
    total = 0.0
    for x in range(len(p)):
        difference = p_scale * p[x] - q_scale * q[x]
        p[x] = difference if difference > 0 else 0.0
        total += p[x]
    return total


@njit(cache=True)
def _ratio(part: float, whole: float, limit: float = 1.0) -> float:
    """Return a ratio, at most `limit`; 0 if the denominator is 0."""
    return min(limit, part / whole) if whole > 0 else 0.0
