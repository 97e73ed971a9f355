"""Drift is removed from samples of sizes that were timed in different blocks, and nothing else is removed."""

import numpy as np
import pytest

from treeopt.profiler.latency.drift import remove_drift

TRUE_S = {1: 0.050, 2: 0.055, 4: 0.062, 8: 0.080, 16: 0.100}


def make_samples(plan, speeds, *, sigma=0.0, seed=0):
    """Return samples and blocks; `plan` lists the sizes of each block, `speeds` the factor of its seconds."""
    noise = np.random.default_rng(seed)
    samples, blocks = {size: [] for size in TRUE_S}, {size: [] for size in TRUE_S}
    for number, (sizes, speed) in enumerate(zip(plan, speeds, strict=True)):
        for size in sizes:
            samples[size].append(TRUE_S[size] * speed * float(np.exp(sigma * noise.normal())))
            blocks[size].append(number)
    return samples, blocks


def spread(samples):
    """Return the largest difference between two sizes' errors."""
    errors = [np.median(seconds) / TRUE_S[size] for size, seconds in samples.items()]
    return max(errors) / min(errors) - 1


ALL = list(TRUE_S)
PLAN = [ALL, *[[1, 2, 4]] * 4, *[[4, 8, 16, 1]] * 4, *[[2, 4, 8]] * 4]
SPEEDS = [1.0, *[1.3] * 4, *[0.9] * 4, *[1.0] * 4]


def test_sizes_timed_at_fast_moments_do_not_look_faster():
    samples, blocks = make_samples(PLAN, SPEEDS, sigma=0.01)
    assert spread(samples) > 0.08
    assert spread(remove_drift(samples, blocks)) < 0.03


def test_without_drift_nothing_changes():
    samples, blocks = make_samples(PLAN, [1.0] * len(PLAN))
    evened = remove_drift(samples, blocks)
    for size, seconds in samples.items():
        assert evened[size] == pytest.approx(seconds, rel=1e-12)


def test_samples_of_one_block_stay_as_they_are():
    samples, blocks = make_samples([ALL], [1.0], sigma=0.5)
    assert remove_drift(samples, blocks) == samples
    assert remove_drift({}, {}) == {}


def test_the_usual_speed_is_kept():
    """A few slow blocks, of sizes that were timed again, do not count."""
    samples, blocks = make_samples([ALL] * 5, [4.0, 1.0, 1.0, 1.0, 1.0])
    evened = remove_drift(samples, blocks)
    for size, seconds in evened.items():
        assert np.median(seconds) == pytest.approx(TRUE_S[size], rel=1e-2)
        assert seconds[0] == pytest.approx(TRUE_S[size], rel=0.1)


def test_a_disturbed_sample_does_not_move_the_others_of_its_block():
    samples, blocks = make_samples([ALL] * 5, [1.0] * 5)
    samples[8][2] *= 3
    evened = remove_drift(samples, blocks)
    assert evened[1] == pytest.approx(samples[1], rel=0.01)
    assert evened[8][2] == pytest.approx(samples[8][2], rel=0.01)
