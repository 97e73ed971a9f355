"""Draws of what the measurements leave open: their distributions, computed in other ways, and what follows for a choice."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.solver.oracles import node_value, paths_of, rows_of
from tests.support.invented_machines import (
    DEPTH,
    MACHINES,
    TABLES,
    acceptance,
    acceptance_of,
    latency,
    profile,
    profile_of,
    seconds,
    timing,
)
from tests.support.planner_oracles import tokens
from treeopt.planner import Confidence, StepModel, step_model, token_draws
from treeopt.planner.model import confidence
from treeopt.planner.request import PlanRequest
from treeopt.planner.resampling import DRAWS, draw_medians, estimate
from treeopt.planner.token_draws import TokenDraws, draw_acceptance, draw_sequence_noise
from treeopt.records.acceptance import SequenceSums
from treeopt.records.latency import Timing
from treeopt.records.step_latency import RuleSteps, TimedTree
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

TREES = [
    chain(0),
    chain(1),
    chain(5),
    chains(2, 4),
    k_ary(2, 3),
    level_widths([4, 3, 5, 2, 1]),
    TokenTree([-1, *[0] * 6]),
]


def drawn(sequences: SequenceSums, draws: int, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> TokenDraws:
    """Return `draws` draws of a table."""
    monkeypatch.setattr(token_draws, "DRAWS", draws)
    generator = np.random.default_rng(seed)
    noise = draw_sequence_noise(len(sequences.reached), generator)
    return TokenDraws(p=draw_acceptance(acceptance_of(sequences), generator, noise)[0])


class TestTokens:
    @pytest.mark.parametrize("tree", TREES, ids=repr)
    @pytest.mark.parametrize("table", TABLES)
    def test_without_noise_every_draw_is_the_expected_number(self, table, tree):
        model = step_model(profile_of(MACHINES["nodes cost"], TABLES[table]), PlanRequest(raw=True))
        result = model.tokens.draw_tokens(tree)
        assert result.shape == (DRAWS,)
        assert result.tolist() == pytest.approx([tokens(paths_of(tree.parents.tolist()), TABLES[table])] * len(result))

    @pytest.mark.parametrize("table", ["falling", "better below a later child", "one row for every depth"])
    def test_every_draw_is_what_its_own_table_yields(self, table):
        rows = np.array(rows_of(TABLES[table], DEPTH if table != "one row for every depth" else 1))
        p = rows + np.random.default_rng(0).normal(0, 0.1, (20, *rows.shape))
        for tree in TREES:
            paths = paths_of(tree.parents.tolist())
            one_row = table == "one row for every depth"
            expected = [
                sum(node_value(path, (draw.tolist() * DEPTH if one_row else draw.tolist())) for path in paths)
                for draw in p
            ]
            assert TokenDraws(p=p).tokens(tree).tolist() == pytest.approx(np.clip(expected, 1, 1 + tree.max_depth))


def uneven_sequences(seed: int = 3, sequences: int = 60, depth: int = 4) -> SequenceSums:
    """Return sums over sequences some of which the draft follows far better than others, at every depth."""
    rng = np.random.default_rng(seed)
    reached, accepted = np.zeros((sequences, depth)), np.zeros((sequences, depth, 2))
    for text in range(sequences):
        first, left = rng.uniform(0.4, 0.8), float(rng.integers(60, 140))
        for d in range(depth):
            reached[text, d] = left
            accepted[text, d] = rng.multinomial(int(left), [first, 0.1, 0.9 - first])[:2]
            left = max(1.0, accepted[text, d].sum())
    return SequenceSums(reached, accepted)


def delta_method_variance(sequences: SequenceSums, tree: TokenTree, correlated: bool = True) -> float:
    """Return the variance of F(T): its gradient, and covariances of sums over clusters, all computed independently."""
    paths = paths_of(tree.parents.tolist())
    total = sequences.reached.sum(axis=0)
    p = sequences.accepted.sum(axis=0) / total[:, None]

    def expected(flat: np.ndarray) -> float:
        return tokens(paths, flat.reshape(p.shape).tolist())

    step = 1e-6
    gradient = [
        (expected(p.ravel() + step * unit) - expected(p.ravel() - step * unit)) / (2 * step) for unit in np.eye(p.size)
    ]
    residual = np.array(
        [
            (sequences.accepted[j] - p * sequences.reached[j][:, None]) / total[:, None]
            for j in range(len(sequences.reached))
        ]
    )
    residual = residual.reshape(len(residual), -1)
    covariance = residual.T @ residual * len(residual) / (len(residual) - 1)
    if not correlated:
        covariance = np.diag(np.diag(covariance))
    return float(gradient @ covariance @ gradient)


class TestAcceptance:
    @pytest.mark.parametrize("tree", [chain(4), k_ary(2, 4), chains(2, 3)], ids=repr)
    def test_errors_of_depths_are_correlated(self, tree, monkeypatch):
        sequences = uneven_sequences()
        result = drawn(sequences, 40_000, monkeypatch).tokens(tree)
        count = len(sequences.reached)
        wider = (count - 1) / (count - 3)  # of Student's t
        assert result.var() == pytest.approx(wider * delta_method_variance(sequences, tree), rel=0.04)
        assert result.mean() == pytest.approx(acceptance_of(sequences).table.expected_tokens(tree), rel=0.01)

    def test_uncorrelated_errors_would_have_another_variance(self):
        sequences = uneven_sequences()
        apart, together = (delta_method_variance(sequences, chain(4), correlated) for correlated in (False, True))
        assert apart < 0.6 * together

    def test_few_sequences_give_student_t(self, monkeypatch):
        for count in (4, 20):
            sequences = uneven_sequences(sequences=count)
            measured = acceptance_of(sequences)
            result = drawn(sequences, 60_000, monkeypatch, seed=count).p[:, 0, 0, 0]
            t = (result - measured.table.p[0, 0]) / measured.table.standard_error[0, 0]
            for share in (0.025, 0.1, 0.5, 0.9, 0.975):
                assert stats.t.cdf(np.quantile(t, share), count - 1) == pytest.approx(share, abs=0.01)

    def test_entries_without_sequences_are_independent(self, monkeypatch):
        monkeypatch.setattr(token_draws, "DRAWS", 40_000)
        error = [[0.01, 0.02], [0.03, 0.0]]
        measured = acceptance([[0.5, 0.2], [0.4, 0.1]], standard_error=error)
        result = draw_acceptance(measured, np.random.default_rng(0), None)[0].reshape(-1, 4)
        np.testing.assert_allclose(result.mean(axis=0), [0.5, 0.2, 0.4, 0.1], atol=6e-4)
        np.testing.assert_allclose(result.std(axis=0), np.ravel(error), rtol=0.02, atol=1e-9)
        assert np.abs(np.corrcoef(result[:, :3].T) - np.eye(3)).max() < 0.02

    @pytest.mark.parametrize("p", [[0.5, 0.2], [[0.5, 0.2]] * 3, [[[0.5], [0.2]]] * 2], ids=str)
    def test_a_table_without_errors_does_not_vary(self, p):
        result = draw_acceptance(acceptance(p), np.random.default_rng(0), None)[0]
        depths, ranks = (1, 1) if np.ndim(p) == 1 else (len(p), 1 if np.ndim(p) == 2 else len(p[0]))
        assert result.shape == (DRAWS, depths, ranks, np.shape(p)[-1])
        assert np.ptp(result, axis=0).max() == 0


class TestMedians:
    @pytest.mark.parametrize("samples", [9, 25, 100])
    def test_95_percent_of_the_draws_hold_the_true_median(self, samples):
        """Of samples of a skewed distribution: most passes take the least time, few take far longer."""
        rng = np.random.default_rng(samples)
        true = stats.gamma.median(2)
        repeats = 600  # three standard errors of the coverage are 0.027
        held = 0
        for _ in range(repeats):
            result = draw_medians((Timing(rng.gamma(2, size=samples)),), rng)
            low, high = np.quantile(result[:, 0], [0.025, 0.975])
            held += low <= true <= high
        assert held / repeats == pytest.approx(0.95, abs=0.027)

    def test_draws_are_at_least_the_smallest_sample(self):
        timing = Timing([0.3, 0.1, 0.7, 0.2, 0.9])
        result = draw_medians((timing, Timing([0.5])), np.random.default_rng(0))
        assert result.shape == (DRAWS, 2)
        assert result[:, 0].min() >= 0.1
        assert np.median(result[:, 0]) == pytest.approx(0.3, abs=0.03)


class TestEstimate:
    def test_ends_hold_95_percent(self):
        result = estimate(500.0, np.random.default_rng(0).permutation(1001).astype(float))
        assert (result.value, result.low, result.high) == (500, 25, 975)


NOISY = profile([latency(MACHINES["nodes cost"], noise=0.2)], [acceptance_of(uneven_sequences())])


class TestDraws:
    def test_all_trees_share_the_draws(self):
        """In each draw, trees of equal nodes differ by the one level that the deeper drafts more."""
        model = step_model(NOISY)
        costs, tokens = model.drawn_costs, model.tokens.draw_tokens
        apart_s = costs.tree_s(chain(3)) - costs.tree_s(TokenTree([-1, 0, 1, 1]))
        np.testing.assert_allclose(apart_s, costs.draft_s[:, 1], rtol=1e-9)
        assert costs.draft_s[:, 1].std() > 0
        assert np.corrcoef(tokens(chain(2)), tokens(chain(3)))[0, 1] > 0.9

    def test_speed_is_tokens_over_seconds(self):
        model, tree = step_model(NOISY), k_ary(2, 2)
        tokens, costs = model.tokens.draw_tokens(tree), model.drawn_costs
        expected = tokens / costs.tree_s(tree) * costs.tree_s(chain(0))
        np.testing.assert_allclose(model.draw_speedups([tree])[:, 0], expected, rtol=1e-12)


def sure_of(model: StepModel, *trees: TokenTree) -> Confidence:
    return confidence(model, trees)


def if_exact(result):
    """Return the probability if the weakest measurement were exact."""
    return result.if_exact[result.weakest]


SPEED = seconds(lambda n: 1.0 + 0.1 * n, lambda _: 0.1, 0.1)
"""With every draft accepted at 0.4, a chain of one and a chain of two tokens are about as fast."""


class TestConfidence:
    def test_nothing_uncertain_is_certain(self):
        model = step_model(profile_of(MACHINES["nodes almost free"], TABLES["falling"]))
        result = sure_of(model, k_ary(2, 2), chain(1), chain(2))
        assert (result.probability, if_exact(result)) == (1, 1)
        assert sure_of(model, chain(1), k_ary(2, 2)).probability == 0

    @pytest.mark.parametrize(("faster", "probability"), [(1.009, 1), (1.012, 0)])
    def test_as_good_is_nearly_as_fast(self, faster, probability):
        """A rival that is faster by 0.9 % is no reason to doubt; one that is faster by 1.2 % is."""
        model = step_model(profile_of(seconds(lambda _: 1.0, lambda _: 0.2), [1.2 * faster - 1]))
        assert model.speedup(chain(1)) == pytest.approx(faster)
        assert sure_of(model, chain(0), chain(1)).probability == probability

    def test_nearly_tied_trees_and_much_noise(self):
        def probability(noise: float) -> float:
            measured = acceptance([[0.62, 0.1], [0.62, 0.1]], standard_error=np.full((2, 2), noise))
            model = step_model(profile([latency(SPEED)], [measured]))
            assert model.speedup(chain(1)) == pytest.approx(model.speedup(chain(2)), rel=0.2)
            best, other = sorted((chain(1), chain(2)), key=model.speedup, reverse=True)
            return sure_of(model, best, other).probability

        assert 1 == probability(0.001) > probability(0.2) > 0.3

    @pytest.mark.parametrize("source", ["acceptance", "verify", "draft", "overhead"])
    def test_the_weakest_source_is_named(self, source):
        noise = dict.fromkeys(("verify", "draft", "overhead", "acceptance"), 0.0005) | {source: 0.4}
        measured = acceptance([[0.83]] * 3, standard_error=np.full((3, 1), 0.83 * noise["acceptance"]))
        machine = seconds(lambda n: 0.7 + 0.3 * n, lambda w: 0.3 * w, 0.3)
        model = step_model(profile([latency(machine, noise=noise)], [measured]))
        best_first = sorted((chain(0), chain(1), chain(2)), key=model.speedup, reverse=True)
        result = sure_of(model, *best_first)
        assert result.weakest == source
        assert result.probability < 0.97
        assert if_exact(result) == 1

    @pytest.mark.parametrize("steps_of", ["levels", "nodes", "branching"])
    def test_exact_overhead_includes_levels_nodes_and_branching(self, steps_of):
        made = profile([latency(SPEED)], [acceptance([[0.4, 0.2], [0.4, 0.2]])])
        probes = [chain(1), chain(2), chain(4), k_ary(2, 2), level_widths([3, 2]), TokenTree([-1, 0, 0])]
        rng = np.random.default_rng(1)
        trees = tuple(
            TimedTree(tree=tree, steps=timing(step_model(made).step_s(tree) + 0.1, 0.5, rng)) for tree in probes
        )
        (one,) = made.latencies
        model = step_model(replace(made, latencies=(replace(one, steps=(RuleSteps(rule="sequoia", trees=trees),)),)))
        rivals = {
            "levels": [chain(1), chain(2)],
            "nodes": [TokenTree([-1, 0, 0]), TokenTree([-1, 0, 0, 1, 1])],
            "branching": [chain(1), TokenTree([-1, 0, 0])],
        }[steps_of]
        result = sure_of(model, *sorted(rivals, key=model.speedup, reverse=True))

        assert result.probability < 0.9
        assert (result.weakest, if_exact(result)) == ("overhead", 1)

    def test_overhead_per_node_is_not_part_of_verification(self):
        made = profile([latency(SPEED)], [acceptance([[0.4, 0.2], [0.4, 0.2]])])
        model = step_model(made)
        spread = np.linspace(-0.5, 0.5, DRAWS)
        drawn = replace(model.drawn_costs, verify=replace(model.drawn_costs.verify, overhead_s=spread))
        model.__dict__["drawn_costs"] = drawn
        trees = sorted((chain(1), chain(2)), key=model.speedup, reverse=True)
        result = confidence(model, trees)

        assert result.weakest == "overhead"
        assert result.probability < if_exact(result) == 1
