"""Errors of proportions, valid for few positions and for proportions near 0 and 1.

With Jeffreys' prior, k of n independent positions give the posterior Beta(k + 1/2, n - k + 1/2). Its intervals have the
right coverage where normal intervals are far too short (Brown, Cai and DasGupta, 2001, section 4). B exclusive ranks have
the prior 1 / (B + 1) each instead of 1/2 (Perks, 1947), so that all priors together weigh one position. A table contains
p = k / n and the posterior's standard deviation, from which `beta_parameters` recovers the posterior. Correlated positions
count as fewer.
"""

import numpy as np

from treeopt.arrays import Float64, Floats

INTRACLASS = 0.05
"""Assumed correlation of acceptance between positions of one sequence if the data cannot show it. The profiles in
docs/profiles have 0.04 to 0.07 at temperature 0 and 0.01 to 0.03 above, for first draft tokens."""
MAX_POSITIONS = 1e15


def posterior_error(p: Float64, positions: Floats, ranks: int = 1) -> Float64:
    """Return the posterior standard deviation of a probability.

    Args:
        p: accepted share of the positions.
        positions: broadcasts with `p`.
        ranks: B, ranks that share the prior.
    """
    accepted, rejected = _parameters(p, positions, ranks)
    total = accepted + rejected
    return np.asarray(np.sqrt(accepted * rejected / (total + 1)) / total)


def _parameters(p: Float64, positions: Floats, ranks: int) -> tuple[Float64, Float64]:
    prior = 1 / (ranks + 1)
    return p * positions + prior, (1 - p) * positions + 1 - prior


def beta_parameters(p: Float64, error: Float64, ranks: int = 1) -> tuple[Float64, Float64]:
    """Return both parameters of the posteriors with accepted shares `p` and standard deviations `error`.

    Bisects for the number of positions, because the error decreases with it.
    """
    low, high = np.full(p.shape, -9.0), np.full(p.shape, np.log10(MAX_POSITIONS))
    for _ in range(60):
        middle = (low + high) / 2
        more = posterior_error(p, 10**middle, ranks) > error
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return _parameters(p, 10 ** ((low + high) / 2), ranks)


def beta_interval(p: Float64, error: Float64, ranks: int = 1) -> tuple[Float64, Float64]:
    """Return both ends of the 95 % intervals, which include `p`; with an error of 0, both are `p`."""
    from scipy.special import betaincinv

    accepted, rejected = beta_parameters(p, error, ranks)
    low, high = (np.where(error > 0, betaincinv(accepted, rejected, quantile), p) for quantile in (0.025, 0.975))
    return np.minimum(low, p), np.maximum(high, p)


def independent_positions(p: Float64, positions: Float64, sequences: int) -> Float64:
    """Return a lower bound of the effective number of independent positions.

    Neighbouring positions are correlated. Where hardly any position differs from the others, the data cannot show how
    much; the correlation is then `INTRACLASS`.

    Args:
        p: accepted share.
        positions: of all sequences together; broadcasts with `p`.
        sequences: number of sequences.
    """
    differing = np.minimum(p, 1 - p) * positions * (sequences > 1)
    per_sequence = np.maximum(positions / sequences, 1.0)
    return np.asarray(positions / (1 + (per_sequence - 1) * INTRACLASS / (1 + differing)))
