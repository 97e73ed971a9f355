"""The gain of `traversal` over `sequoia`: counted by the verifiers, exact by enumeration, and right in decoding."""

import numpy as np
import pytest
import torch

from tests.profiler.pretended import measure_profile
from tests.support.enumeration import expected_reach
from tests.support.invented_distributions import PairDistributions
from tests.support.slow import slow
from treeopt.profiler import Settings
from treeopt.profiler.acceptance.traversal import LEAST_REACHED, MAX_ROUNDS, ReachSums, count_reach, iterate_gain
from treeopt.profiler.decoding import Decoding
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, Verifier
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.distributions import distribution
from treeopt.trees import TokenTree, chain, k_ary, level_widths

WARM = Sampling(1.0)
COIN = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
"""Distributions of target and draft of which block verification gains much (Sun et al., 2024, section 2)."""
DICE = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.1, 0.3, 0.2])
ROUGH = np.array([0.1, 0.2, 0.7]), np.array([0.6, 0.3, 0.1])
SPARSE = TokenTree([-1, 0, 0, 1, 1, 2, 3])


def exact_reach(rule, tree, distributions):
    """Return the probability of each node to be reached, by enumeration, if distributions are the same after every token."""
    target, draft = distributions
    return expected_reach(
        RULES[rule], tree, PairDistributions(lambda _: target, lambda _: draft, len(target), tree.max_depth)
    )


@pytest.fixture(scope="module")
def make_pair(make_markov):
    def make(distributions):
        return [make_markov(np.log(each), max_positions=4096) for each in distributions]

    return make


def count(models, tree, prompt, positions, *, sampling=WARM, draft_sampling=None, seed=0):
    decoding = Decoding(rule="traversal", sampling=sampling, draft_sampling=draft_sampling)
    return count_reach(*models, tree, prompt, positions, decoding, seed=seed)


class TestCountReach:
    @pytest.mark.parametrize(
        ("tree", "sampling", "draft_sampling"),
        [(chain(3), WARM, None), (SPARSE, Sampling(0.7, 0.9, 12), Sampling(1.2, 0.95))],
        ids=["chain", "sparse"],
    )
    def test_reach_is_that_of_the_verifiers_in_every_step(self, target, draft, prompts, tree, sampling, draft_sampling):
        reach = count((target, draft), tree, prompts[1], 40, sampling=sampling, draft_sampling=draft_sampling, seed=5)
        decoder = Decoder(
            target, draft, tree, rule="traversal", sampling=sampling, draft_sampling=draft_sampling, seed=5
        )
        generator = torch.Generator().manual_seed(6)
        decoder.start(prompts[1])
        expected, steps, tokens = np.zeros((2, tree.nodes)), 0, 0
        while tokens < 40:
            proposal = decoder.draft()
            output = decoder.verify(proposal)
            distributions = distribution(output.logits, sampling)
            verifiers = [Verifier(RULES[rule], 23, target.device) for rule in ("traversal", "sequoia")]
            for row, verifier in zip(expected, verifiers, strict=True):
                verifier.test([tree], proposal.tokens, proposal.probs, distributions)
                row += verifier.reach()
            step = decoder.accept_verdict(proposal.tokens.tolist(), verifiers[0].verdict(generator), output)
            decoder.commit(step)
            steps, tokens = steps + 1, tokens + len(step.tokens)
        np.testing.assert_allclose(reach, expected, rtol=1e-12)
        assert reach[:, 0].tolist() == [steps, steps]
        assert np.all(reach[:, 1:] <= reach[:, tree.parents[1:]] + 1e-9)
        assert np.abs(reach[0] - reach[1]).max() > 0.1

    def test_counting_ends_with_the_sequence(self, target, make_model, draft, prompts):
        assert count((target, draft), chain(0), prompts[0], 7).tolist() == [[7.0], [7.0]]
        ending = make_model(seed=1, end_tokens=tuple(range(23)))
        assert count((ending, draft), chain(2), prompts[0], 50)[:, 0].tolist() == [1, 1]
        steps = count((target, draft), chain(2), prompts[0], 10_000)[0, 0]  # up to the trained length
        assert (128 - len(prompts[0])) / 3 <= steps <= 128 - len(prompts[0])

    @pytest.mark.parametrize(("distributions", "tree"), [(COIN, chain(3)), (DICE, SPARSE)], ids=["coin", "dice"])
    def test_mean_reach_is_exact(self, make_pair, distributions, tree):
        """Four standard errors of the mean over sequences; each error is below 0.03."""
        models = make_pair(distributions)
        reach = np.array([count(models, tree, [0], 150, seed=seed) for seed in range(10)])
        for row, rule in enumerate(("traversal", "sequoia")):
            rates = reach[:, row, 1:] / reach[:, row, :1]
            error = rates.std(axis=0, ddof=1) / len(reach) ** 0.5
            assert np.all(np.abs(rates.mean(axis=0) - exact_reach(rule, tree, distributions)[1:]) < 4 * error)
            assert 0 < error.max() < 0.03


class TestGain:
    tree = TokenTree([-1, 0, 0, 1, 1, 2])
    traversal = np.array([100.0, 50.0, 25.0, 20.0, 10.0, 15.0])
    sequoia = np.array([100.0, 40.0, 25.0, 16.0, 8.0, 5.0])

    def test_nodes_of_one_depth_and_rank_are_summed(self):
        sums = ReachSums(self.tree, self.traversal, self.sequoia)
        gain = sums.gain(3, 3)
        assert gain[0, :2] == pytest.approx([(50 / 100) / (40 / 100), 1.0])
        assert gain[1, :2] == pytest.approx([(35 / 75) / (21 / 65), (10 / 50) / (8 / 40)])
        assert np.isnan(gain[:, 2]).all()
        assert np.isnan(gain[2]).all()
        for depths, ranks in ((1, 3), (2, 1)):
            np.testing.assert_array_equal(sums.gain(depths, ranks), gain[:depths, :ranks])

    def test_rarely_reached_nodes_have_no_gain(self):
        sequoia = np.array([100.0, LEAST_REACHED - 0.25, 0.25, 10.0, 5.0, 0.1])
        gain = ReachSums(self.tree, self.traversal, sequoia).gain(2, 2)
        assert not np.isnan(gain[1, 0])  # both parents together are reached often enough
        assert np.isnan(gain[1, 1])
        never = np.array([100.0, 0.0, 30.0, 0.0, 0.0, 0.0])
        gain = ReachSums(self.tree, never, never).gain(2, 2)
        assert gain[0, 1] == 1
        assert np.isnan(gain[[0, 1, 1], [0, 0, 1]]).all()

    @pytest.mark.parametrize("tree", [chain(3), k_ary(2, 2), SPARSE, TokenTree([-1, 0, 0, 0, 3, 4])])
    def test_expected_gain_at_depth_1_is_1(self, tree):
        """The reach of a child does not depend on the nodes below it (Weng et al., 2025)."""
        reach = (1e6 * exact_reach(rule, tree, DICE) for rule in ("traversal", "sequoia"))
        np.testing.assert_allclose(ReachSums(tree, *reach).gain(1, tree.child_counts[0])[0], 1, rtol=1e-12)

    def test_measured_gain_at_depth_1_is_1_within_noise(self, target, draft, prompts):
        reach = np.array([count((target, draft), SPARSE, prompts[i % 6], 80, seed=100 + i) for i in range(18)])
        difference = (reach[:, 0] - reach[:, 1])[:, 1:]
        z = difference.sum(axis=0) / (difference.std(axis=0, ddof=1) * len(reach) ** 0.5)
        assert np.all(np.abs(z[:2]) < 4)
        assert z[2:].max() > 6  # negative control: below depth 1 there is a gain


class TestIterateGain:
    trees = (chain(2), level_widths([2, 1]), chain(3), *(level_widths([width]) for width in range(3, 20)))

    def iterate(self, order, sums):
        """Return the gain, the measured trees, and the gains before each, if the fastest trees come in an order."""
        gains, measured, numbers = [], [], iter(order)

        def find_fastest(gain):
            gains.append(gain)
            return self.trees[next(numbers)]

        def measure(turn, tree):
            assert turn == len(measured)
            measured.append(tree)
            return ReachSums(tree, *(100.0 * factor**tree.depth for factor in sums[turn]))

        return iterate_gain(find_fastest, measure, 3, 2), measured, gains

    def test_rounds_end_when_the_fastest_tree_was_measured(self):
        gain, measured, gains = self.iterate([0, 0], [(0.9, 0.6)])
        assert measured == [self.trees[0]]
        assert np.isnan(gains[0]).all()
        np.testing.assert_allclose(gain, [[1.5, np.nan], [1.5, np.nan], [np.nan, np.nan]])
        np.testing.assert_array_equal(gains[1], gain)
        _, measured, _ = self.iterate([0, 1, 0], [(0.9, 0.6)] * 2)  # in an earlier round
        assert measured == [self.trees[0], self.trees[1]]

    def test_rounds_have_a_maximum(self):
        _, measured, gains = self.iterate(range(MAX_ROUNDS + 3), [(0.9, 0.6)] * MAX_ROUNDS)
        assert measured == list(self.trees[:MAX_ROUNDS])
        assert len(gains) == MAX_ROUNDS

    def test_entries_that_a_new_tree_lacks_keep_their_gain(self):
        gain, _, _ = self.iterate([2, 1, 1], [(0.9, 0.6), (0.8, 0.64)])
        np.testing.assert_allclose(gain, [[1.25, 1.25], [1.25, np.nan], [1.5, np.nan]])


@pytest.mark.parametrize(
    ("distributions", "tree", "branching", "steps"),
    [(ROUGH, SPARSE, 2, 300), *slow([(COIN, chain(3), 1, 300)])],
    ids=["sparse", "chain"],
)
def test_prediction_is_right_with_the_gain_and_wrong_without(make_pair, distributions, tree, branching, steps):
    """Of a whole profile on one tree, against enumeration and decoding."""
    models = make_pair(distributions)
    settings = Settings(
        rules=("sequoia", "traversal"),
        samplings=(WARM,),
        context_tokens=(20,),
        max_tokens=2,
        rounds=1,
        positions=2 * steps,
        branching=branching,
        depth=3,
    )
    profile = measure_profile(*models, [[i % 2] for i in range(6)], settings, fastest_tree=lambda _: tree)
    without_gain, predicted = (acceptance.table.expected_tokens(tree) for acceptance in profile.acceptances)
    exact = [exact_reach(rule, tree, distributions).sum() for rule in ("sequoia", "traversal")]
    assert exact[1] / exact[0] > 1.07
    # one standard error of the ratio is some 2 %
    assert predicted / without_gain == pytest.approx(exact[1] / exact[0], rel=0.7 / steps**0.5)

    decoder, lengths = Decoder(*models, tree, rule="traversal", temperature=1.0, seed=78), []
    for number in range(2 * steps):
        if number % 500 == 0:  # before the trained length
            decoder.start([0])
        lengths.append(len(decoder.step().tokens))
    decoded, error = np.mean(lengths), np.std(lengths) / len(lengths) ** 0.5
    assert predicted == pytest.approx(decoded, rel=0.03 + 3 * error / decoded)
    assert without_gain < decoded - 3 * error  # negative control
