"""Coverage of intervals of proportions, by enumeration and by simulation."""

import numpy as np
import pytest
from scipy import stats

from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.proportions import (
    INTRACLASS,
    beta_interval,
    beta_parameters,
    independent_positions,
    posterior_error,
)

SHARES = (0.01, 0.05, 0.3, 0.7, 0.95, 0.99)
POSITIONS = (3, 10, 30, 100, 1000)


def wald_interval(p, error):
    """Return what is wrong at the edges: two standard errors on both sides."""
    return p - 1.96 * error, p + 1.96 * error


def coverage(truth, positions, interval, error):
    """Return how often an interval holds the truth, over every number that may be accepted."""
    accepted = np.arange(positions + 1)
    p = accepted / positions
    low, high = interval(p, error(p, positions))
    return float(stats.binom.pmf(accepted, positions, truth) @ ((low <= truth) & (truth <= high)))


def test_coverage_near_the_edges():
    """The mean over shares and numbers is 95 %; single ones swing, because counts are whole numbers."""
    result = np.array([[coverage(p, n, beta_interval, posterior_error) for n in POSITIONS] for p in SHARES])
    assert result.mean() == pytest.approx(0.95, abs=0.02)
    assert result.min() >= 0.87
    assert (result[:, -1] >= 0.93).all(), "with many positions"


def test_normal_intervals_lack_coverage_near_the_edges():
    error = lambda p, n: np.sqrt(p * (1 - p) / n)
    result = np.array([[coverage(p, n, wald_interval, error) for n in POSITIONS] for p in SHARES])
    assert result.min() < 0.1
    assert result.mean() < 0.75


def test_many_ranks_share_one_prior():
    """With 1/2 for each, 32 ranks that were never accepted would add 16 positions to those that were."""
    accepted, rejected = beta_parameters(np.full(32, 0.0), posterior_error(np.full(32, 0.0), 100, 32), 32)
    means = accepted / (accepted + rejected)
    assert means.sum() == pytest.approx(32 / 33 / 101, rel=1e-3)


@pytest.mark.parametrize("n", [0.5, 3.0, 40.0, 1e5])
@pytest.mark.parametrize("p", [0.0, 0.2, 1.0])
def test_posterior_follows_from_its_error(p, n):
    accepted, rejected = beta_parameters(np.array([p]), posterior_error(np.array([p]), n))
    assert (accepted[0], rejected[0]) == pytest.approx((p * n + 0.5, (1 - p) * n + 0.5), rel=1e-4)
    assert posterior_error(np.array([p]), n)[0] == pytest.approx(stats.beta(p * n + 0.5, (1 - p) * n + 0.5).std())


def test_interval_contains_p_and_is_p_without_error():
    p = np.array([0.0, 0.3, 1.0])
    low, high = beta_interval(p, posterior_error(p, 3))
    assert (low <= p).all()
    assert (p <= high).all()
    assert low[2] < 0.6
    assert high[0] > 0.4
    assert [item.tolist() for item in beta_interval(p, np.zeros(3))] == [p.tolist()] * 2
    low, high = AcceptanceTable([[0.5, 0.01]], standard_error=[[0.1, 0.1]]).interval()
    assert (low >= 0).all()
    assert (high <= 1).all()


def sequences(truth, intraclass, count, positions, rng):
    """Return the accepted positions of each sequence, whose own shares vary as much as `intraclass` says."""
    if intraclass == 0:
        return rng.binomial(positions, truth, size=count)
    spread = 1 / intraclass - 1
    return rng.binomial(positions, rng.beta(truth * spread, (1 - truth) * spread, size=count))


@pytest.mark.parametrize(("truth", "count"), [(0.5, 6), (0.9, 24), (0.995, 2), (0.995, 24)])
def test_coverage_for_correlated_sequences(truth, count):
    rng, held, without = np.random.default_rng(3), [], []
    for _ in range(200):
        accepted = sequences(truth, INTRACLASS, count, 60, rng)
        sums = SequenceSums(np.full((count, 1), 60.0), accepted[:, None, None].astype(float))
        table = sums.table()
        low, high = table.interval()
        held.append(low[0, 0] <= truth <= high[0, 0])
        error = np.sqrt((sums.deviations() ** 2).sum(axis=0))
        without.append(abs(table.p[0, 0] - truth) <= 1.96 * error[0, 0])
    if count > 2:  # what few sequences differ by says little; draws widen it, see `draw_sequence_noise`
        assert np.mean(held) >= (0.80 if count < 10 else 0.85)
    assert np.mean(held) >= np.mean(without)
    if truth > 0.99:
        assert np.mean(without) < np.mean(held) - 0.03


def test_agreeing_sequences_count_little():
    ones = SequenceSums(np.full((2, 1), 100.0), np.full((2, 1, 1), 100.0)).table().interval()[0][0, 0]
    many = SequenceSums(np.full((40, 1), 100.0), np.full((40, 1, 1), 100.0)).table().interval()[0][0, 0]
    assert ones < 0.95, "200 positions of two sequences are worth some thirty"
    assert ones < many < 0.997


def test_positions_of_one_sequence_count_as_few():
    worth = independent_positions(np.array([1.0, 0.5]), np.array([1e6, 1e6]), 1)
    assert worth.tolist() == pytest.approx([1 / INTRACLASS] * 2, rel=1e-3)
    assert independent_positions(np.array([0.5]), np.array([1000.0]), 10)[0] > 900, "these show how alike they are"
