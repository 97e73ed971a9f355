"""Trees that change within a text, after what was accepted, leave the text's distribution alone; looking ahead would not."""

import numpy as np
import pytest
from scipy import stats

from tests.support.table_model import Table, counted
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import chain, level_widths

SIZE, LENGTH, TEXTS = 4, 3, 900
TARGET, DRAFT = Table.random(5, SIZE, "target"), Table.random(6, SIZE, "draft")
TREES = [chain(0), chain(2), level_widths([2, 1])]


class ByLastStep:
    """Drafts nothing after a step that accepted nothing, and otherwise one of two trees by the last token."""

    def attach(self, decoder):
        self.decoder = decoder

    def largest_tree_nodes(self, tree):  # noqa: ARG002
        return max(tree.nodes for tree in TREES)

    def __call__(self, told):
        accepted = len(told.step.path) > 1 or told.proposal.tree.nodes == 1
        self.decoder.change_tree(TREES[1 + told.step.tokens[-1] % 2] if accepted else TREES[0])


class Unfair(ByLastStep):
    """Sees the token after the step, and decodes on until it likes it: no observer may change what was committed."""

    def __call__(self, told):
        super().__call__(told)
        if told.step.tokens[-1] == 0:
            told.step.tokens[-1] = 1


def p_value(observer, rule):
    decoder = Decoder(TARGET, DRAFT, TREES[1], rule=rule, temperature=1.0, seed=2, on_step=observer)
    counts, _ = counted(decoder, (0, 2), LENGTH, TEXTS, SIZE)
    expected = TARGET.joint(2, LENGTH, Sampling(1.0)).ravel() * TEXTS
    often = expected >= 5
    observed = np.append(counts.ravel()[often], counts.ravel()[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize("rule", ["sequoia", "target"])
def test_text_is_the_targets(rule):
    assert p_value(ByLastStep(), rule) > 1e-3


def test_what_is_no_such_text_is_found():
    assert p_value(Unfair(), "sequoia") < 1e-6
