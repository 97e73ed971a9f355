"""Children are drawn without replacement from the draft's law, and laws are what temperature and top-p make them."""

from itertools import permutations

import numpy as np
import pytest
import torch

from treeopt.errors import InvalidValueError
from treeopt.runtime import draw, probabilities
from treeopt.runtime.sampling import RULES, check_rule, likeliest

DRAWS = 20_000

LAWS = {
    "skewed": [0.5, 0.3, 0.15, 0.05],
    "even": [0.25, 0.25, 0.25, 0.25],
    "very skewed": [0.001, 0.979, 0.01, 0.01],
    "one zero": [0.6, 0.0, 0.3, 0.1],
    "two zeros": [0.0, 0.7, 0.0, 0.3],
    "one-hot": [0.0, 0.0, 1.0, 0.0],
}


def order_law(law, count):
    """Return the probability of each order of `count` tokens drawn one after the other."""
    found = {}
    for order in permutations(range(len(law)), count):
        probability, untried = 1.0, list(range(len(law)))
        for token in order:
            left = sum(law[x] for x in untried)
            probability *= law[token] / left if left > 0 else 1 / len(untried)
            untried.remove(token)
        found[order] = probability
    return found


def drawn(law, count, *, seed, draws=DRAWS):
    probs = torch.tensor(law, dtype=torch.float32).expand(draws, -1)
    generator = torch.Generator().manual_seed(seed)
    return draw("sequoia", probs, torch.full((draws,), count), generator).view(draws, count)


def frequencies(orders, law):
    found = dict.fromkeys(law, 0)
    for order in map(tuple, orders.tolist()):
        found[order] += 1
    return list(found.values())


class TestDraw:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    @pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
    def test_orders_follow_the_law_of_drawing_one_by_one(self, law, count, chi_squared):
        expected = order_law(law, count)
        assert chi_squared(frequencies(drawn(law, count, seed=count), expected), list(expected.values())) > 1e-3

    def test_the_same_test_tells_laws_apart(self, chi_squared):
        expected = order_law([0.5, 0.3, 0.15, 0.05], 2)
        with_replacement = order_law([0.47, 0.32, 0.16, 0.05], 2)
        assert (
            chi_squared(frequencies(drawn(LAWS["skewed"], 2, seed=0), expected), list(with_replacement.values())) < 1e-6
        )

    def test_tokens_without_probability_come_last_and_evenly(self, chi_squared):
        orders = drawn([0.7, 0.0, 0.3, 0.0, 0.0], 5, seed=5)
        assert set(orders[:, :2].ravel().tolist()) == {0, 2}
        law = dict.fromkeys(permutations((1, 3, 4)), 1 / 6)
        assert chi_squared(frequencies(orders[:, 2:], law), list(law.values())) > 1e-3

    def test_rows_are_independent(self, chi_squared):
        law = [0.6, 0.3, 0.1]
        pairs = drawn(law, 1, seed=6).view(-1, 2)
        cells = np.bincount((pairs[:, 0] * 3 + pairs[:, 1]).numpy(), minlength=9)
        assert chi_squared(cells, np.outer(law, law)) > 1e-3

    def test_no_token_twice(self):
        law = torch.softmax(torch.randn((50, 11), generator=torch.Generator().manual_seed(0)) * 5, -1)
        orders = draw("sequoia", law, torch.full((50,), 11)).view(50, 11)
        assert torch.equal(orders.sort(-1).values, torch.arange(11).expand(50, 11))

    @pytest.mark.parametrize("counts", [[2, 0, 3, 1], [0, 0, 0, 4], [4, 4, 4, 4], [0, 1, 0, 0], [0, 0, 0, 0]])
    def test_children_stand_node_after_node_in_rank_order(self, counts):
        orders = [[2, 0, 3, 1], [0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]
        law = torch.zeros((4, 4), dtype=torch.float64)
        for row, order in zip(law, orders, strict=True):
            row[order] = torch.tensor(
                [1.0, 1e-60, 1e-120, 1e-180], dtype=torch.float64
            )  # no noise can change this order
        children = draw("sequoia", law, torch.tensor(counts))
        assert children.dtype == torch.int64
        assert children.tolist() == [x for order, n in zip(orders, counts, strict=True) for x in order[:n]]

    def test_no_nodes(self):
        assert draw("sequoia", torch.zeros((0, 4)), torch.zeros(0, dtype=torch.int64)).tolist() == []

    def test_the_same_state_draws_the_same_children(self):
        law = torch.full((20, 7), 1 / 7)
        generator = torch.Generator().manual_seed(8)
        state = generator.get_state()
        first, second = (draw("sequoia", law, torch.full((20,), 3), generator) for _ in range(2))
        assert not torch.equal(first, second)
        generator.set_state(state)
        assert torch.equal(draw("sequoia", law, torch.full((20,), 3), generator), first)

    def test_fewer_children_are_the_first_of_more(self):
        law = LAWS["one zero"]
        assert torch.equal(drawn(law, 2, seed=9, draws=99), drawn(law, 4, seed=9, draws=99)[:, :2])

    def test_unknown_rule(self):
        for call in (check_rule, lambda rule: draw(rule, torch.ones((1, 2)), torch.ones(1))):
            with pytest.raises(InvalidValueError, match=r"rule: expected one of sequoia.*Got 'typical'"):
                call("typical")
        check_rule(RULES[0])

    def test_more_children_than_tokens(self):
        with pytest.raises(InvalidValueError, match=r"counts: expected at most 3, the vocabulary. Got 4"):
            draw("sequoia", torch.ones((2, 3)) / 3, torch.tensor([1, 4]))

    @pytest.mark.parametrize(("probs", "counts"), [((3,), (1,)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((1, 2, 3), (1,))])
    def test_wrong_shapes(self, probs, counts):
        with pytest.raises(InvalidValueError, match=r"draft_probs, counts: expected \(m, V\) and \(m,\)"):
            draw("sequoia", torch.ones(probs), torch.ones(counts, dtype=torch.int64))


def slow_law(logits, temperature, top_p):
    scores = [float(x) / temperature for x in logits]
    weights = [np.exp(x - max(scores)) for x in scores]
    law = [x / sum(weights) for x in weights]
    kept, total = [], 0.0
    for token in sorted(range(len(law)), key=lambda x: (-law[x], x)):
        kept.append(token)
        total += law[token]
        if total >= top_p:
            break
    return [law[x] / total if x in kept else 0.0 for x in range(len(law))]


class TestProbabilities:
    @pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])
    @pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0, 3.0])
    def test_equal_the_slow_way(self, temperature, top_p):
        logits = torch.randn((30, 17), generator=torch.Generator().manual_seed(1)) * 3
        law = probabilities(logits, temperature, top_p)
        assert law.dtype == torch.float32
        expected = torch.tensor([slow_law(row, temperature, top_p) for row in logits], dtype=torch.float32)
        torch.testing.assert_close(law, expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(law > 0, expected > 0) or top_p == 1.0

    def test_half_precision_logits_give_a_float32_law(self):
        logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
        torch.testing.assert_close(probabilities(logits, 1.0), torch.softmax(torch.tensor([[1.0, 2.0, 3.0]]), -1))

    def test_the_token_that_reaches_the_share_is_kept(self):
        logits = torch.log(torch.tensor([[0.125, 0.5, 0.25, 0.125]]))
        assert probabilities(logits, 1.0, 0.5).tolist() == [[0, 1, 0, 0]]
        torch.testing.assert_close(probabilities(logits, 1.0, 0.6), torch.tensor([[0, 2 / 3, 1 / 3, 0]]))

    def test_of_equal_tokens_the_first_are_kept(self):
        assert probabilities(torch.zeros((1, 4)), 1.0, 0.5).tolist() == [[0.5, 0.5, 0, 0]]

    def test_rows_do_not_mix(self):
        logits = torch.randn((5, 9), generator=torch.Generator().manual_seed(2))
        rows = torch.cat([probabilities(row[None], 0.7, 0.8) for row in logits])
        torch.testing.assert_close(probabilities(logits, 0.7, 0.8), rows)


class TestLikeliest:
    def test_children_stand_node_after_node_likeliest_first(self):
        logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 4.0, -1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
        assert likeliest(logits, torch.tensor([2, 0, 3]), 3).tolist() == [1, 3, 3, 2, 1]
        assert likeliest(logits, torch.tensor([1, 1, 1]), 1).tolist() == [1, 0, 3]

    def test_it_is_the_limit_of_drawing_at_low_temperature(self):
        generator = torch.Generator().manual_seed(3)
        logits = torch.stack([torch.randperm(8, generator=generator) for _ in range(6)]).double()
        counts = torch.tensor([1, 2, 0, 8, 3, 4])
        law = torch.softmax(logits / 0.015, -1)
        assert law.min() > 0
        assert torch.equal(likeliest(logits, counts, 8), draw("sequoia", law, counts, generator))
