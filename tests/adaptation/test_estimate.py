"""What counted outcomes say of acceptance: nothing without any, the truth with many, and all depths with some."""

import numpy as np

from treeopt.adaptation.counts import Outcomes
from treeopt.adaptation.estimate import Learnt, conditional, joint, surprise

KNOWN = np.array([[0.8, 0.5, 0.3]] * 4)


def outcomes(p, tried):
    tried = np.broadcast_to(np.asarray(tried, float), np.shape(p))
    return Outcomes(tried.copy(), tried * p)


def test_rows_come_back():
    rows = np.array([[0.6, 0.2, 0.1], [0.3, 0.3, 0.3]])
    assert np.allclose(joint(conditional(rows)), rows)


def test_without_outcomes_nothing_changes():
    learnt = Learnt(Outcomes.none(4, 3), KNOWN)
    assert np.allclose(learnt.shift, 0, atol=1e-9)
    assert np.allclose(learnt.expected, KNOWN)


def test_many_outcomes_are_believed_cell_by_cell():
    true = np.array([[0.3, 0.6, 0.1], [0.5, 0.2, 0.4], [0.2, 0.2, 0.2], [0.9, 0.1, 0.5]])
    assert np.allclose(Learnt(outcomes(true, 1e5), KNOWN).expected, true, atol=0.005)


def test_what_one_depth_shows_is_believed_of_all():
    true = 0.35
    tried = np.zeros_like(KNOWN)
    tried[0, 0] = 400
    learnt = Learnt(Outcomes(tried, true * tried), KNOWN)
    assert np.allclose(learnt.expected[:, 0], true, atol=0.04)
    assert np.allclose(learnt.expected[:, 1:], KNOWN[:, 1:])  # ranks that nobody tried stay


def test_draws_are_as_wide_as_little_is_known():
    generator = np.random.default_rng(0)
    few, many = (Learnt(outcomes(KNOWN, tried), KNOWN).draws(generator, *KNOWN.shape) for tried in (10, 10_000))
    assert np.abs(many.mean(axis=0)).max() < 0.1
    assert few.std(axis=0).min() > 4 * many.std(axis=0).max()


def test_draws_of_the_first_depths_and_ranks_are_what_was_counted_there():
    true = np.array([[0.3, 0.6, 0.1], [0.5, 0.2, 0.4], [0.2, 0.2, 0.2], [0.9, 0.1, 0.5]])
    learnt = Learnt(outcomes(true, 1e5), KNOWN)
    for depths, ranks in ((2, 1), (4, 2), (1, 3), (0, 1)):
        drawn = learnt.draws(np.random.default_rng(0), depths, ranks)
        assert drawn.shape[1:] == (depths, ranks)
        assert np.allclose(drawn.mean(axis=0), learnt.shift[:depths, :ranks], atol=0.02)


def test_surprise_is_the_standard_score_of_first_or_of_later_ranks():
    generator = np.random.default_rng(1)
    tried = np.full((4, 3), 50.0)
    found = [surprise(Outcomes(tried, generator.binomial(50, KNOWN).astype(float)), KNOWN) for _ in range(400)]
    assert 0.02 < np.mean(np.array(found) > 2) < 0.16  # the larger of two
    assert surprise(outcomes(KNOWN - 0.2, 50.0), KNOWN) > 5
