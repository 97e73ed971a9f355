"""A draft model at several texts: each is read up to its root, whatever it missed, and passes are shared."""

import pytest
import torch

from treeopt.runtime.drafters.draft_model import DraftModelSequence, root_logits
from treeopt.runtime.models.runner import Runner

TEXTS = [[5], [3, 1, 4, 1, 5, 9], [2, 7, 1], [8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4]]
MISSED = [0, 2, 1, 9]
"""Tokens of each text before its root that were not fed."""


@pytest.fixture
def drafts(draft):
    """Return the draft model at each of the texts, of which so much was missed."""
    found = [DraftModelSequence(draft, cache) for cache in draft.new_caches(32, len(TEXTS))]
    for at, text, missed in zip(found, TEXTS, MISSED, strict=True):
        at.begin(text[: len(text) - missed], None)
        at.pending += text[len(text) - missed :]
    return found


def test_the_logits_are_those_after_each_whole_text(draft, drafts, logits_after, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.drafters.draft_model.MAX_CATCH_UP_TOKENS", 4)
    runner = Runner(draft, max_nodes=1)
    found = root_logits(runner, drafts).cpu()
    for row, text, at in zip(found, TEXTS, drafts, strict=True):
        torch.testing.assert_close(row, logits_after(draft, text), atol=1e-4, rtol=1e-4)
        assert (at.cache.length, at.pending, at.root) == (len(text) - 1, text[-1:], text[-1])
    again = root_logits(runner, drafts).cpu()  # nothing but the roots is fed
    torch.testing.assert_close(again, found, atol=1e-4, rtol=1e-4)


def test_what_texts_need_at_the_same_time_is_one_pass(draft, drafts, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.drafters.draft_model.MAX_CATCH_UP_TOKENS", 4)
    fed, forward = [], draft.forward
    monkeypatch.setattr(
        draft,
        "forward",
        lambda inputs, *a, **k: fed.append([len(x.tokens) for x in inputs]) or forward(inputs, *a, **k),
    )
    root_logits(Runner(draft, max_nodes=1), drafts)
    assert fed == [[2, 4], [4], [1, 1, 2, 2]]  # the second and fourth text lack tokens, then the fourth alone
