"""The decode loop: the target's own text at temperature 0 whatever the tree and the rule, as long as was asked for."""

import pytest

from tests.support.decoded import PROMPT, TREES, joined
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
        steps = list(Decoder(target, target, tree, temperature=0.0).stream(PROMPT, 36))
        assert {len(step) for step in steps[:-1]} == {first_children + 1}
        assert joined(steps) == expected[:36]

    @pytest.mark.parametrize("tree", [chain(5), level_widths([2, 2, 2, 2, 2]), k_ary(2, 5)])
    def test_a_draft_like_the_target_yields_its_depth_and_one(self, target, tree):
        steps = list(Decoder(target, target, tree, temperature=0.0).stream(PROMPT, 36))
        assert [len(step) for step in steps] == [6] * 6

    def test_a_text_may_be_as_long_as_the_models_were_trained_for(self, target, greedy_text):
        """With a draft that is accepted to the end; others are in tests/contracts."""
        prompt = PROMPT * 17
        decoder = Decoder(target, target, chain(5), temperature=0.0)
        assert list(decoder.generate(prompt, 128 - len(prompt))) == greedy_text(target, prompt, 128 - len(prompt))

    def test_a_shorter_limit_changes_nothing_below_it(self, target, draft, expected):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0, max_sequence_tokens=47)
        assert decoder.max_sequence_tokens == 47
        assert list(decoder.generate(PROMPT, 40)) == expected


def test_the_last_step_is_cut(target, expected):
    steps = list(Decoder(target, target, chain(4), temperature=0.0).stream(PROMPT, 12))
    assert [len(step) for step in steps] == [5, 5, 2]
    assert joined(steps) == expected[:12]


def test_a_seed_of_zero_is_one(target, draft):
    decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.8)
    assert list(decoder.generate(PROMPT, 30, seed=0)) == list(decoder.generate(PROMPT, 30, seed=0))
