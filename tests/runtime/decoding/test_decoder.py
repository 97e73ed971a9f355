"""The decode loop: at temperature 0 the target's own sequence, whatever the tree and the rule."""

import pytest

from tests.support.decoded import PROMPT, TREES, joined
from treeopt.errors import TreeoptError
from treeopt.records.rules import RULES
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import TokenTree, chain, k_ary, level_widths


@pytest.fixture(scope="session")
def expected(target, greedy_text):
    return greedy_text(target, PROMPT, 40)


class TestTemperatureZero:
    @pytest.mark.parametrize(
        ("tree", "rule"), [*((tree, "sequoia") for tree in TREES.values()), *((k_ary(2, 3), rule) for rule in RULES)]
    )
    def test_any_tree_gives_the_tokens_of_plain_decoding(self, target, draft, tree, rule, expected):
        decoder = Decoder(target, draft, tree, rule=rule, temperature=0.0, lossy=True)
        assert list(decoder.generate(PROMPT, 40)) == expected

    def test_plain_decoding_needs_no_drafter(self, target, expected):
        assert list(Decoder(target, None, chain(0), temperature=0.0).generate(PROMPT, 40)) == expected

    @pytest.mark.parametrize("tree", [*TREES.values(), level_widths([2, 2, 2, 2, 2])])
    def test_the_target_as_draft_is_accepted_along_first_children(self, target, tree, expected):
        length, node = 0, 0
        while len(children := tree.children(node)) > 0:
            length, node = length + 1, children[0]
        steps = list(Decoder(target, target, tree, temperature=0.0).stream(PROMPT, 36))
        assert {len(step) for step in steps[:-1]} == {length + 1}
        assert joined(steps) == expected[:36]

    def test_accepted_drafts_may_reach_the_trained_length(self, target, greedy_text):
        prompt = PROMPT * 17
        decoder = Decoder(target, target, chain(5), temperature=0.0)
        assert list(decoder.generate(prompt, 128 - len(prompt))) == greedy_text(target, prompt, 128 - len(prompt))

    def test_a_lower_length_limit_changes_nothing_below_it(self, target, draft, expected):
        decoder = Decoder(target, draft, k_ary(2, 2), temperature=0.0, max_sequence_tokens=47)
        assert decoder.max_sequence_tokens == 47
        assert list(decoder.generate(PROMPT, 40)) == expected


def test_the_last_step_is_cut(target, expected):
    steps = list(Decoder(target, target, chain(4), temperature=0.0).stream(PROMPT, 12))
    assert [len(step) for step in steps] == [5, 5, 2]
    assert joined(steps) == expected[:12]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, 0.9, 7)])
def test_a_sampling_record_equals_its_fields(target, draft, sampling):
    tree, fields = k_ary(2, 2), {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    options = ({"sampling": sampling}, fields, {"sampling": Sampling(3.0)})
    whole, parts, other = (list(Decoder(target, draft, tree, seed=5, **each).generate(PROMPT, 24)) for each in options)
    assert whole == parts != other


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_stale_iterator_raises_once_and_leaves_the_new_sequence_alone(target, draft, steps):
    decoder = Decoder(target, draft, chain(2), temperature=0.8)
    stale = decoder.stream(PROMPT, 60)
    for _ in range(steps):
        next(stale)
    new = decoder.stream([7, 8, 9, 10, 7], 60, seed=6)
    first = next(new)
    with pytest.raises(TreeoptError, match=r"another sequence has begun on this decoder. Make a decoder for each"):
        next(stale)
    with pytest.raises(StopIteration):
        next(stale)
    alone = Decoder(target, draft, chain(2), temperature=0.8)
    assert [*first, *joined(new)] == list(alone.generate([7, 8, 9, 10, 7], 60, seed=6))


def test_two_decoders_share_models_only(target, draft):
    def generate(tree: TokenTree):
        return Decoder(target, draft, tree, temperature=0.8).generate(PROMPT, 25, seed=5)

    trees = chain(2), k_ary(2, 2)
    interleaved = list(zip(*map(generate, trees), strict=True))
    assert [list(tokens) for tokens in zip(*interleaved, strict=True)] == [list(generate(tree)) for tree in trees]
