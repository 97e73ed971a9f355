"""The decode loop: the target's own text at temperature 0 whatever the tree and the rule, as long as was asked for."""

import pytest
import torch

from tests.support.decoded import PROMPT, TREES, joined, random_tree
from treeopt.records.rules import RULES
from treeopt.runtime import Decoder
from treeopt.trees import chain, k_ary, level_widths

all_trees = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())


@pytest.fixture(scope="session")
def expected(target, greedy_text):
    return greedy_text(target, PROMPT, 40)


class TestTemperatureZero:
    @pytest.mark.parametrize("rule", RULES)
    @all_trees
    def test_the_text_is_that_of_plain_decoding(self, target, draft, tree, rule, expected):
        decoder = Decoder(target, draft, tree, rule=rule, temperature=0.0, lossy=True)
        tokens = list(decoder.generate(PROMPT, 40))
        assert tokens == expected
        assert {type(token) for token in tokens} == {int}

    def test_plain_decoding_needs_no_drafter(self, target, expected):
        assert list(Decoder(target, None, chain(0), temperature=0.0).generate(PROMPT, 40)) == expected

    @all_trees
    def test_a_draft_like_the_target_is_accepted_down_the_first_children(self, target, tree, expected):
        first_children, node = 0, 0
        while len(children := tree.children(node)) > 0:
            first_children, node = first_children + 1, children[0]
        steps = list(Decoder(target, target, tree, temperature=0.0).steps(PROMPT, 36))
        assert {len(step) for step in steps[:-1]} == {first_children + 1}
        assert joined(steps) == expected[:36]

    @pytest.mark.parametrize("tree", [chain(5), level_widths([2, 2, 2, 2, 2]), k_ary(2, 5)])
    def test_a_draft_like_the_target_yields_its_depth_and_one(self, target, tree):
        steps = list(Decoder(target, target, tree, temperature=0.0).steps(PROMPT, 36))
        assert [len(step) for step in steps] == [6] * 6

    @pytest.mark.parametrize("tree", [chain(3), k_ary(2, 3), random_tree(1)])
    def test_prompts_after_one_another_leave_no_state(self, target, draft, tree, greedy_text):
        decoder = Decoder(target, draft, tree, temperature=0.0)
        for prompt in ([1], [2, 2], PROMPT * 5, [1], PROMPT[:3]):
            assert list(decoder.generate(prompt, 15)) == greedy_text(target, prompt, 15)

    @pytest.mark.parametrize("tree", [chain(0), chain(5), level_widths([3, 3, 2, 1])])
    @pytest.mark.parametrize("drafts_like_target", [False, True])
    def test_a_text_may_be_as_long_as_the_models_were_trained_for(
        self, target, draft, tree, drafts_like_target, greedy_text
    ):
        prompt = PROMPT * 17
        decoder = Decoder(target, target if drafts_like_target else draft, tree, temperature=0.0)
        assert list(decoder.generate(prompt, 128 - len(prompt))) == greedy_text(target, prompt, 128 - len(prompt))

    def test_a_shorter_limit_changes_nothing_below_it(self, target, draft, expected):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0, max_text_tokens=47)
        assert decoder.max_text_tokens == 47
        assert list(decoder.generate(PROMPT, 40)) == expected


class TestLength:
    @pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 11])
    @pytest.mark.parametrize("temperature", [0.0, 0.6])
    def test_exactly_as_many_tokens_as_asked_for(self, target, draft, count, temperature):
        for model in (draft, target):
            decoder = Decoder(target, model, chain(4), temperature=temperature)
            assert len(list(decoder.generate(PROMPT, count))) == count

    def test_the_last_step_is_cut(self, target, expected):
        steps = list(Decoder(target, target, chain(4), temperature=0.0).steps(PROMPT, 12))
        assert [len(step) for step in steps] == [5, 5, 2]
        assert joined(steps) == expected[:12]


class TestSeed:
    def test_the_same_seed_gives_the_same_text(self, target, draft):
        def text(seed):
            decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.6, top_p=0.95, seed=seed)
            return [list(decoder.generate(PROMPT, 30)) for _ in range(2)]

        first, second = text(5)
        assert first != second
        assert text(5) == [first, second]
        assert text(6) != [first, second]

    def test_a_seed_of_its_own_makes_a_text_independent_of_those_before(self, target, draft):
        decoder, fresh = (Decoder(target, draft, k_ary(2, 2), temperature=0.8, seed=seed) for seed in (1, 2))
        expected = list(fresh.generate(PROMPT, 30, seed=9))
        list(decoder.generate([1, 2, 3], 17))
        assert list(decoder.generate(PROMPT, 30, seed=9)) == expected
        assert list(decoder.generate(PROMPT, 30, seed=9)) == expected
        assert list(decoder.generate(PROMPT, 30)) != expected
        assert list(decoder.generate(PROMPT, 30, seed=10)) != expected
        given_up = decoder.generate([4, 5], 20)
        next(given_up)
        assert list(decoder.generate(PROMPT, 30, seed=9)) == expected

    def test_a_seed_of_zero_is_one(self, target, draft):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.8)
        assert list(decoder.generate(PROMPT, 30, seed=0)) == list(decoder.generate(PROMPT, 30, seed=0))

    def test_the_global_generator_is_not_touched(self, target, draft):
        before = torch.get_rng_state()
        list(Decoder(target, draft, k_ary(2, 2), temperature=1.0).generate(PROMPT, 10))
        assert torch.equal(torch.get_rng_state(), before)
