"""Acceptance per depth and rank, against a slow loop and decoding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import recorded
from tests.support.drawn import examples
from tests.support.passes import logits_after
from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance import positions as positions_module
from treeopt.profiler.acceptance.positions import PositionSampler, continue_prompts
from treeopt.profiler.decoding import Decoding
from treeopt.records.acceptance_counts import (
    MIN_REACHED,
    REJECTED,
    AcceptanceCounts,
    combine_counts,
    count_acceptance,
)
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.runner import GraphPool
from treeopt.trees import chain


def slow_counts(expected, accepted_rank, depth):
    """Follow every root down for as long as its sequence accepts."""
    reached, accepted = np.zeros(depth), np.zeros((depth, expected.shape[1]))
    for root in range(len(expected)):
        for level in range(min(depth, len(expected) - root)):
            reached[level] += 1
            accepted[level] += expected[root + level]
            if accepted_rank[root + level] == REJECTED:
                break
    return reached, accepted


class TestCounting:
    @settings(max_examples=examples(100), deadline=None)
    @given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.integers(1, 8))
    def test_counts_are_those_of_a_slow_loop(self, seed, positions, branching, rate, depth):
        generator = np.random.default_rng(seed)
        expected = generator.dirichlet(np.ones(branching + 1), positions)[:, :branching]
        accepted = generator.random(positions) < rate
        ranks = np.where(accepted, generator.integers(branching, size=positions), REJECTED)
        counts = count_acceptance(expected, ranks, depth)
        reached, accepted = slow_counts(expected, ranks, depth)
        np.testing.assert_allclose(counts.reached, reached)
        np.testing.assert_allclose(counts.accepted, accepted)


class TestTable:
    def test_standard_errors_are_the_spread_between_samples_of_sequences(self):
        generator = np.random.default_rng(0)
        depth_p = np.array([[0.6, 0.2], [0.4, 0.1]])

        def sample_sequence():
            """Return counts of a sequence whose rates and length differ from those of others."""
            rates = depth_p * generator.beta(4, 4, size=(2, 1)) * 1.2
            reached = np.array([generator.integers(20, 80), 0])
            accepted = np.zeros((2, 2))
            for level in range(2):
                accepted[level] = generator.multinomial(reached[level], [*rates[level], 1 - rates[level].sum()])[:2]
                reached[min(level + 1, 1)] = accepted[0].sum() if level == 0 else reached[1]
            return AcceptanceCounts(reached.astype(float), accepted)

        tables = [combine_counts([sample_sequence() for _ in range(60)]).table() for _ in range(250)]
        spread = np.std([table.p for table in tables], axis=0)
        stated = np.sqrt(np.mean([table.standard_error**2 for table in tables], axis=0))
        np.testing.assert_allclose(stated / spread, 1, atol=0.15)
        rate, reached = (np.mean([getattr(table, name).flat[0] for table in tables]) for name in ("p", "counts"))
        assert stated[0, 0] > 1.5 * np.sqrt(rate * (1 - rate) / reached)  # positions of a sequence are not independent

    def test_rarely_reached_depths_are_left_out(self):
        half = MIN_REACHED / 2
        counts = [AcceptanceCounts(np.array([30.0, half, half - 1, half]), np.full((4, 2), 2.0))] * 2
        sums = combine_counts(counts)
        assert sums.accepted.shape == (2, 2, 2)
        assert sums.reached.sum(axis=0).tolist() == [60, MIN_REACHED]

    @pytest.mark.parametrize(
        ("sequences", "reached", "reason"),
        [(0, 50.0, "two sequences or more.*Measure more"), (1, 50.0, "two sequences"), (2, 9.0, "20 positions in all")],
    )
    def test_too_few_sequences_or_positions_are_refused(self, sequences, reached, reason):
        with pytest.raises(TreeoptError, match=f"acceptance: expected .*{reason}"):
            combine_counts([AcceptanceCounts(np.array([reached]), np.array([[2.0]]))] * sequences)


class Counter:
    """Counts acceptance after one prompt after the other, with one sampler."""

    def __init__(self, target, draft, *, temperature, top_p=1.0, branching=3, depth=4, seed=0):
        decoding = Decoding(sampling=Sampling(temperature, top_p))
        self.models, self.depth = (target, draft), depth
        self.sampler = PositionSampler(target, decoding, branching=branching, seed=seed)

    def sample(self, prompt, positions):
        return continue_prompts(*self.models, [self.sampler], [prompt], positions)[0]

    def count(self, prompt, positions):
        sequence = self.sample(prompt, positions)
        return count_acceptance(sequence.expected, sequence.accepted_rank, self.depth)


class TestSequence:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_draft_equal_to_the_target_is_always_accepted(self, target, prompts, temperature):
        counter = Counter(target, target, temperature=temperature)
        table = combine_counts([counter.count(prompt, 20) for prompt in prompts]).table()
        assert table.p.shape == (4, 3)
        np.testing.assert_allclose(table.p[:, 0], 1, atol=1e-12)
        np.testing.assert_allclose(table.p[:, 1:], 0, atol=1e-12)
        assert 0 < table.standard_error[0, 0] < 0.05
        assert table.counts.tolist() == [120, 114, 108, 102]

    def test_ranks_at_temperature_zero_are_those_of_the_draft(self, target, draft, prompts):
        counter = Counter(target, draft, temperature=0.0, branching=5)
        counted = counter.sample(prompts[0], 30)
        tokens, expected = list(prompts[0]), []
        for _ in range(30):
            token = int(logits_after(target, tokens).argmax())
            expected.append((logits_after(draft, tokens).topk(5).indices == token).numpy())
            tokens.append(token)
        ranks = [list(row).index(True) if row.any() else REJECTED for row in expected]
        assert counted.accepted_rank.tolist() == ranks
        assert {REJECTED, 0, 1} < set(ranks)
        counts = count_acceptance(counted.expected, counted.accepted_rank, 4)
        reached, accepted = slow_counts(np.array(expected, float), ranks, 4)
        assert counts.reached.tolist() == reached.tolist()
        assert counts.accepted.tolist() == accepted.tolist()
        assert reached[1] > 0

    def test_counts_depend_on_the_seed_only(self, target, draft, prompts):
        first, second, other = (
            Counter(target, draft, temperature=0.8, seed=seed).count(prompts[0], 20).numbers for seed in (4, 4, 5)
        )
        assert first == second != other
        counter = Counter(target, draft, temperature=0.0)
        for prompt in prompts[:3]:  # earlier prompts change nothing
            expected = Counter(target, draft, temperature=0.0).count(prompt, 20).numbers
            assert counter.count(prompt, 20).numbers == expected

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_replayed_graphs_count_the_same(self, target, draft, prompts, temperature, monkeypatch):
        def count():
            samplers = [Counter(target, draft, temperature=temperature, seed=seed).sampler for seed in (1, 2)]
            counted = continue_prompts(target, draft, samplers, [prompts[0]] * len(samplers), 20)
            return [positions.accepted_rank.tolist() for positions in counted]

        expected, captured = count(), []
        monkeypatch.setattr(positions_module, "make_graph_pool", GraphPool)
        monkeypatch.setattr(
            GraphPool, "capture", lambda pool, work: captured.append(pool) or recorded.capture(pool, work)
        )
        assert count() == expected
        assert captured

    def test_end_token_ends_the_sequence(self, make_model, draft, prompts):
        tokens = Decoder(make_model(seed=1), None, chain(0), temperature=0.0).generate(prompts[0], 25)
        generated = list(tokens)
        target = make_model(seed=1, end_tokens=(generated[7],))
        counts = Counter(target, draft, temperature=0.0).count(prompts[0], 25)
        assert counts.reached[0] == generated.index(generated[7]) + 1
        assert Counter(target, draft, temperature=1.0).count([7], 1).reached[0] == 1  # a prompt of one token

    def test_ranks_are_accepted_as_often_as_expected(self, target, draft, prompts):
        """Four standard errors of 600 positions are at most 0.08."""
        counter = Counter(target, draft, temperature=1.0, branching=3, seed=9)
        counted = [counter.sample(prompt, 100) for prompt in prompts]
        expected = np.concatenate([positions.expected for positions in counted])
        ranks = np.concatenate([positions.accepted_rank for positions in counted])
        accepted = ranks[:, None] == np.arange(3)
        error = np.sqrt((expected * (1 - expected)).sum(axis=0))
        assert np.all(np.abs((accepted - expected).sum(axis=0)) < 4 * error)
        assert np.all(accepted.sum(axis=0) > 10)
        assert np.any(ranks == REJECTED)

    def test_chain_is_accepted_as_often_as_in_decoding(self, target, draft, prompts):
        """Of 120 sequences; four standard errors at depth 1 are 0.17."""
        depth, sequences, prompt, sampling = 2, 120, prompts[3], {"temperature": 0.7, "top_p": 0.8}
        counter = Counter(target, draft, branching=1, depth=depth, seed=1, **sampling)
        table = combine_counts([counter.count(prompt, depth) for _ in range(sequences)]).table()
        plain = Decoder(target, None, chain(0), seed=2, **sampling)
        chains = [Decoder(target, draft, chain(levels), seed=3 + levels, **sampling) for levels in range(1, depth + 1)]
        reached, accepted = np.zeros(depth), np.zeros(depth)
        for _ in range(sequences):
            root = [*prompt]
            for decoder in reversed(chains):  # the later the root, the fewer levels its sequence has left
                decoder.start(root)
                path = len(decoder.step().path) - 1
                reached[: min(path + 1, decoder.tree.max_depth)] += 1
                accepted[:path] += 1
                root += plain.generate(root, 1)
        rates = accepted / reached
        error = np.sqrt(rates * (1 - rates) / reached + table.standard_error[:, 0] ** 2)
        assert reached[-1] > 20
        assert np.all(np.abs(rates - table.p[:, 0]) < 4 * error)
