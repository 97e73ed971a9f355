"""Children are sampled from the draft's distribution as their rule requires."""

from itertools import permutations

import numpy as np
import pytest
import torch

from tests.support.broken import coarse_uniform
from tests.support.enumeration import CPU, ORDERS
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, Sampling, distribution, draw, load_model
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.distributions import uniform
from treeopt.runtime.rules.sample_children import (
    index_children,
    sample_by_inverse_cdf,
    sample_gumbel_top_k,
    take_likeliest,
)
from treeopt.trees import level_widths

DRAWS = 8000
DISTRIBUTIONS = {
    "skewed": [0.5, 0.3, 0.15, 0.05],
    "even": [0.25, 0.25, 0.25, 0.25],
    "very skewed": [0.001, 0.979, 0.01, 0.01],
    "one zero": [0.6, 0.0, 0.3, 0.1],
    "two zeros": [0.0, 0.7, 0.0, 0.3],
    "one-hot": [0.0, 0.0, 1.0, 0.0],
}


def sample_orders(probs, count, *, seed, draws=DRAWS, sample=RULES["sequoia"].draw):
    """Return the children of `draws` nodes of one distribution, int64 (draws, count)."""
    rows = torch.as_tensor(probs, dtype=torch.float32).expand(1, draws, -1)
    tokens = sample(rows, index_children([count] * draws, CPU), [torch.Generator().manual_seed(seed)])
    return tokens.view(draws, count)


def order_p_value(chi_squared, orders, expected):
    """Return the p-value of sampled orders, given the probability of each order."""
    counts = dict.fromkeys(expected, 0)
    for order, count in zip(*np.unique(orders.numpy(), axis=0, return_counts=True), strict=True):
        counts[tuple(order.tolist())] += int(count)
    return chi_squared(list(counts.values()), list(expected.values()))


class TestDraw:
    @pytest.mark.parametrize(
        ("sample", "rule"),
        [
            (RULES["sequoia"].draw, "sequoia"),
            (RULES["specinfer"].draw, "specinfer"),
            (sample_gumbel_top_k, "sequoia"),
            (sample_by_inverse_cdf, "specinfer"),
        ],
    )
    @pytest.mark.parametrize("probs", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())
    def test_orders_follow_sequential_sampling(self, sample, rule, probs, chi_squared):
        for count in (1, 2, 3, 4):
            orders = sample_orders(probs, count, seed=count, sample=sample)
            assert order_p_value(chi_squared, orders, dict(ORDERS[rule](probs, count))) > 1e-3

    def test_another_distribution_is_found(self, chi_squared):
        expected = dict(ORDERS["sequoia"]([0.46, 0.325, 0.165, 0.05], 2))
        assert order_p_value(chi_squared, sample_orders(DISTRIBUTIONS["skewed"], 2, seed=0), expected) < 1e-6

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer"])
    def test_coarse_random_numbers_are_found(self, rule, chi_squared, monkeypatch):
        even = torch.full((1, 500, 4096), 1 / 4096)  # coarse numbers have 8 values, each of an even token
        p_values = []
        for numbers in (uniform, coarse_uniform):
            monkeypatch.setattr("treeopt.runtime.rules.sample_children.uniform", numbers)
            tokens = RULES[rule].draw(even, index_children([1] * 500, CPU), [torch.Generator().manual_seed(3)])
            p_values.append(chi_squared([(tokens % 2 == 0).sum(), (tokens % 2 == 1).sum()], [0.5, 0.5]))
        assert p_values[0] > 1e-3
        assert p_values[1] < 1e-20

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer"])
    def test_a_vocabulary_of_many_blocks_keeps_its_probabilities(self, rule, chi_squared):
        """The host kernel sums weights in blocks."""
        probs = torch.randn(2000, generator=torch.Generator().manual_seed(5)).mul(2).softmax(0)
        orders = torch.cat(
            [sample_orders(probs, 2, seed=seed, draws=4000, sample=RULES[rule].draw) for seed in range(10)]
        )
        second = probs if rule == "specinfer" else probs * ((probs / (1 - probs)).sum() - probs / (1 - probs))
        for tokens, expected in ((orders[:, 0], probs), (orders[:, 1], second)):
            counts = torch.bincount(tokens, minlength=2000).view(40, 50).sum(1)
            weights = expected.double().view(40, 50).sum(1)
            assert chi_squared(counts, weights / weights.sum()) > 1e-3

    def test_tokens_without_probability_come_last_in_random_order(self, chi_squared):
        orders = sample_orders([0.7, 0.0, 0.3, 0.0, 0.0], 5, seed=5)
        assert set(orders[:, :2].ravel().tolist()) == {0, 2}
        assert order_p_value(chi_squared, orders[:, 2:], dict.fromkeys(permutations((1, 3, 4)), 1 / 6)) > 1e-3

    def test_nodes_are_independent(self, chi_squared):
        probs = [0.6, 0.3, 0.1]
        pairs = sample_orders(probs, 1, seed=6).view(-1, 2)
        counts = np.bincount((pairs[:, 0] * 3 + pairs[:, 1]).numpy(), minlength=9)
        assert chi_squared(counts, np.outer(probs, probs)) > 1e-3

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("rule", RULES)
    def test_the_distribution_is_not_changed(self, rule, dtype):
        probs = torch.tensor([DISTRIBUTIONS["skewed"], DISTRIBUTIONS["one zero"]], dtype=dtype)
        before = probs.clone()
        for count in (1, 2):
            draw(rule, probs, torch.tensor([count, count]))
        assert torch.equal(probs, before)

    @pytest.mark.parametrize("counts", [[2, 0, 3, 1], [0, 0, 0, 4], [0, 0, 0, 0]])
    def test_children_are_ordered_by_node_and_rank(self, counts):
        orders = [[2, 0, 3, 1], [0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]
        probs = torch.zeros((4, 4), dtype=torch.float64)
        for row, order in zip(probs, orders, strict=True):
            row[order] = torch.tensor([1.0, 1e-60, 1e-120, 1e-180], dtype=torch.float64)  # chance cannot change it
        children = draw("sequoia", probs, torch.tensor(counts))
        assert children.dtype == torch.int64
        assert children.tolist() == [token for order, n in zip(orders, counts, strict=True) for token in order[:n]]

    def test_no_nodes_have_no_children(self):
        assert draw("sequoia", torch.zeros((0, 4)), torch.zeros(0, dtype=torch.int64)).tolist() == []

    def test_the_same_generator_state_draws_the_same_children(self):
        probs, generator = torch.full((20, 7), 1 / 7), torch.Generator().manual_seed(8)
        state = generator.get_state()
        first, second = (draw("sequoia", probs, torch.full((20,), 3), generator) for _ in range(2))
        assert not torch.equal(first, second)
        generator.set_state(state)
        assert torch.equal(draw("sequoia", probs, torch.full((20,), 3), generator), first)

    def test_fewer_children_are_the_first_of_more(self):
        for seed in range(99):
            few, more = (sample_orders(DISTRIBUTIONS["one zero"], count, seed=seed, draws=1) for count in (2, 4))
            assert torch.equal(few, more[:, :2])

    @pytest.mark.parametrize(
        ("rule", "probs", "counts", "reason"),
        [
            ("eagle", (1, 2), [1], r"rule: expected one of sequoia.*Got 'eagle'"),
            ("sequoia", (2, 3), [1, 4], r"counts: expected at most 3, the vocabulary. Got 4"),
            ("sequoia", (2, 3), [1, -1], r"counts: expected at least 0. Got -1"),
            ("sequoia", (2, 3), [1.0, 1.0], r"counts: expected whole numbers. Got torch.float32"),
            ("sequoia", (3,), [1], r"draft_probs, counts: expected \(m, V\) and \(m,\)"),
            ("sequoia", (2, 3), [1, 1, 1], r"draft_probs, counts: expected \(m, V\) and \(m,\)"),
            ("sequoia", (2, 3), [[1], [1]], r"draft_probs, counts: expected \(m, V\) and \(m,\)"),
        ],
    )
    def test_invalid_arguments_are_refused(self, rule, probs, counts, reason):
        with pytest.raises(InvalidValueError, match=reason):
            draw(rule, torch.ones(probs) / 3, torch.tensor(counts))

    def test_lists_are_converted(self):
        assert draw("target", [[0.1, 0.9], [0.8, 0.2]], [2, 1]).tolist() == [1, 0, 0]
        with pytest.raises(InvalidValueError, match=r"counts: expected a tensor\. Got None"):
            draw("target", [[0.1, 0.9]], None)


class TestHalfPrecisionLogits:
    """Distributions are computed and sampled in float32, so tokens keep probabilities that half precision would lose."""

    CASES = (
        (torch.float16, [0.0, -17.5, -18.5, -20.0, -40.0]),  # e^-17.5 is below the range of float16
        (torch.bfloat16, [0.0, -93.5, -95.0, -95.5, -100.0]),  # e^-93.5 is below the range of bfloat16
        (torch.bfloat16, [0.0, -8.0, -9.0, -9.5, -10.0]),
    )

    @staticmethod
    def exact(logits):
        weights = np.exp(np.array(logits))
        return weights / weights.sum()

    @pytest.mark.parametrize(("dtype", "logits"), CASES)
    def test_children_follow_the_distribution(self, dtype, logits, chi_squared):
        probs, exact = distribution(torch.tensor([logits], dtype=dtype), Sampling(1.0)), self.exact(logits)
        assert probs.dtype == torch.float32
        np.testing.assert_allclose(probs[0].double().numpy(), exact, rtol=2e-3, atol=1e-44)
        expected = dict(ORDERS["sequoia"](exact.tolist(), 3))
        assert order_p_value(chi_squared, sample_orders(probs[0], 3, seed=1), expected) > 1e-3

    @pytest.mark.parametrize(("dtype", "logits"), CASES[:2])
    def test_a_half_precision_distribution_is_found(self, dtype, logits, chi_squared):
        half = torch.softmax(torch.tensor(logits, dtype=dtype), -1)
        assert half[1:].sum() == 0
        expected = dict(ORDERS["sequoia"](self.exact(logits).tolist(), 3))
        assert order_p_value(chi_squared, sample_orders(half, 3, seed=1), expected) < 1e-9


class TestLikeliest:
    def test_children_are_ordered_by_node_and_rank(self):
        logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 4.0, -1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
        assert take_likeliest(logits, index_children([2, 0, 3], CPU)).tolist() == [1, 3, 3, 2, 1]
        assert take_likeliest(logits, index_children([1, 1, 1], CPU)).tolist() == [1, 0, 3]
        for rule in ("target", "typical"):
            assert draw(rule, logits, torch.tensor([2, 0, 3])).tolist() == [1, 3, 3, 2, 1]

    def test_sampling_at_low_temperature_takes_the_likeliest(self):
        generator = torch.Generator().manual_seed(3)
        logits = torch.stack([torch.randperm(8, generator=generator) for _ in range(6)]).double()
        counts = torch.tensor([1, 2, 0, 8, 3, 4])
        probs = torch.softmax(logits / 0.015, -1)
        assert probs.min() > 0
        likeliest = take_likeliest(logits, index_children(counts.tolist(), CPU))
        assert torch.equal(likeliest, draw("sequoia", probs, counts, generator))


@pytest.mark.parametrize("rule", ["sequoia", "target"])
def test_a_decoder_samples_with_53_bits(target_folder, rule, monkeypatch):
    """A coarser grid favours rare tokens by too little for a statistical test."""
    dtypes, rand = set(), torch.rand

    def record(*shape, **options):
        numbers = rand(*shape, **options)
        dtypes.add(numbers.dtype)
        return numbers

    monkeypatch.setattr(torch, "rand", record)
    model = load_model(target_folder, dtype=torch.bfloat16)
    list(Decoder(model, model, level_widths([2, 1]), rule=rule, temperature=0.8).generate([3], 4))
    assert dtypes == {torch.float64}
