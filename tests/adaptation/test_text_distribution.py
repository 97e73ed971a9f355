"""Changing the tree after the accepted tokens preserves the output's distribution."""

import numpy as np
import pytest
from scipy import stats

from tests.support.table_model import Table, counted
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import chain, level_widths

SIZE, LENGTH, TEXTS = 4, 3, 600
TARGET, DRAFT = Table.random(5, SIZE, "target"), Table.random(6, SIZE, "draft")
TREES = [chain(0), chain(2), level_widths([2, 1])]


class TreeByLastStep:
    """Drafts nothing after a step without accepted drafts, else one of two trees by the last token."""

    def attach(self, decoder):
        self.decoder = decoder

    def largest_tree_nodes(self, tree):  # noqa: ARG002
        return max(tree.nodes for tree in TREES)

    def __call__(self, event):
        accepted = len(event.step.path) > 1 or event.proposal.tree.nodes == 1
        self.decoder.change_tree(TREES[1 + event.step.tokens[-1] % 2] if accepted else TREES[0])


class ReplacesTokens(TreeByLastStep):
    """Changes committed tokens, which no observer may do."""

    def __call__(self, event):
        super().__call__(event)
        if event.step.tokens[-1] == 0:
            event.step.tokens[-1] = 1


def p_value(observer, rule):
    decoder = Decoder(TARGET, DRAFT, TREES[1], rule=rule, temperature=1.0, seed=2, on_step=observer)
    counts, _ = counted(decoder, (0, 2), LENGTH, TEXTS, SIZE)
    expected = TARGET.joint(2, LENGTH, Sampling(1.0)).ravel() * TEXTS
    often = expected >= 5
    observed, expected = (np.append(values[often], values[~often].sum()) for values in (counts.ravel(), expected))
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("rule", ["sequoia", "target"])
def test_output_follows_the_target(rule):
    assert p_value(TreeByLastStep(), rule) > 1e-3


@pytest.mark.slow
def test_changed_tokens_are_detected():
    """Negative control."""
    assert p_value(ReplacesTokens(), "sequoia") < 1e-6
