"""Decoding along recorded ranks: the path that a tree's drafts are accepted on, and what a walk adds up to."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.scripts import ROOT, script
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter, PromptLookupSetting
from treeopt.trees import TokenTree, chain

ranks = script(ROOT / "benchmarks" / "rank_decoding.py")
WIDE = TokenTree([-1, 0, 0, 0, 1, 1, 3, 4])


class Steady:
    """Every step takes a second for each node."""

    def step_s(self, _way, nodes, _context_tokens):
        return StepSeconds(0.0, float(nodes), 0.0)


def text_of(rows, prompt=(7, 8, 9)):
    """Return a text whose tokens have these ranks."""
    return ranks.RankText([*prompt, *(20 + place for place in range(len(rows)))], list(rows))


def target(vocabulary=64):
    return SimpleNamespace(config=SimpleNamespace(vocabulary=vocabulary))


def ranks_to(tree, node):
    """Return the ranks on the way from the root to a node."""
    return [] if node == 0 else [*ranks_to(tree, int(tree.parents[node])), int(tree.rank[node])]


def test_the_path_leads_to_the_deepest_node_whose_ranks_the_text_goes_on_with():
    generator = np.random.default_rng(0)
    depths = set()
    for tree in (WIDE, chain(0), chain(3)):
        for _ in range(60):
            text = generator.choice(3, size=7, p=[0.6, 0.3, 0.1]).tolist()
            at = int(generator.integers(8))
            right = [node for node in range(tree.nodes) if ranks_to(tree, node) == text[at:][: tree.depth[node]]]
            path = ranks.accepted_path(tree, text, at)
            assert path[-1] == max(right, key=lambda node: tree.depth[node])
            assert [int(tree.parents[node]) for node in path] == [-1, *path[:-1]]
            depths.add(len(path) - 1)
    assert depths == {0, 1, 2, 3}


@pytest.mark.parametrize("one_behind", [False, True])
def test_a_walk_tells_every_token_once_and_takes_longer_behind_a_change(one_behind):
    texts = [text_of([0, 0, 1, 0, 2, 0, 0]), text_of([1, 0, 0])]
    decoder = ranks.RankDecoder(target(), chain(1))
    told = []

    def observer(step):
        told.append(step)
        if one_behind and len(told) == 1:
            decoder.change_tree(chain(0))

    walked = ranks.walk(texts, decoder, [Steady()] * 2, observer)
    for number, text in enumerate(texts):
        new = [token for step in told if step.text == number for token in step.step.tokens]
        assert new == text.tokens[text.prompt_tokens :]
        first = next(step for step in told if step.text == number)
        assert len(first.tokens) == len(text.tokens)  # the same list, longer by now
    steps = len(told)
    assert walked.places.tolist()[:2] == [0, 2]
    if one_behind:  # two tokens with the chain, then one at a time
        assert steps == 1 + 8
        assert walked.seconds(0, with_observer=False) == pytest.approx(2 + 8 + ranks.CHANGE_S)
        assert walked.seconds(2, with_observer=False) == pytest.approx(8 + ranks.CHANGE_S)
    else:  # 00 | 10 | 2... a rank that is no child ends the step
        assert walked.seconds(0, with_observer=False) == 2 * steps
    assert all(len(step.step.path) == len(step.step.tokens) for step in told)
    assert walked.seconds(0) > walked.seconds(0, with_observer=False)


def test_prompt_lookup_is_walked_along_the_text_and_is_right_where_that_repeats_itself():
    text = ranks.RankText([1, 2, 3, 4, 5] * 6, [63] * 25)  # of ranks that no tree has
    decoder = ranks.RankDecoder(target(), PromptLookupSetting(2, 4))
    assert decoder.way == PromptLookupSetting(2, 4)
    told = []
    ranks.walk([text], decoder, [Steady()], told.append)
    committed = [len(step.step.tokens) for step in told]
    assert committed == [1, 5, 5, 5, 5, 4]  # nothing came twice in the prompt; the last step is cut
    assert [step.step.cut for step in told] == [False] * 5 + [True]
    decoder.change_tree(chain(3))
    assert decoder.way == chain(3)
    told.clear()
    ranks.walk([text], decoder, [Steady()], told.append)
    assert [len(step.step.tokens) for step in told] == [1] * 25


def test_prompt_lookup_that_is_changed_to_within_a_text_knows_what_came_before():
    text = ranks.RankText([1, 2, 3, 4, 5] * 6, [63] * 25)
    decoder = ranks.RankDecoder(target(), chain(0))
    told = []

    def observer(step):
        told.append(step)
        if len(told) == 3:
            decoder.change_drafter(PromptLookupDrafter(2, 4))

    ranks.walk([text], decoder, [Steady()], observer)
    assert [len(step.step.tokens) for step in told] == [1, 1, 1, 5, 5, 5, 5, 2]


def test_reading_takes_time_on_the_clock_that_nobody_waits_for():
    decoder = ranks.RankDecoder(target(), chain(0))
    text = text_of([0, 3, 1, 2])
    decoder.begin(0, text)
    for _ in text.ranks[:3]:
        decoder.step()
    start_s = decoder.now_s()
    logits = decoder.draft_logits(text.tokens[2:5])
    assert decoder.now_s() - start_s >= ranks.READING_S
    own = logits.gather(1, ranks.torch.tensor(text.tokens[3:6])[:, None])
    assert (logits > own).sum(dim=1).tolist() == [0, 3, 1]  # what came next has the rank that was recorded
