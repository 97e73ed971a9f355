"""Acceptance per depth and rank: counted like a slow loop would, and what decoding really does."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance import LEAST_COUNT, AcceptanceText, TextCounts, acceptance_table, conditional_counts
from treeopt.runtime import Decoder
from treeopt.trees import chain, level_widths


def slow_counts(expected, hit, depth):
    """Follow every root down for as long as its text accepts."""
    reached, accepted = np.zeros(depth), np.zeros((depth, expected.shape[1]))
    for root in range(len(expected)):
        for level in range(depth):
            position = root + level
            if position == len(expected):
                break
            reached[level] += 1
            accepted[level] += expected[position]
            if not hit[position]:
                break
    return reached, accepted


class TestCounting:
    @settings(max_examples=100, deadline=None)
    @given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 8), st.integers(0, 10_000), st.floats(0, 1))
    def test_counts_are_those_of_a_slow_loop(self, positions, branching, depth, seed, rate):
        generator = np.random.default_rng(seed)
        expected = generator.dirichlet(np.ones(branching + 1), positions)[:, :branching]
        hit = generator.random(positions) < rate
        counts = conditional_counts(expected, hit, depth)
        reached, accepted = slow_counts(expected, hit, depth)
        np.testing.assert_allclose(counts.reached, reached)
        np.testing.assert_allclose(counts.accepted, accepted)

    def test_a_short_example(self):
        expected = np.array([[0.5, 0.25], [1.0, 0.0], [0.125, 0.5]])
        counts = conditional_counts(expected, np.array([True, False, True]), 4)
        assert counts.reached.tolist() == [3, 1, 0, 0]
        assert counts.accepted.tolist() == [[1.625, 0.75], [1.0, 0.0], [0, 0], [0, 0]]

    def test_numbers_of_one_row(self):
        counts = TextCounts(np.array([3.0, 1.0]), np.array([[1.5, 0.5, 0.25], [1.0, 0.0, 0.0]]))
        assert counts.numbers == (3.0, 1.0, 1.5, 0.5, 0.25, 1.0, 0.0, 0.0)
        again = TextCounts.from_numbers(np.array(counts.numbers), 2)
        assert again.reached.tolist() == counts.reached.tolist()
        assert again.accepted.tolist() == counts.accepted.tolist()


class TestTable:
    def test_rows_are_ratios_of_sums(self):
        texts = [
            TextCounts(np.array([30.0, 20.0]), np.array([[15.0, 3.0], [4.0, 2.0]])),
            TextCounts(np.array([10.0, 5.0]), np.array([[9.0, 1.0], [1.0, 0.0]])),
        ]
        table = acceptance_table(texts)
        np.testing.assert_allclose(table.p, [[0.6, 0.1], [0.2, 0.08]])
        assert table.counts.tolist() == [40, 25]
        # residuals of the two texts: a - p r = -3 and 3, so sqrt((9 + 9) * 2 / 1) / 40
        assert table.standard_error[0, 0] == pytest.approx(0.15)

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
            return TextCounts(reached.astype(float), accepted)

        tables = [acceptance_table([text() for _ in range(60)]) for _ in range(400)]
        spread = np.std([table.p for table in tables], axis=0)
        stated = np.sqrt(np.mean([table.standard_error**2 for table in tables], axis=0))
        np.testing.assert_allclose(stated / spread, 1, atol=0.12)
        rate, reached = (np.mean([getattr(table, name).flat[0] for table in tables]) for name in ("p", "counts"))
        assert stated[0, 0] > 1.5 * np.sqrt(rate * (1 - rate) / reached)  # positions of a text are not independent

    def test_depths_that_few_positions_reached_are_left_out(self):
        half = LEAST_COUNT / 2
        texts = [TextCounts(np.array([30.0, half, half - 1, half]), np.full((4, 2), 2.0))] * 2
        table = acceptance_table(texts)
        assert table.p.shape == (2, 2)
        assert table.counts.tolist() == [60, LEAST_COUNT]

    @pytest.mark.parametrize("texts", [0, 1])
    def test_too_few_texts(self, texts):
        with pytest.raises(TreeoptError, match=r"acceptance: expected two texts or more.*Measure more"):
            acceptance_table([TextCounts(np.array([50.0]), np.array([[20.0]]))] * texts)

    def test_too_few_positions(self):
        with pytest.raises(TreeoptError, match="20 positions in all"):
            acceptance_table([TextCounts(np.array([9.0]), np.array([[2.0]]))] * 2)


def text_of(target, draft, *, temperature, top_p=1.0, branching=3, depth=4, seed=0):
    return AcceptanceText(
        target,
        draft,
        rule="sequoia",
        temperature=temperature,
        top_p=top_p,
        branching=branching,
        depth=depth,
        seed=seed,
    )


class TestText:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_draft_like_the_target_is_always_accepted(self, target, prompts, temperature):
        text = text_of(target, target, temperature=temperature)
        table = acceptance_table([text.count(prompt, 20) for prompt in prompts])
        assert table.p.shape == (4, 3)
        np.testing.assert_allclose(table.p[:, 0], 1, atol=1e-12)
        np.testing.assert_allclose(table.p[:, 1:], 0, atol=1e-12)
        np.testing.assert_allclose(table.standard_error, 0, atol=1e-12)
        assert table.counts.tolist() == [120, 114, 108, 102]

    def test_at_temperature_zero_ranks_are_those_of_the_draft(self, target, draft, prompts):
        counts = text_of(target, draft, temperature=0.0, branching=5).count(prompts[0], 30)
        text, ranks = list(prompts[0]), []
        for _ in range(30):
            wanted = int(logits_after(target, text).argmax())
            ranks.append(logits_after(draft, text).topk(5).indices == wanted)
            text.append(wanted)
        expected = np.array([rank.numpy() for rank in ranks])
        reached, accepted = slow_counts(expected.astype(float), expected.any(axis=1), 4)
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

    def test_the_end_token_ends_the_text(self, make_model, draft, prompts):
        free = make_model(seed=1)
        text = list(prompts[0])
        for _ in range(25):
            text.append(int(logits_after(free, text).argmax()))
        generated = text[len(prompts[0]) :]
        end = generated[7]
        target = make_model(seed=1, end_tokens=(end,))
        counts = text_of(target, draft, temperature=0.0).count(prompts[0], 25)
        assert counts.reached[0] == generated.index(end) + 1

    def test_a_prompt_of_one_token(self, target, draft):
        assert text_of(target, draft, temperature=1.0).count([3], 10).reached[0] == 10

    @pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}])
    def test_a_chain_is_accepted_as_often_as_in_decoding(self, target, draft, prompts, sampling):
        depth, texts, prompt = 3, 250, prompts[3]
        text = text_of(target, draft, branching=1, depth=depth, seed=1, **sampling)
        table = acceptance_table([text.count(prompt, depth) for _ in range(texts)])
        plain = Decoder(target, None, chain(0), seed=2, **sampling)
        chains = [Decoder(target, draft, chain(levels), seed=3 + levels, **sampling) for levels in range(1, depth + 1)]
        reached, accepted = np.zeros(depth), np.zeros(depth)
        for _ in range(texts):
            root = [*prompt]
            for decoder in reversed(chains):  # the later the root, the fewer levels its text has left
                decoder.start(root)
                path = len(decoder.step()) - 1
                reached[: min(path + 1, decoder.tree.max_depth)] += 1
                accepted[:path] += 1
                root += plain.generate(root, 1)
        rates = accepted / reached
        error = np.sqrt(rates * (1 - rates) / reached + table.standard_error[:, 0] ** 2)
        assert reached[-1] > 20
        assert np.all(np.abs(rates - table.p[:, 0]) < 4 * error)

    def test_siblings_are_accepted_as_often_as_in_decoding(self, target, draft, prompts):
        steps, tree = 800, level_widths([3])
        text = text_of(target, draft, temperature=1.0, branching=3, depth=1, seed=7)
        table = acceptance_table([text.count(prompts[2], 1) for _ in range(steps)])
        decoder = Decoder(target, draft, tree, temperature=1.0, seed=8)
        accepted = np.zeros(3)
        for _ in range(steps):
            decoder.start(prompts[2])
            drafted = decoder.draft()
            path = decoder.judge(drafted, drafted.tokens.tolist(), decoder.score(drafted.tokens)).path
            if len(path) == 2:
                accepted[path[1] - 1] += 1
        error = np.sqrt(table.p[0] * (1 - table.p[0]) / steps + table.standard_error[0] ** 2)
        assert np.all(np.abs(accepted / steps - table.p[0]) < 4 * error)


def logits_after(model, text):
    """Return the logits (V,) after a text from a pass over nothing but this text."""
    cache = model.new_cache(len(text))
    model.prefill(torch.tensor(text[:-1]), cache)
    return model.forward(torch.tensor(text[-1:]), torch.tensor([len(text) - 1]), cache, None)[0]
