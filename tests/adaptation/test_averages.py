"""Averages of acceptance compared with counts by hand, and of times on invented machines."""

import math

import numpy as np
import pytest

from treeopt.adaptation.averages import (
    HALF_LIFE_STEPS,
    MIN_SEQUENCES,
    TIMES_TOLERANCE,
    WARM_UP_STEPS,
    AcceptanceAverage,
    Outcomes,
    StepTimes,
    Visits,
    apply_shift,
    replay_outcomes,
)
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import TokenTree, chain, level_widths

TREES = [chain(3), level_widths([3, 2]), TokenTree([-1, 0, 0, 0, 1, 1, 2, 4])]
PROFILE = np.array([[0.8, 0.5, 0.3]] * 4)


def count_by_hand(tree, paths, depths, ranks):
    """Return (tried, accepted) of every depth and rank, child by child."""
    tried, accepted = np.zeros((2, depths, ranks))
    for path in paths:
        for depth, node in enumerate(path):
            following = path[depth + 1] if depth + 1 < len(path) else None
            for rank, child in enumerate(tree.children(node)):
                if depth < depths and rank < ranks:
                    tried[depth, rank] += 1
                    accepted[depth, rank] += child == following
                if child == following:
                    break
    return tried, accepted


def random_paths(tree, count, rng):
    paths = []
    for _ in range(count):
        path = [0]
        while len(tree.children(path[-1])) and rng.random() < 0.7:
            path.append(int(rng.choice(list(tree.children(path[-1])))))
        paths.append(tuple(path))
    return paths


def test_visits_count_tried_and_accepted_children():
    rng = np.random.default_rng(0)
    for tree in TREES:
        for depths, ranks in ((4, 4), (2, 2), (1, 1)):
            visits, paths = Visits(tree, depths, ranks), random_paths(tree, 60, rng)
            visits.paths += paths
            outcomes = visits.take()
            tried, accepted = count_by_hand(tree, paths, depths, ranks)
            assert np.array_equal(outcomes.tried, tried)
            assert np.array_equal(outcomes.accepted, accepted)
            assert visits.take().tried.sum() == 0


def test_replayed_steps_begin_where_steps_with_the_tree_end():
    ranks = AcceptedRanks([[0, 0, 1, -1, 0, 2, 0, 0, 0, 0], [1, -1, -1, 0, 0]])
    outcomes = replay_outcomes(ranks, chain(2), 2, 3)
    # sequence 1: steps at 0 (0, 0), 3 (miss), 4 (0, then 2), 6 (0, 0); sequence 2: at 0 (1), 1 (miss), 2 (miss)
    assert outcomes.tried.tolist() == [[7, 4, 3], [3, 1, 1]]
    assert outcomes.accepted.tolist() == [[3, 1, 0], [2, 0, 1]]


def average_of(p, tried, *, profile=PROFILE, steps=1):
    average = AcceptanceAverage(*profile.shape)
    tried = np.broadcast_to(np.asarray(tried, float), profile.shape)
    average.add(Outcomes(tried.copy(), tried * p), steps, profile)
    return average, apply_shift(profile, average.shift(profile))


def test_many_outcomes_outweigh_the_profile_at_every_depth_and_rank():
    p = np.array([[0.3, 0.6, 0.1], [0.5, 0.2, 0.4], [0.2, 0.2, 0.2], [0.9, 0.1, 0.5]])
    assert np.allclose(average_of(p, 1e5)[1], p, atol=0.005)


def test_outcomes_at_one_depth_shift_all_depths_but_no_untried_ranks():
    tried = np.zeros_like(PROFILE)
    tried[0, 0] = 1000
    _, p = average_of(0.35, tried)
    assert np.allclose(p[:, 0], 0.35, atol=0.04)
    assert np.allclose(p[:, 1:], PROFILE[:, 1:])


def test_few_outcomes_shift_little_unless_the_profile_is_of_another_draft():
    tried = np.zeros_like(PROFILE)
    tried[0, 0] = 8
    average, p = average_of(0.0, tried)
    assert p[1, 0] > 0.6
    average.forget()
    average.add(Outcomes(tried, 0.0 * tried), 1, PROFILE)
    assert apply_shift(PROFILE, average.shift(PROFILE))[1, 0] < 0.45


def test_a_step_counts_half_after_the_half_life():
    average, _ = average_of(0.5, 8.0, profile=np.array([[0.5]]))
    average.add(Outcomes.none(1, 1), HALF_LIFE_STEPS, np.array([[0.5]]))
    assert (average.outcomes.tried[0, 0], average.outcomes.accepted[0, 0]) == (4.0, 2.0)


def add_sequence(average, p, *, profile, tried=64):
    """Add 64 steps of one sequence, and return its tried children."""
    average.add(Outcomes(np.array([[float(tried)]]), np.array([[tried * p]])), 64, profile)
    return float(average.outcomes.tried[0, 0])


def test_deviating_steps_discard_most_counts():
    profile = np.array([[0.8]])
    for p, kept in ((0.8, True), (0.1, False)):
        average, _ = average_of(0.8, 400.0, profile=profile, steps=200)
        tried = add_sequence(average, p, profile=profile)
        assert tried > 300 if kept else tried < 160


def average_of_sequences(profile):
    average, _ = average_of(0.8, 400.0, profile=profile, steps=200)
    for _ in range(MIN_SEQUENCES):
        assert not average.end_sequence()
    return average


def test_a_sequence_that_deviates_alone_does_not_count():
    profile = np.array([[0.8]])
    average = average_of_sequences(profile)
    add_sequence(average, 0.1, profile=profile)
    assert average.end_sequence()
    assert add_sequence(average, 0.8, profile=profile) > 350
    assert not average.end_sequence()


def test_the_second_sequence_that_deviates_counts():
    profile = np.array([[0.8]])
    average = average_of_sequences(profile)
    add_sequence(average, 0.1, profile=profile)
    assert average.end_sequence()
    add_sequence(average, 0.1, profile=profile)
    assert not average.end_sequence()
    assert add_sequence(average, 0.1, profile=profile) < 200
    assert not average.end_sequence()


def test_the_first_sequences_count_although_they_deviate():
    average, profile = AcceptanceAverage(1, 1), np.array([[0.8]])
    for _ in range(2):
        for p in (0.1, 0.8) * (MIN_SEQUENCES // 2):
            add_sequence(average, p, profile=profile)
            assert not average.end_sequence()
            assert average.outcomes.tried.any()
        average.forget()


def time_steps(times, tree, steps, draft, target, draft_s=0.4, target_s=1.0):
    for _ in range(0, steps, 16):
        times.add(tree, [StepSeconds(draft, 0.8 * target, 0.2 * target)] * 16, draft_s, target_s)


def test_a_uniform_slowdown_changes_no_ratio():
    times = StepTimes()
    time_steps(times, chain(2), 96, 0.4, 1.0)
    time_steps(times, chain(2), 320, 0.8, 2.0)
    assert times.drafting == 1.0
    time_steps(times, chain(4), 320, 1.6, 2.0, 0.8)
    assert times.step_s(chain(2), 0.4, 1.0) / times.step_s(chain(4), 0.8, 1.0) == pytest.approx(1.4 / 1.8, rel=0.02)


def test_slower_drafting_counts_beyond_the_tolerance():
    times = StepTimes()
    time_steps(times, chain(2), 320, 0.8, 1.0)
    assert times.drafting == pytest.approx(2.0 / 1.15, rel=0.03)


def test_a_tree_takes_as_long_as_it_took():
    """The profile's host overhead is wrong, so each depth has a draft-to-target ratio of its own."""
    times, overhead = StepTimes(), 1.0
    trees = {depth: (overhead + 0.5 * depth, 5.0 + 0.1 * depth) for depth in (1, 3, 10)}
    for repeat in range(2):
        time_steps(times, chain(0), 2 * WARM_UP_STEPS, 0.0, 5.0, 0.0, 5.0)
        for depth, (draft_s, target_s) in trees.items():
            time_steps(times, chain(depth), 2 * WARM_UP_STEPS, draft_s - overhead, target_s, draft_s, target_s)
            for known in [known for known in trees if repeat or known <= depth]:
                assert times.step_s(chain(known), *trees[known]) == pytest.approx(
                    sum(trees[known]) - overhead, rel=0.02
                )
    assert times.step_s(chain(0), 0.0, 5.0) == pytest.approx(5.0, rel=0.01)


def test_an_untried_tree_has_the_ratios_of_the_tree_with_the_most_similar_time():
    times = StepTimes()
    time_steps(times, chain(1), 2 * WARM_UP_STEPS, 0.5, 1.0, 1.0, 1.0)
    time_steps(times, chain(8), 2 * WARM_UP_STEPS, 6.0, 1.5, 8.0, 1.5)
    tolerated = math.exp(TIMES_TOLERANCE)
    assert times.step_s(chain(2), 2.0, 1.0) == pytest.approx(2.0 * 0.5 * tolerated + 1.0, rel=0.02)
    assert times.step_s(chain(7), 7.0, 1.5) == pytest.approx(7.0 * 0.75 * tolerated + 1.5, rel=0.02)


def test_times_of_all_trees_follow_a_change_of_the_draft_to_target_ratio():
    times = StepTimes()
    time_steps(times, chain(1), 2 * WARM_UP_STEPS, 1.0, 1.0, 1.0, 1.0)
    time_steps(times, chain(8), 2 * WARM_UP_STEPS, 8.0, 1.0, 8.0, 1.0)
    time_steps(times, chain(8), 20 * WARM_UP_STEPS, 16.0, 1.0, 8.0, 1.0)
    assert times.step_s(chain(1), 1.0, 1.0) == pytest.approx(3.0, rel=0.02)


def test_an_interruption_counts_as_a_few_steps():
    times = StepTimes()
    time_steps(times, chain(2), 96, 0.4, 1.0)
    times.add(chain(2), [StepSeconds(0.4, 1000.0, 0.0)], 0.4, 1.0)
    time_steps(times, chain(4), 96, 0.4, 1.0)
    assert times.step_s(chain(4), 0.4, 1.0) / times.step_s(chain(2), 0.4, 1.0) == pytest.approx(1.0, abs=0.1)
