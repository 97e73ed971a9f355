"""Heads that keep a root and a hidden state of each text: drafts of several texts are those of each, by one pass for all."""

import pytest
import torch

from tests.contracts.drafters import TREE, medusa, redrafter
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.drafters.redrafter import RedrafterHead
from treeopt.runtime.models.model import HiddenStates

DRAFTERS = {
    "medusa": (lambda target: medusa(target, TREE), MedusaHeads, "logits", 1),
    "redrafter": (lambda target: redrafter(target, 3, 4), RedrafterHead, "log_probs", 4),
}


@pytest.fixture(params=DRAFTERS)
def begun(target, request):
    """Return a drafter at four texts, the second of which is its root alone, and the method that makes a pass, and passes."""
    make, kind, method, passes = DRAFTERS[request.param]
    drafter = make(target)
    hidden = torch.randn((4, target.config.hidden), generator=torch.Generator().manual_seed(0)).to(target.device)
    for text in range(4):
        drafter.begin(text, [text + 3], HiddenStates((), hidden[text : text + 1]) if text != 1 else None)
    return drafter, kind, method, passes


def drafts(drafter, texts):
    proposals = drafter.propose(texts, [torch.Generator()] * len(texts))
    return [(each.tree, each.tokens.tolist()) for each in proposals]


def test_each_text_has_the_draft_that_it_has_alone(begun):
    drafter, *_ = begun
    alone = [drafts(drafter, [text])[0] for text in range(4)]
    assert len({tuple(tokens[1:]) for _, tokens in alone}) == 4
    assert drafts(drafter, range(4)) == alone
    assert drafts(drafter, [3, 1, 2]) == [alone[3], alone[1], alone[2]]
    assert drafts(drafter, [1]) == [alone[1]]


def test_texts_share_their_passes(begun, monkeypatch):
    drafter, kind, method, passes = begun
    counts, original = [], getattr(kind, method)

    def counted(*arguments, **keywords):
        counts.append(None)
        return original(*arguments, **keywords)

    monkeypatch.setattr(kind, method, counted)
    drafts(drafter, range(4))
    assert len(counts) == passes


def test_scores_are_those_of_each_text(target):
    drafter = medusa(target, TREE)
    for text in range(3):
        drafter.begin(text, [5], HiddenStates((), torch.full((1, target.config.hidden), [1.0, torch.nan, -1.0][text])))
    for text, proposal in enumerate(drafter.propose(range(3), [torch.Generator()] * 3)):
        assert proposal.scores.values.isfinite().all() == (text != 1)
