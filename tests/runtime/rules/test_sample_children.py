"""Children are sampled from the draft's distribution in the way of their rule, and in no other."""

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

DRAWS = 20_000

DISTRIBUTIONS = {
    "skewed": [0.5, 0.3, 0.15, 0.05],
    "even": [0.25, 0.25, 0.25, 0.25],
    "very skewed": [0.001, 0.979, 0.01, 0.01],
    "one zero": [0.6, 0.0, 0.3, 0.1],
    "two zeros": [0.0, 0.7, 0.0, 0.3],
    "one-hot": [0.0, 0.0, 1.0, 0.0],
}


def order_distribution(distribution, count, rule="sequoia"):
    """Return the probability of each order of `count` tokens."""
    return dict(ORDERS[rule](distribution, count))


def drawn(distribution, count, *, seed, draws=DRAWS, rule="sequoia"):
    probs = torch.tensor(distribution, dtype=torch.float32).expand(draws, -1)
    generator = torch.Generator().manual_seed(seed)
    return draw(rule, probs, torch.full((draws,), count), generator).view(draws, count)


def frequencies(orders, distribution):
    found = dict.fromkeys(distribution, 0)
    for order in map(tuple, orders.tolist()):
        found[order] += 1
    return list(found.values())


class TestDraw:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    @pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())
    @pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
    def test_orders_follow_the_distribution_of_drawing_one_by_one(self, rule, distribution, count, chi_squared):
        expected = order_distribution(distribution, count, rule)
        orders = drawn(distribution, count, seed=count, rule=rule)
        assert chi_squared(frequencies(orders, expected), list(expected.values())) > 1e-3

    @pytest.mark.parametrize("rule", ["target", "typical"])
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_where_nothing_is_drawn_the_likeliest_come_first(self, rule, count):
        assert set(map(tuple, drawn(DISTRIBUTIONS["skewed"], count, seed=0, draws=5, rule=rule).tolist())) == {
            tuple(range(count))
        }

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer"])
    def test_coarse_noise_is_found(self, rule, chi_squared, monkeypatch):
        distribution = torch.full((1, 500, 4096), 1 / 4096)  # coarse noise has 8 values, each of an even token
        p_values = []
        for noise in (uniform, coarse_uniform):
            monkeypatch.setattr("treeopt.runtime.rules.sample_children.uniform", noise)
            tokens = RULES[rule].draw(distribution, index_children([1] * 500, CPU), [torch.Generator().manual_seed(3)])
            p_values.append(chi_squared([(tokens % 2 == 0).sum(), (tokens % 2 == 1).sum()], [0.5, 0.5]))
        assert p_values[0] > 1e-3
        assert p_values[1] < 1e-20

    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    @pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())
    @pytest.mark.parametrize(
        ("sample", "rule"), [(sample_gumbel_top_k, "sequoia"), (sample_by_inverse_cdf, "specinfer")]
    )
    def test_draws_with_tensors_follow_it_too(self, sample, rule, distribution, count, chi_squared):
        expected = order_distribution(distribution, count, rule)
        probs = torch.tensor(distribution).expand(1, DRAWS, -1)
        orders = sample(probs, index_children([count] * DRAWS, CPU), [torch.Generator().manual_seed(count)]).view(
            DRAWS, count
        )
        assert chi_squared(frequencies(orders, expected), list(expected.values())) > 1e-3

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer"])
    def test_a_vocabulary_of_many_blocks_keeps_its_probabilities(self, rule, chi_squared):
        """The host kernel sums weights in blocks."""
        probs = torch.randn(2000, generator=torch.Generator().manual_seed(5)).mul(2).softmax(0)
        orders = torch.cat([drawn(probs.tolist(), 2, seed=seed, draws=4000, rule=rule) for seed in range(20)])
        second = probs if rule == "specinfer" else probs * ((probs / (1 - probs)).sum() - probs / (1 - probs))
        for tokens, expected in ((orders[:, 0], probs), (orders[:, 1], second)):
            part = torch.bincount(tokens, minlength=2000).view(40, 50).sum(1)
            weights = expected.double().view(40, 50).sum(1)
            assert chi_squared(part, weights / weights.sum()) > 1e-3

    def test_the_same_test_tells_distributions_apart(self, chi_squared):
        expected = order_distribution([0.5, 0.3, 0.15, 0.05], 2)
        near = order_distribution([0.47, 0.32, 0.16, 0.05], 2)
        assert chi_squared(frequencies(drawn(DISTRIBUTIONS["skewed"], 2, seed=0), expected), list(near.values())) < 1e-6

    def test_tokens_without_probability_come_last_and_evenly(self, chi_squared):
        orders = drawn([0.7, 0.0, 0.3, 0.0, 0.0], 5, seed=5)
        assert set(orders[:, :2].ravel().tolist()) == {0, 2}
        distribution = dict.fromkeys(permutations((1, 3, 4)), 1 / 6)
        assert chi_squared(frequencies(orders[:, 2:], distribution), list(distribution.values())) > 1e-3

    def test_rows_are_independent(self, chi_squared):
        distribution = [0.6, 0.3, 0.1]
        pairs = drawn(distribution, 1, seed=6).view(-1, 2)
        cells = np.bincount((pairs[:, 0] * 3 + pairs[:, 1]).numpy(), minlength=9)
        assert chi_squared(cells, np.outer(distribution, distribution)) > 1e-3

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.parametrize("rule", RULES)
    def test_the_distribution_is_left_as_it_was(self, rule, count, dtype):
        distribution = torch.tensor([DISTRIBUTIONS["skewed"], DISTRIBUTIONS["one zero"]], dtype=dtype)
        before = distribution.clone()
        draw(rule, distribution, torch.tensor([count, count]))
        assert torch.equal(distribution, before)

    def test_no_token_twice(self):
        distribution = torch.softmax(torch.randn((50, 11), generator=torch.Generator().manual_seed(0)) * 5, -1)
        orders = draw("sequoia", distribution, torch.full((50,), 11)).view(50, 11)
        assert torch.equal(orders.sort(-1).values, torch.arange(11).expand(50, 11))

    @pytest.mark.parametrize("counts", [[2, 0, 3, 1], [0, 0, 0, 4], [4, 4, 4, 4], [0, 1, 0, 0], [0, 0, 0, 0]])
    def test_children_stand_node_after_node_in_rank_order(self, counts):
        orders = [[2, 0, 3, 1], [0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]
        distribution = torch.zeros((4, 4), dtype=torch.float64)
        for row, order in zip(distribution, orders, strict=True):
            row[order] = torch.tensor(
                [1.0, 1e-60, 1e-120, 1e-180], dtype=torch.float64
            )  # no noise can change this order
        children = draw("sequoia", distribution, torch.tensor(counts))
        assert children.dtype == torch.int64
        assert children.tolist() == [x for order, n in zip(orders, counts, strict=True) for x in order[:n]]

    def test_no_nodes(self):
        assert draw("sequoia", torch.zeros((0, 4)), torch.zeros(0, dtype=torch.int64)).tolist() == []

    def test_the_same_state_draws_the_same_children(self):
        distribution = torch.full((20, 7), 1 / 7)
        generator = torch.Generator().manual_seed(8)
        state = generator.get_state()
        first, second = (draw("sequoia", distribution, torch.full((20,), 3), generator) for _ in range(2))
        assert not torch.equal(first, second)
        generator.set_state(state)
        assert torch.equal(draw("sequoia", distribution, torch.full((20,), 3), generator), first)

    def test_fewer_children_are_the_first_of_more(self):
        for seed in range(99):
            few, more = (drawn(DISTRIBUTIONS["one zero"], count, seed=seed, draws=1) for count in (2, 4))
            assert torch.equal(few, more[:, :2])

    def test_unknown_rule(self):
        with pytest.raises(InvalidValueError, match=r"rule: expected one of sequoia.*Got 'eagle'"):
            draw("eagle", torch.ones((1, 2)), torch.ones(1))

    def test_more_children_than_tokens(self):
        with pytest.raises(InvalidValueError, match=r"counts: expected at most 3, the vocabulary. Got 4"):
            draw("sequoia", torch.ones((2, 3)) / 3, torch.tensor([1, 4]))

    @pytest.mark.parametrize(("probs", "counts"), [((3,), (1,)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((1, 2, 3), (1,))])
    def test_wrong_shapes(self, probs, counts):
        with pytest.raises(InvalidValueError, match=r"draft_probs, counts: expected \(m, V\) and \(m,\)"):
            draw("sequoia", torch.ones(probs), torch.ones(counts, dtype=torch.int64))


class TestHalfPrecisionLogits:
    """Distributions are made and sampled in full precision, so that tokens keep the share that bfloat16 or float16 would lose."""

    CASES = (
        (torch.float16, [0.0, -17.5, -18.5, -20.0, -40.0]),  # e^-17.5 is less than float16 has
        (torch.bfloat16, [0.0, -93.5, -95.0, -95.5, -100.0]),  # e^-93.5 is less than bfloat16 has
        (torch.bfloat16, [0.0, -8.0, -9.0, -9.5, -10.0]),
    )

    @pytest.mark.parametrize(("dtype", "logits"), CASES)
    @pytest.mark.parametrize("rule", ["sequoia", "traversal"])
    def test_draws_follow_the_distribution(self, rule, dtype, logits, chi_squared):
        probs = distribution(torch.tensor([logits], dtype=dtype), Sampling(1.0))
        assert probs.dtype == torch.float32
        exact = np.exp(np.array(logits)) / np.exp(np.array(logits)).sum()
        np.testing.assert_allclose(probs[0].double().numpy(), exact, rtol=2e-3, atol=1e-44)
        expected = order_distribution(exact.tolist(), 3)
        generator = torch.Generator().manual_seed(1)
        orders = draw(rule, probs.expand(DRAWS, -1), torch.full((DRAWS,), 3), generator).view(DRAWS, 3)
        assert chi_squared(frequencies(orders, expected), list(expected.values())) > 1e-3

    @pytest.mark.parametrize(("dtype", "logits"), CASES[:2])
    def test_a_distribution_made_in_half_precision_is_found(self, dtype, logits, chi_squared):
        half = torch.softmax(torch.tensor([logits], dtype=dtype), -1)
        assert half[0, 1:].sum() == 0
        exact = np.exp(np.array(logits)) / np.exp(np.array(logits)).sum()
        expected = order_distribution(exact.tolist(), 3)
        generator = torch.Generator().manual_seed(1)
        orders = draw("sequoia", half.expand(DRAWS, -1), torch.full((DRAWS,), 3), generator).view(DRAWS, 3)
        assert chi_squared(frequencies(orders, expected), list(expected.values())) < 1e-9

    @pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal"])
    def test_the_tail_of_a_large_vocabulary_keeps_its_share(self, rule, chi_squared):
        logits = torch.full((2000,), -4.0, dtype=torch.bfloat16)
        logits[:3] = torch.tensor([5.0, 4.0, 3.0])
        probs = distribution(logits[None], Sampling(1.0))
        exact = np.exp(logits.double().numpy())
        exact /= exact.sum()
        generator = torch.Generator().manual_seed(2)
        tokens = draw(rule, probs.expand(6000, -1), torch.ones(6000, dtype=torch.int64), generator)
        counts = tokens.clamp(max=3).bincount(minlength=4).numpy()
        assert chi_squared(counts, np.append(exact[:3], exact[3:].sum())) > 1e-3
        first_half = ((tokens >= 3) & (tokens < 1000)).sum().item()
        assert chi_squared([first_half, counts[3] - first_half], [997 / 1997, 1000 / 1997]) > 1e-3


class TestLikeliest:
    def test_children_stand_node_after_node_likeliest_first(self):
        logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 4.0, -1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
        assert take_likeliest(logits, index_children([2, 0, 3], CPU)).tolist() == [1, 3, 3, 2, 1]
        assert take_likeliest(logits, index_children([1, 1, 1], CPU)).tolist() == [1, 0, 3]

    def test_it_is_the_limit_of_drawing_at_low_temperature(self):
        generator = torch.Generator().manual_seed(3)
        logits = torch.stack([torch.randperm(8, generator=generator) for _ in range(6)]).double()
        counts = torch.tensor([1, 2, 0, 8, 3, 4])
        distribution = torch.softmax(logits / 0.015, -1)
        assert distribution.min() > 0
        assert torch.equal(
            take_likeliest(logits, index_children(counts.tolist(), CPU)),
            draw("sequoia", distribution, counts, generator),
        )


class TestNoise:
    """It has 53 bits: a coarser grid favours tokens so rare that no sample of a bearable size shows it."""

    DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

    @pytest.fixture
    def kinds(self, monkeypatch):
        """Return the dtypes of all random numbers from here on."""
        kinds, rand = [], torch.rand

        def seen(*shape, **options):
            noise = rand(*shape, **options)
            kinds.append(noise.dtype)
            return noise

        monkeypatch.setattr(torch, "rand", seen)
        return kinds

    @pytest.mark.parametrize("count", [1, 2])
    def test_of_drawn_children(self, count, kinds):
        for dtype in self.DTYPES:
            draw("sequoia", torch.full((1, 4), 0.25, dtype=dtype), torch.tensor([count]))
        assert kinds == [torch.float64] * len(self.DTYPES)

    @pytest.mark.parametrize("rule", ["sequoia", "target"])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_of_a_decoder(self, target_folder, dtype, rule, kinds):
        model = load_model(target_folder, dtype=dtype)
        list(Decoder(model, model, level_widths([2, 1]), rule=rule, temperature=0.8).generate([3], 4))
        assert set(kinds) == {torch.float64}
