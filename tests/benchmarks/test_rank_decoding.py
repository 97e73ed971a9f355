"""Decoding along recorded ranks: the path that a tree's drafts are accepted on, and what a walk adds up to."""

import numpy as np
import pytest

from tests.scripts import ROOT, script
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import TokenTree, chain

ranks = script(ROOT / "benchmarks" / "rank_decoding.py")
WIDE = TokenTree([-1, 0, 0, 0, 1, 1, 3, 4])


class Steady:
    """Every step takes a second for each node."""

    def step_s(self, tree, _context_tokens):
        return StepSeconds(0.0, float(tree.nodes), 0.0)


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
    texts = [[0, 0, 1, 0, 2, 0, 0], [1, 0, 0]]
    decoder = ranks.RankDecoder(None, chain(1))
    told = []

    def observer(step):
        told.append(step)
        if one_behind and len(told) == 1:
            decoder.change_tree(chain(0))

    walked = ranks.walk(texts, decoder, Steady(), observer)
    for number, text in enumerate(texts):
        assert [token for step in told if step.text == number for token in step.step.tokens] == text
        first = next(step for step in told if step.text == number)
        assert len(first.tokens) == ranks.SHORT_TOKENS + len(text)  # the same list, longer by now
    steps = len(told)
    assert walked.places.tolist()[:2] == [0, 2]
    if one_behind:  # two tokens with the chain, then one at a time
        assert steps == 1 + 8
        assert walked.seconds(0, with_observer=False) == pytest.approx(2 + 8 + ranks.CHANGE_S)
        assert walked.seconds(2, with_observer=False) == pytest.approx(8 + ranks.CHANGE_S)
    else:  # 00 | 10 | 2... a rank that is no child ends the step
        assert walked.seconds(0, with_observer=False) == 2 * steps
        assert [step.step.cut for step in told].count(True) == sum(
            len(step.step.path) > len(step.step.tokens) for step in told
        )
    assert walked.seconds(0) > walked.seconds(0, with_observer=False)


def test_reading_takes_time_on_the_clock_that_nobody_waits_for():
    decoder = ranks.RankDecoder(None, chain(0))
    start_s = decoder.now_s()
    logits = decoder.draft_logits([0, 3, 1])
    assert decoder.now_s() - start_s >= ranks.READING_S
    own = logits.gather(1, ranks.torch.tensor([[3], [1], [0]]))
    assert (logits > own).sum(dim=1).tolist() == [3, 1, 0]  # tokens are called by their ranks
