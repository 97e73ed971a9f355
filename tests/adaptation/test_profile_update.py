"""The updated acceptance: counts of tried ranks, and the average over depths for the others."""

import numpy as np
import pytest

from tests.support.invented_machines import acceptance
from treeopt.adaptation.averages import MAX_STRATEGIES, Outcomes
from treeopt.adaptation.profile_update import MAX_SAMPLES, store_samples, update_acceptance
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import chain


def test_a_rank_untried_at_one_depth_takes_the_average_over_depths():
    tried = np.array([[200.0, 100.0, 50.0], [100.0, 0.0, 0.0], [40.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    updated = update_acceptance(
        Outcomes(tried, tried * [[0.5, 0.4, 0.2], [0.4, 0, 0], [0.25, 0, 0], [0.2, 0, 0]]),
        acceptance([0.5]),
        sequences=7,
    )
    assert updated.table.p.round(6).tolist() == [
        [0.5, 0.2, 0.06],
        [0.4, pytest.approx(0.6 * 0.4), pytest.approx(0.6 * 0.6 * 0.2)],
        [0.25, pytest.approx(0.75 * 0.4), pytest.approx(0.75 * 0.6 * 0.2)],
    ]
    assert updated.table.counts.tolist() == [200, 100, 40]  # the fourth depth was hardly reached
    assert (updated.prompts, updated.positions, updated.imported) == (7, 200, ())
    assert updated.table.standard_error[0, 0] == pytest.approx(np.sqrt(0.25 / 200), rel=0.01)


def test_samples_are_the_latest_steps_of_the_latest_trees():
    samples, steps = {}, [StepSeconds(float(number), 0.0, 0.0) for number in range(MAX_SAMPLES + 1)]
    for depth in range(MAX_STRATEGIES + 1):
        store_samples(samples, chain(depth), steps)
    assert list(samples) == [chain(depth) for depth in range(1, MAX_STRATEGIES + 1)]
    assert list(samples[chain(1)]) == steps[1:]
