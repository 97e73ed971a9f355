"""A decoder for any drafter: whatever is proposed, step after step, the text is the target's own."""

import pytest
import torch

from tests.support.decoded import PROMPT, joined
from treeopt.runtime import DraftingDecoder
from treeopt.runtime.drafters.drafter import Proposal, Wants
from treeopt.trees import TokenTree, chain, level_widths

LENGTH = 40
TREES = [chain(4), chain(4), level_widths([1, 3]), TokenTree([-1, 0, 0, 2, 3]), chain(4), level_widths([3, 1])]
"""Of five nodes all, some again and again: what is prepared for one must not serve another."""


def last_children(tree):
    """Return the nodes from the root down, each the last child of the one before."""
    path = [0]
    while children := tree.children(path[-1]):
        path.append(children[-1])
    return path


class Foretold:
    """Proposes trees that hold a known text along their last children, and next to it tokens that are wrong."""

    max_tokens = 5
    sampled = False
    wants = Wants()

    def __init__(self, text, trees, vocabulary):
        self._text, self._trees, self._vocabulary = text, trees, vocabulary

    def begin(self, text, tokens, states):  # noqa: ARG002
        self._place, self._step, self._root = 0, 0, tokens[-1]

    def propose(self, texts, noise):  # noqa: ARG002
        tree = self._trees[self._step % len(self._trees)]
        tokens = [self._root]
        for node in range(1, tree.nodes):
            wanted = self._text[(self._place + int(tree.depth[node]) - 1) % len(self._text)]
            wrong = int(tree.child_counts[tree.parents[node]] - 1 - tree.rank[node])  # 0 for the last child
            tokens.append((wanted + wrong) % self._vocabulary)
        return [Proposal(tree, torch.tensor(tokens))]

    def accept(self, texts, steps):  # noqa: ARG002
        tokens = steps[0].tokens
        self._place, self._step, self._root = self._place + len(tokens), self._step + 1, tokens[-1]

    def end(self, text):
        pass


@pytest.mark.parametrize("trees", [TREES, TREES[:3], TREES[::-1]], ids=["all", "three", "backwards"])
def test_trees_of_one_size_may_take_turns(target, greedy_text, trees):
    expected = greedy_text(target, PROMPT, LENGTH)
    decoder = DraftingDecoder(target, Foretold(expected, trees, 23), temperature=0.0)
    for _ in range(2):
        steps = list(decoder.steps(PROMPT, LENGTH))
        assert joined(steps) == expected
        foretold = [len(last_children(trees[number % len(trees)])) for number in range(len(steps) - 1)]
        assert list(map(len, steps[:-1])) == foretold  # all of it is accepted, and one token follows
