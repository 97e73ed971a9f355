"""What testing from the leaves up gains: counted as the rules say, exact where distributions are known, right in the end."""

import numpy as np
import pytest
import torch

from tests.profiler.pretended import FakeClock
from tests.support.enumeration import expected_reach
from tests.support.invented_texts import Text
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.acceptance.traversal import (
    LEAST_REACHED,
    MAX_ROUNDS,
    ReachSums,
    count_reach,
    iterate_gain,
)
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
    """Return the probability of each node to be reached, by enumeration, where distributions are the same after every text."""
    target, draft = distributions
    return expected_reach(RULES[rule], tree, Text(lambda _: target, lambda _: draft, len(target), tree.max_depth))


def exact_gain(tree, distributions):
    return ReachSums(tree, *(1e6 * exact_reach(rule, tree, distributions) for rule in ("traversal", "sequoia")))


@pytest.fixture(scope="session")
def make_pair(make_markov):
    def make(distributions):
        return [make_markov(np.log(each), max_positions=4096) for each in distributions]

    return make


def counted(models, tree, prompt, positions, *, sampling=WARM, draft_sampling=None, seed=0):
    return count_reach(
        *models, tree, prompt, positions, Decoding(sampling=sampling, draft_sampling=draft_sampling), seed=seed
    )


class TestCounting:
    @pytest.mark.parametrize(
        ("sampling", "draft_sampling"), [(WARM, None), (Sampling(0.7, 0.9, 12), Sampling(1.2, 0.95))]
    )
    @pytest.mark.parametrize("tree", [chain(3), SPARSE], ids=["chain", "sparse"])
    def test_it_is_what_the_verifiers_say_step_by_step(self, target, draft, prompts, tree, sampling, draft_sampling):
        found = counted((target, draft), tree, prompts[1], 40, sampling=sampling, draft_sampling=draft_sampling, seed=5)
        numbers = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        decoder = Decoder(target, draft, tree, rule="traversal", draft_sampling=draft_sampling, seed=5, **numbers)
        generator = torch.Generator().manual_seed(6)
        decoder.start(prompts[1])
        reach, steps, tokens = np.zeros((2, tree.nodes)), 0, 0
        while tokens < 40:
            drafted = decoder.draft()
            output = decoder.verify(drafted)
            distributions = distribution(output.logits, sampling)
            verifiers = [Verifier(RULES[rule], 23, target.device) for rule in ("traversal", "sequoia")]
            for row, verifier in zip(reach, verifiers, strict=True):
                verifier.test([tree], drafted.tokens, drafted.probs, distributions)
                row += verifier.reach()
            step = decoder.accept_verdict(drafted.tokens.tolist(), verifiers[0].verdict(generator), output)
            decoder.commit(step)
            steps, tokens = steps + 1, tokens + len(step.tokens)
        np.testing.assert_allclose(found, reach, rtol=1e-12)
        assert found[:, 0].tolist() == [steps, steps]
        assert np.all(found[:, 1:] <= found[:, tree.parents[1:]] + 1e-9)
        assert np.abs(found[0] - found[1]).max() > 0.1

    def test_a_tree_of_the_root_alone_counts_steps(self, target, draft, prompts):
        assert counted((target, draft), chain(0), prompts[0], 7).tolist() == [[7.0], [7.0]]

    def test_the_end_token_ends_the_text(self, make_model, draft, prompts):
        target = make_model(seed=1, end_tokens=tuple(range(23)))
        assert counted((target, draft), chain(2), prompts[0], 50)[:, 0].tolist() == [1, 1]

    def test_the_trained_length_ends_the_text(self, target, draft, prompts):
        steps = counted((target, draft), chain(2), prompts[0], 10_000)[0, 0]
        assert (128 - len(prompts[0])) / 3 <= steps <= 128 - len(prompts[0])

    @pytest.mark.parametrize(("distributions", "tree"), [(COIN, chain(3)), (DICE, SPARSE)], ids=["coin", "dice"])
    def test_its_mean_is_the_exact_reach(self, make_pair, distributions, tree):
        models = make_pair(distributions)
        texts = np.array([counted(models, tree, [0], 250, seed=seed) for seed in range(12)])
        for row, rule in enumerate(("traversal", "sequoia")):
            rates = texts[:, row, 1:] / texts[:, row, :1]
            error = rates.std(axis=0, ddof=1) / len(texts) ** 0.5
            assert np.all(np.abs(rates.mean(axis=0) - exact_reach(rule, tree, distributions)[1:]) < 4 * error)
            assert 0 < error.max() < 0.03


class TestGain:
    tree = TokenTree([-1, 0, 0, 1, 1, 2])
    traversal = np.array([100.0, 50.0, 25.0, 20.0, 10.0, 15.0])
    sequoia = np.array([100.0, 40.0, 25.0, 16.0, 8.0, 5.0])

    def test_nodes_of_one_depth_and_rank_count_together(self):
        gain = ReachSums(self.tree, self.traversal, self.sequoia).gain(3, 3)
        assert gain[0, :2] == pytest.approx([(50 / 100) / (40 / 100), 1.0])
        assert gain[1, :2] == pytest.approx([(35 / 75) / (21 / 65), (10 / 50) / (8 / 40)])
        assert np.isnan(gain[:, 2]).all()
        assert np.isnan(gain[2]).all()

    @pytest.mark.parametrize(("depths", "ranks"), [(1, 1), (1, 3), (2, 1)])
    def test_it_has_the_shape_asked_for(self, depths, ranks):
        sums = ReachSums(self.tree, self.traversal, self.sequoia)
        np.testing.assert_array_equal(sums.gain(depths, ranks), sums.gain(3, 3)[:depths, :ranks])

    def test_what_few_steps_reached_is_not_measured(self):
        sequoia = np.array([100.0, LEAST_REACHED - 0.25, 0.25, 10.0, 5.0, 0.1])
        gain = ReachSums(self.tree, self.traversal, sequoia).gain(2, 2)
        assert not np.isnan(gain[1, 0])  # both parents together
        assert np.isnan(gain[1, 1])

    def test_what_was_never_reached_is_not_measured(self):
        nothing = np.array([100.0, 0.0, 30.0, 0.0, 0.0, 0.0])
        gain = ReachSums(self.tree, nothing, nothing).gain(2, 2)
        assert gain[0, 1] == 1
        assert np.isnan(gain[[0, 1, 1], [0, 0, 1]]).all()

    @pytest.mark.parametrize("tree", [chain(1), chain(3), k_ary(2, 2), SPARSE, TokenTree([-1, 0, 0, 0, 3, 4])])
    @pytest.mark.parametrize("distributions", [COIN, DICE], ids=["coin", "dice"])
    def test_at_depth_1_there_is_none_in_expectation(self, distributions, tree):
        # the reach of a child does not depend on what is below it (Weng et al., 2025)
        if tree.child_counts.max() > len(distributions[0]):
            tree = chain(4)
        np.testing.assert_allclose(exact_gain(tree, distributions).gain(1, tree.child_counts[0])[0], 1, rtol=1e-12)

    def test_at_depth_1_the_measured_one_is_1_within_noise(self, target, draft, prompts):
        texts = np.array([counted((target, draft), SPARSE, prompts[i % 6], 110, seed=100 + i) for i in range(32)])
        difference = (texts[:, 0] - texts[:, 1])[:, 1:]
        error = difference.std(axis=0, ddof=1) * len(texts) ** 0.5
        z = difference.sum(axis=0) / error
        assert np.all(np.abs(z[:2]) < 4)
        assert z[2:].max() > 6  # deeper there is one
        gain = ReachSums(SPARSE, *texts.sum(axis=0)).gain(1, 2)
        np.testing.assert_allclose(gain[0], 1, atol=0.05)


class TestRounds:
    trees = (chain(2), level_widths([2, 1]), chain(3), *(level_widths([width]) for width in range(3, 20)))

    def run(self, order, sums):
        """Return the gain, the trees measured, and the gains asked with, when the fastest trees come in an order."""
        asked, measured, coming = [], [], iter(order)

        def fastest(gain):
            asked.append(gain)
            return self.trees[next(coming)]

        def measure(turn, tree):
            assert turn == len(measured)
            measured.append(tree)
            return ReachSums(tree, *(100.0 * factor**tree.depth for factor in sums[turn]))

        return iterate_gain(fastest, measure, 3, 2), measured, asked

    def test_they_end_when_the_fastest_tree_was_measured(self):
        gain, measured, asked = self.run([0, 0], [(0.9, 0.6)])
        assert measured == [self.trees[0]]
        assert np.isnan(asked[0]).all()
        np.testing.assert_allclose(gain, [[1.5, np.nan], [1.5, np.nan], [np.nan, np.nan]])
        np.testing.assert_array_equal(asked[1], gain)

    def test_a_tree_of_an_earlier_round_ends_them_too(self):
        _, measured, _ = self.run([0, 1, 0], [(0.9, 0.6)] * 2)
        assert measured == [self.trees[0], self.trees[1]]

    def test_equal_trees_are_the_same_tree(self):
        trees = iter([chain(2), TokenTree([-1, 0, 1])])
        turns = []
        iterate_gain(
            lambda _: next(trees), lambda turn, tree: turns.append(turn) or ReachSums(tree, *np.ones((2, 3))), 2, 1
        )
        assert turns == [0]

    def test_they_end_after_so_many(self):
        _, measured, asked = self.run(range(MAX_ROUNDS + 3), [(0.9, 0.6)] * MAX_ROUNDS)
        assert measured == list(self.trees[:MAX_ROUNDS])
        assert len(asked) == MAX_ROUNDS

    def test_entries_that_the_new_tree_has_not_keep_their_gain(self):
        gain, _, _ = self.run([2, 1, 1], [(0.9, 0.6), (0.8, 0.64)])
        np.testing.assert_allclose(gain, [[1.25, 1.25], [1.25, np.nan], [1.5, np.nan]])


class TestPrediction:
    """The acceptance of a whole profile, on one tree, beside enumeration and beside decoding."""

    def tokens(self, models, tree, rule, steps):
        """Return tokens per step of decoding with a rule, and the standard error."""
        decoder = Decoder(*models, tree, rule=rule, temperature=1.0, seed=78)
        lengths = []
        for number in range(steps):
            if number % 500 == 0:  # the models were trained on 4096 tokens
                decoder.start([0])
            lengths.append(len(decoder.step().tokens))
        return np.mean(lengths), np.std(
            lengths
        ) / steps**0.5  # distributions are the same after every text: no clusters

    def profile(self, models, tree, branching, positions):
        asked = Settings(
            rules=("sequoia", "traversal"),
            samplings=(WARM,),
            context_tokens=(20,),
            max_tokens=2,
            rounds=1,
            positions=positions,
            branching=branching,
            depth=3,
        )
        prompts, clock = [[i % 2] for i in range(6)], FakeClock(lambda: 1.0)
        measurement = Measurement(
            *models, prompts, asked, clock=clock, checkpoint=Checkpoint(None, ""), fastest_tree=lambda _: tree
        )
        return measurement.profile(show_progress=False)

    @pytest.mark.parametrize(
        ("distributions", "tree", "branching", "steps"),
        [(ROUGH, SPARSE, 2, 300), (COIN, chain(3), 1, 600)],
        ids=["sparse", "chain"],
    )
    def test_with_the_gain_it_is_right_and_without_it_is_not(self, make_pair, distributions, tree, branching, steps):
        models = make_pair(distributions)
        profile = self.profile(models, tree, branching, 2 * steps)
        without, predicted = (each.table.expected_tokens(tree) for each in profile.acceptances)
        exact = [exact_reach(rule, tree, distributions).sum() for rule in ("sequoia", "traversal")]
        assert exact[1] / exact[0] > 1.07
        assert predicted / without == pytest.approx(
            exact[1] / exact[0], rel=0.7 / steps**0.5
        )  # one error of a text is some 2 %

        (plain, plain_error), (found, error) = (
            self.tokens(models, tree, rule, 2 * steps) for rule in ("sequoia", "traversal")
        )
        noise = float(np.hypot(error / found, plain_error / plain))
        assert predicted / without == pytest.approx(found / plain, rel=4 * noise)
        assert predicted == pytest.approx(found, rel=0.03 + 3 * error / found)
        assert without < found - 3 * error  # the control, a gain of 1 everywhere: sequoia's own table misses it
