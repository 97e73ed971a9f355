"""Trees from a block: growth, rules for the budget, calibration, and counts by hand."""

import numpy as np
import pytest

from tests.scripts import ROOT, script
from treeopt.profiler.acceptance.heads import BlockMarginals
from treeopt.profiler.drafters.replays import count_steps
from treeopt.records.accepted_ranks import RootRanks
from treeopt.runtime.drafters.dflash.best_first import count_tokens_to_reach

script = script(ROOT / "benchmarks" / "block_trees.py")
LEVELS, K = 3, 5


def drawn_sequence(seed, roots=60, probs=None):
    """Return a sequence whose tokens are drawn from the slots' marginals, each slot on its own."""
    generator = np.random.default_rng(seed)
    if probs is None:
        probs = -np.sort(-generator.dirichlet(np.full(K + 1, 0.5), size=(roots, LEVELS)))
    ranks = (generator.random((*probs.shape[:2], 1)) > probs.cumsum(axis=2)).sum(axis=2)
    return BlockMarginals(np.log(np.maximum(probs[..., :K], 1e-9)), np.where(ranks < K, ranks, -1))


def test_trees_without_calibration_equal_the_drafters():
    sequence = drawn_sequence(0)
    trees = script.GrownTrees.grow(sequence, script.Calibration.none())
    expected = count_tokens_to_reach(sequence.log_probs, sequence.ranks, script.MAX_TOKENS)
    assert trees.needed.tolist() == expected.tolist()
    assert trees.expected[:, 0].tolist() == [1.0] * len(trees.expected)
    assert trees.expected[:, 1] == pytest.approx(1 + np.exp(sequence.log_probs[:, 0, 0]), rel=1e-4)


def test_a_fixed_budget_takes_the_steps_of_the_profiler():
    sequence = drawn_sequence(1)
    trees = script.GrownTrees.grow(sequence, script.Calibration.none())
    seconds = np.arange(script.MAX_TOKENS + 1.0)
    for budget in (2, 7, 40):
        (tokens,), (steps,) = count_steps(trees.needed, np.array([budget]))
        replayed = script.replay([trees], script.fixed(budget), seconds)
        assert (replayed.tokens[0], replayed.steps[0]) == (tokens, steps)
        assert replayed.verified[0] == replayed.seconds[0] == budget * steps


def test_one_rule_stops_at_the_first_fall_and_the_other_does_not():
    seconds = np.array([0.0, 1.0, 1.1, 2.0, 2.0, 2.0, *[99.0] * (script.MAX_TOKENS - 5)])
    expected = np.array([[1.0, 1.8, 2.5, 3.1, 3.6, *[3.6] * (script.MAX_TOKENS - 5)]])
    assert script.first_fall(seconds)(expected).tolist() == [2]
    trees = script.GrownTrees(np.repeat(expected, 20, axis=0), np.tile([2, 3], (20, 1)))  # three tokens of each step
    assert script.all_sizes([trees], seconds)(expected).tolist() == [5]


def test_calibration_of_independent_slots_is_the_product():
    calibration = script.Calibration.fit([drawn_sequence(seed, roots=300) for seed in range(4)])
    for spine, largest in ((True, -0.5), (False, -1.5)):  # other paths have a rank of at most one half
        for log_prob in (largest, -2.0, -4.0):
            assert calibration.reach(log_prob, spine=spine) == pytest.approx(np.exp(log_prob), abs=0.1)
    assert (np.diff(calibration.spine) <= 0).all()


def test_one_class_of_roots_is_a_static_tree():
    sequences, seconds = [drawn_sequence(seed) for seed in range(3)], 1 + 0.01 * np.arange(script.MAX_TOKENS + 1.0)
    fitted = script.TreesByEntropy.fit(sequences, 1, seconds)
    assert fitted.trees[0].max_depth == LEVELS  # else a static replay goes on for some steps
    ranks = RootRanks([sequence.ranks for sequence in sequences])
    for replayed, expected in zip(
        fitted.replay(sequences, seconds), script.replay_static(ranks, fitted.trees[0], seconds), strict=True
    ):
        assert replayed.tolist() == pytest.approx(expected.tolist())


def test_certain_roots_get_a_longer_tree_and_are_decoded_faster():
    certain, uncertain = (
        np.tile([1.0, 0, 0, 0, 0, 0], (LEVELS, 1)),
        np.tile([0.3, 0.2, 0.2, 0.1, 0.1, 0.1], (LEVELS, 1)),
    )
    sequences = [drawn_sequence(seed, probs=np.stack([certain, uncertain] * 300)) for seed in range(3)]
    seconds = 1 + 0.35 * np.arange(script.MAX_TOKENS + 1.0)
    fitted = script.TreesByEntropy.fit(sequences, 2, seconds)
    assert fitted.trees[0].max_depth == LEVELS > fitted.trees[1].max_depth
    for classes, faster in ((1, True), (2, False)):
        other = script.TreesByEntropy.fit(sequences, classes, seconds).replay(sequences, seconds)
        assert (fitted.replay(sequences, seconds).tokens_per_s > 1.02 * other.tokens_per_s) == faster
