"""Acceptance by position from accept lengths, against random feasible ones, and from speeds at a known acceptance."""

import numpy as np
import pytest

from treeopt.engines.importers import sweep_profile
from treeopt.engines.importers.sweep_acceptance import estimate_rate, fit_survival
from treeopt.errors import FormatError, InvalidValueError
from treeopt.records.sampling import GREEDY


def accept_lengths(survival, lengths):
    return np.array([1 + sum(survival[:length]) for length in lengths])


@pytest.mark.parametrize(
    "measured",
    [
        {1: 1.85, 3: 3.15, 7: 4.73},
        {15: 7.64, 16: 7.81, 18: 8.22, 20: 8.64, 22: 8.88, 24: 8.91},
        {1: 2.0, 2: 3.0, 4: 3.5},
        {2: 1.0, 5: 1.0},
    ],
)
def test_consistent_accept_lengths_are_kept(measured):
    survival, smoothed = fit_survival(measured)
    assert np.diff(survival, prepend=1.0).max() <= 1e-9
    assert min(survival) >= 0
    if not smoothed:
        assert accept_lengths(survival, measured) == pytest.approx(list(measured.values()), abs=1e-6)


def test_decreasing_accept_length_does_not_remove_later_gains():
    measured = {7: 3.2, 8: 3.2, 9: 3.33, 12: 3.27, 16: 3.31}
    survival, smoothed = fit_survival(measured)
    assert smoothed
    assert accept_lengths(survival, [9])[0] == pytest.approx(3.33)


def test_pooled_gains_are_nearer_than_random_feasible_ones():
    rng, lengths = np.random.default_rng(1), [1, 2, 4, 6, 9]
    counts = np.diff(lengths, prepend=0)
    measured = {1: 1.7, 2: 2.5, 4: 2.9, 6: 3.9, 9: 3.8}

    def distance(values):
        """Return the squared error of the increase per token, weighted by tokens."""
        gains = np.diff([values, list(measured.values())], prepend=1.0) / counts
        return float((counts * (gains[0] - gains[1]) ** 2).sum())

    survival, smoothed = fit_survival(measured)
    fitted = distance(accept_lengths(survival, lengths))
    assert smoothed
    for _ in range(2000):
        gains = np.sort(rng.random(len(lengths)))[::-1]
        assert fitted <= distance(1 + np.cumsum(counts * gains)) + 1e-9


@pytest.mark.parametrize("rate", [0.3, 0.62, 0.95])
@pytest.mark.parametrize("slope_s", [0.0, 0.0007])
def test_rate_is_estimated_from_speeds_of_a_linear_cost(rate, slope_s):
    tokens = {length: sum(rate**power for power in range(length + 1)) for length in (0, 2, 5, 9)}
    speeds = {length: (0.02 + slope_s * length) / tokens[length] for length in tokens}
    assert estimate_rate(speeds) == pytest.approx(rate, abs=0.002)


@pytest.mark.parametrize("token_s", [{0: 0.02, 4: 0.01}, {1: 0.02, 2: 0.015, 4: 0.01}])
def test_rate_is_not_estimated_from_two_lengths(token_s):
    with pytest.raises(InvalidValueError, match="plain decoding, which is length 0, and two draft lengths"):
        estimate_rate(token_s)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("k,step_ms\n0,20\n2,30\n4,40\n", "an accept length with every step time"),
        ("k,tps,accept_len\n0,50,1\n2,70,1.9\n4,80,\n", "the accept length of the longest draft. Got none at 4"),
        ("k,tps\n0,50\n2,70\n", "plain decoding, which is length 0, and two draft lengths"),
    ],
)
def test_missing_accept_lengths_are_refused_where_nothing_determines_them(tmp_path, text, reason):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(FormatError, match=reason):
        sweep_profile([tmp_path / "s.csv"], sampling=GREEDY, context_tokens=1)


def test_speed_without_accept_length_takes_that_of_other_rows(tmp_path):
    (tmp_path / "s.csv").write_text("k,tps,accept_len\n0,50,1\n1,70,1.6\n2,80,\n3,90,2.176\n")
    (latency,) = sweep_profile([tmp_path / "s.csv"], sampling=GREEDY, context_tokens=1).chain_latencies
    assert float(latency.chains[2].steps.median_s) == pytest.approx(1.96 / 80, rel=0.01)


def test_rate_is_estimated_where_most_lengths_were_timed(tmp_path):
    """Batch size 8 alone determines the rate; batch size 1 has the longest draft."""
    tokens = {length: sum(0.6**power for power in range(length + 1)) for length in (0, 1, 2, 4, 6)}
    rows = [(1, 0), (1, 6), (8, 0), (8, 1), (8, 2), (8, 4)]
    lines = [f"{length},{batch},{batch * tokens[length] / (0.02 + 0.001 * length)}" for batch, length in rows]
    (tmp_path / "s.csv").write_text("\n".join(["k,batch,tps", *lines]))
    profile = sweep_profile([tmp_path / "s.csv"], sampling=GREEDY, context_tokens=1)
    (acceptance,) = profile.acceptances
    assert acceptance.table.p.ravel() == pytest.approx([0.6] * 6, abs=0.003)
    assert float(profile.chain_latencies[0].chains[1].steps.median_s) == pytest.approx(0.026, rel=0.01)
