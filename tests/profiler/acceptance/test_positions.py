"""Acceptance per depth and rank: counted like a slow loop would, and what decoding really does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import recorded
from tests.support.drawn import examples
from tests.support.passes import logits_after
from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance import positions
from treeopt.profiler.acceptance.positions import AcceptanceSequence, continue_prompt
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
from treeopt.trees import chain, level_widths


def slow_counts(expected, accepted_rank, depth):
    """Follow every root down for as long as its text accepts."""
    reached, accepted = np.zeros(depth), np.zeros((depth, expected.shape[1]))
    for root in range(len(expected)):
        for level in range(depth):
            position = root + level
            if position == len(expected):
                break
            reached[level] += 1
            accepted[level] += expected[position]
            if accepted_rank[position] == REJECTED:
                break
    return reached, accepted


def random_text(seed, positions, branching, rate):
    generator = np.random.default_rng(seed)
    expected = generator.dirichlet(np.ones(branching + 1), positions)[:, :branching]
    hit = generator.random(positions) < rate
    return expected, np.where(hit, generator.integers(branching, size=positions), REJECTED)


TEXTS = (st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4), st.floats(0, 1))


class TestCounting:
    @settings(max_examples=examples(100), deadline=None)
    @given(*TEXTS, st.integers(1, 8))
    def test_counts_are_those_of_a_slow_loop(self, seed, positions, branching, rate, depth):
        text = random_text(seed, positions, branching, rate)
        counts = count_acceptance(*text, depth)
        reached, accepted = slow_counts(*text, depth)
        np.testing.assert_allclose(counts.reached, reached)
        np.testing.assert_allclose(counts.accepted, accepted)

    def test_a_short_example(self):
        expected = np.array([[0.5, 0.25], [1.0, 0.0], [0.125, 0.5]])
        counts = count_acceptance(expected, np.array([1, REJECTED, 0]), 4)
        assert counts.reached.tolist() == [3, 1, 0, 0]
        assert counts.accepted.tolist() == [[1.625, 0.75], [1.0, 0.0], [0, 0], [0, 0]]

    def test_numbers_of_one_row(self):
        counts = AcceptanceCounts(np.array([3.0, 1.0]), np.array([[1.5, 0.5, 0.25], [1.0, 0.0, 0.0]]))
        assert counts.numbers == (3.0, 1.0, 1.5, 0.5, 0.25, 1.0, 0.0, 0.0)
        again = AcceptanceCounts.from_numbers(np.array(counts.numbers), 2)
        assert again.reached.tolist() == counts.reached.tolist()
        assert again.accepted.tolist() == counts.accepted.tolist()


class TestTable:
    def test_standard_errors_are_the_spread_between_samples_of_texts(self):
        generator = np.random.default_rng(0)
        depth_p = np.array([[0.6, 0.2], [0.4, 0.1]])

        def text():
            """Return a text whose own rates differ from other texts' and whose length does too."""
            rates = depth_p * generator.beta(4, 4, size=(2, 1)) * 1.2
            reached = np.array([generator.integers(20, 80), 0])
            accepted = np.zeros((2, 2))
            for level in range(2):
                accepted[level] = generator.multinomial(reached[level], [*rates[level], 1 - rates[level].sum()])[:2]
                reached[min(level + 1, 1)] = accepted[0].sum() if level == 0 else reached[1]
            return AcceptanceCounts(reached.astype(float), accepted)

        tables = [combine_counts([text() for _ in range(60)]).table() for _ in range(400)]
        spread = np.std([table.p for table in tables], axis=0)
        stated = np.sqrt(np.mean([table.standard_error**2 for table in tables], axis=0))
        np.testing.assert_allclose(stated / spread, 1, atol=0.12)
        rate, reached = (np.mean([getattr(table, name).flat[0] for table in tables]) for name in ("p", "counts"))
        assert stated[0, 0] > 1.5 * np.sqrt(rate * (1 - rate) / reached)  # positions of a text are not independent

    def test_depths_that_few_positions_reached_are_left_out(self):
        half = MIN_REACHED / 2
        texts = [AcceptanceCounts(np.array([30.0, half, half - 1, half]), np.full((4, 2), 2.0))] * 2
        sums = combine_counts(texts)
        assert sums.accepted.shape == (2, 2, 2)
        assert sums.reached.sum(axis=0).tolist() == [60, MIN_REACHED]

    @pytest.mark.parametrize("texts", [0, 1])
    def test_too_few_texts(self, texts):
        with pytest.raises(TreeoptError, match=r"acceptance: expected two sequences or more.*Measure more"):
            combine_counts([AcceptanceCounts(np.array([50.0]), np.array([[20.0]]))] * texts)

    def test_too_few_positions(self):
        with pytest.raises(TreeoptError, match="20 positions in all"):
            combine_counts([AcceptanceCounts(np.array([9.0]), np.array([[2.0]]))] * 2)


def text_of(target, draft, *, temperature, top_p=1.0, branching=3, depth=4, seed=0):
    sampling = Sampling(temperature, top_p)
    return AcceptanceSequence(target, draft, Decoding(sampling=sampling), branching=branching, depth=depth, seed=seed)


class TestText:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_draft_like_the_target_is_always_accepted(self, target, prompts, temperature):
        text = text_of(target, target, temperature=temperature)
        table = combine_counts([text.count(prompt, 20) for prompt in prompts]).table()
        assert table.p.shape == (4, 3)
        np.testing.assert_allclose(table.p[:, 0], 1, atol=1e-12)
        np.testing.assert_allclose(table.p[:, 1:], 0, atol=1e-12)
        assert 0 < table.standard_error[0, 0] < 0.05, "two texts that agree are no certainty"
        assert table.counts.tolist() == [120, 114, 108, 102]

    def test_at_temperature_zero_ranks_are_those_of_the_draft(self, target, draft, prompts):
        counts = text_of(target, draft, temperature=0.0, branching=5).count(prompts[0], 30)
        text, ranks = list(prompts[0]), []
        for _ in range(30):
            wanted = int(logits_after(target, text).argmax())
            ranks.append(logits_after(draft, text).topk(5).indices == wanted)
            text.append(wanted)
        expected = np.array([rank.numpy() for rank in ranks])
        accepted_rank = [list(row).index(True) if row.any() else REJECTED for row in expected]
        assert text_of(target, draft, temperature=0.0, branching=5).positions(
            prompts[0], 30
        ).accepted_rank.tolist() == (accepted_rank)
        assert {REJECTED, 0, 1} < set(accepted_rank)
        reached, accepted = slow_counts(expected.astype(float), accepted_rank, 4)
        assert counts.reached.tolist() == reached.tolist()
        assert counts.accepted.tolist() == accepted.tolist()
        assert reached[1] > 0

    def test_prompts_after_one_another_leave_no_state(self, target, draft, prompts):
        text = text_of(target, draft, temperature=0.0)
        counts = [text.count(prompt, 20).numbers for prompt in prompts]
        assert counts == [text_of(target, draft, temperature=0.0).count(prompt, 20).numbers for prompt in prompts]

    def test_the_same_seed_counts_the_same(self, target, draft, prompts):
        first, second, other = (
            text_of(target, draft, temperature=0.8, seed=seed).count(prompts[0], 20).numbers for seed in (4, 4, 5)
        )
        assert first == second != other

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_replayed_passes_count_the_same(self, target, draft, prompts, temperature, monkeypatch):
        def count():
            texts = [text_of(target, draft, temperature=temperature, seed=seed) for seed in (1, 2)]
            return [counted.accepted_rank.tolist() for counted in continue_prompt(target, draft, texts, prompts[0], 20)]

        expected, captured = count(), []
        monkeypatch.setattr(positions, "make_graph_pool", GraphPool)
        monkeypatch.setattr(
            GraphPool, "capture", lambda pool, work: captured.append(pool) or recorded.capture(pool, work)
        )
        assert count() == expected
        assert captured

    def test_the_end_token_ends_the_text(self, make_model, draft, prompts):
        free = make_model(seed=1)
        generated = text_after(free, prompts[0], 25)
        end = generated[7]
        target = make_model(seed=1, end_tokens=(end,))
        counts = text_of(target, draft, temperature=0.0).count(prompts[0], 25)
        assert counts.reached[0] == generated.index(end) + 1

    def test_a_text_that_ended_counts_no_more_while_others_go_on(self, make_model, draft, prompts):
        free = make_model(seed=1)
        end = text_after(free, prompts[0], 12)[5]
        target = make_model(seed=1, end_tokens=(end,))
        ways = [{"temperature": 0.0}, {"temperature": 2.0, "seed": 7}, {"temperature": 2.0, "seed": 12}]
        together = continue_prompt(target, draft, [text_of(target, draft, **way) for way in ways], prompts[0], 40)
        alone = [text_of(target, draft, **way).positions(prompts[0], 40) for way in ways]
        assert len({len(each.accepted_rank) for each in alone}) == 3  # they end at different places
        for one, other in zip(together, alone, strict=True):
            assert one.accepted_rank.tolist() == other.accepted_rank.tolist()
            np.testing.assert_allclose(one.expected, other.expected, atol=1e-5)

    def test_a_prompt_of_one_token(self, target, draft):
        assert text_of(target, draft, temperature=1.0).count([3], 10).reached[0] == 10

    def test_ranks_are_accepted_as_often_as_expected(self, target, draft, prompts):
        text = text_of(target, draft, temperature=1.0, branching=3, seed=9)
        positions = [text.positions(prompt, 100) for prompt in prompts]
        expected = np.concatenate([each.expected for each in positions])
        ranks = np.concatenate([each.accepted_rank for each in positions])
        happened = ranks[:, None] == np.arange(3)
        error = np.sqrt((expected * (1 - expected)).sum(axis=0))
        assert np.all(np.abs((happened - expected).sum(axis=0)) < 4 * error)
        assert np.all(happened.sum(axis=0) > 10)
        assert np.any(ranks == REJECTED)

    def test_a_chain_is_accepted_as_often_as_in_decoding(self, target, draft, prompts):
        depth, texts, prompt, sampling = 3, 180, prompts[3], {"temperature": 0.7, "top_p": 0.8}
        text = text_of(target, draft, branching=1, depth=depth, seed=1, **sampling)
        table = combine_counts([text.count(prompt, depth) for _ in range(texts)]).table()
        plain = Decoder(target, None, chain(0), seed=2, **sampling)
        chains = [Decoder(target, draft, chain(levels), seed=3 + levels, **sampling) for levels in range(1, depth + 1)]
        reached, accepted = np.zeros(depth), np.zeros(depth)
        for _ in range(texts):
            root = [*prompt]
            for decoder in reversed(chains):  # the later the root, the fewer levels its text has left
                decoder.start(root)
                path = len(decoder.step().path) - 1
                reached[: min(path + 1, decoder.tree.max_depth)] += 1
                accepted[:path] += 1
                root += plain.generate(root, 1)
        rates = accepted / reached
        error = np.sqrt(rates * (1 - rates) / reached + table.standard_error[:, 0] ** 2)
        assert reached[-1] > 20
        assert np.all(np.abs(rates - table.p[:, 0]) < 4 * error)

    def test_siblings_are_accepted_as_often_as_in_decoding(self, target, draft, prompts):
        tree, steps = level_widths([3]), 400
        text = text_of(target, draft, temperature=1.0, branching=3, depth=1, seed=7)
        table = combine_counts([text.count(prompts[2], 1) for _ in range(steps)]).table()
        decoder = Decoder(target, draft, tree, temperature=1.0, seed=8)
        accepted = np.zeros(3)
        for _ in range(steps):
            decoder.start(prompts[2])
            drafted = decoder.draft()
            path = decoder.accept(drafted, decoder.verify(drafted)).path
            if len(path) == 2:
                accepted[path[1] - 1] += 1
        error = np.sqrt(table.p[0] * (1 - table.p[0]) / steps + table.standard_error[0] ** 2)
        assert np.all(np.abs(accepted / steps - table.p[0]) < 4 * error)


def text_after(model, prompt, count):
    """Return so many tokens after a prompt, each the likeliest."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(logits_after(model, text).argmax()))
    return text[len(prompt) :]
