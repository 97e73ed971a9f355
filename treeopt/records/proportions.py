"""Errors of proportions that hold at the edges: where everything was accepted, or nothing.

k of n independent positions leave a Beta(k + 1/2, n - k + 1/2) distribution of the probability, from Jeffreys' prior; its
intervals cover what they say for few positions and near 0 and 1, where normal ones are far too short (Brown, Cai and
DasGupta, 2001, section 4). Of B ranks, which exclude one another, each has the prior 1 / (B + 1) in place of 1/2 (Perks,
1947): so the prior of all together stays one position. A table holds p = k / n and the standard deviation of that
distribution, from which `beta_parameters` recovers it; positions that are alike count as fewer.
"""

import numpy as np

from treeopt.arrays import Float64, Floats

INTRACLASS = 0.05
"""How alike the positions of one sequence are taken to be where the data cannot tell: the correlation of first draft tokens'
acceptance within sequences. Measured: 0.04 to 0.07 at temperature 0, 0.01 to 0.03 above, in the profiles of docs/profiles."""
MOST_POSITIONS = 1e15


def posterior_error(p: Float64, positions: Floats, ranks: int = 1) -> Float64:
    """Return the standard deviation of a probability.

    Args:
        p: share of the positions that was accepted.
        positions: how many there were; broadcasts with `p`.
        ranks: B, how many ranks share the prior.
    """
    accepted, rejected = _parameters(p, positions, ranks)
    total = accepted + rejected
    return np.asarray(np.sqrt(accepted * rejected / (total + 1)) / total)


def _parameters(p: Float64, positions: Floats, ranks: int) -> tuple[Float64, Float64]:
    prior = 1 / (ranks + 1)
    return p * positions + prior, (1 - p) * positions + 1 - prior


def beta_parameters(p: Float64, error: Float64, ranks: int = 1) -> tuple[Float64, Float64]:
    """Return both parameters of the Beta distributions with shares `p` of positions and standard deviations `error`.

    The number of positions follows from the error, because it falls as they rise: it is found by bisection.
    """
    low, high = np.full(p.shape, -9.0), np.full(p.shape, np.log10(MOST_POSITIONS))
    for _ in range(60):
        middle = (low + high) / 2
        more = posterior_error(p, 10**middle, ranks) > error
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return _parameters(p, 10 ** ((low + high) / 2), ranks)


def beta_interval(p: Float64, error: Float64, ranks: int = 1) -> tuple[Float64, Float64]:
    """Return the ends of the 95 % intervals, which hold `p` itself; an error of 0 leaves `p` alone."""
    from scipy.special import betaincinv

    accepted, rejected = beta_parameters(p, error, ranks)
    low, high = (np.where(error > 0, betaincinv(accepted, rejected, share), p) for share in (0.025, 0.975))
    return np.minimum(low, p), np.maximum(high, p)


def independent_positions(p: Float64, positions: Float64, sequences: int) -> Float64:
    """Return how many independent positions tell as much as those of some sequences, at least.

    Neighbouring positions of a sequence are alike. Sequences show by how much, unless hardly any position differs from the
    others: then they are taken to be as alike as `INTRACLASS`.

    Args:
        p: share accepted.
        positions: of all sequences together; broadcasts with `p`.
        sequences: their number.
    """
    differing = np.minimum(p, 1 - p) * positions * (sequences > 1)
    per_sequence = np.maximum(positions / sequences, 1.0)
    return np.asarray(positions / (1 + (per_sequence - 1) * INTRACLASS / (1 + differing)))
