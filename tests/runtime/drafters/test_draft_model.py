"""A draft model at several texts: each is read up to its root, whatever it missed, and passes are shared."""

import pytest
import torch

from treeopt.runtime.drafters.draft_model import DraftModel, outputs_at_roots
from treeopt.runtime.models.passes import TreePasses
from treeopt.runtime.models.together import last_logits

TEXTS = [[5], [3, 1, 4, 1, 5, 9], [2, 7, 1], [8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4]]
MISSED = [0, 2, 1, 9]
"""Tokens of each text before its root that were not fed."""


@pytest.fixture
def drafts(draft):
    """Return the draft model at each of the texts, of which so much was missed."""
    found = [DraftModel(draft, cache, TreePasses(draft, cache, 32)) for cache in draft.new_caches(32, len(TEXTS))]
    for at, text, missed in zip(found, TEXTS, MISSED, strict=True):
        at.begin(text[: len(text) - missed], None)
        at.pending += text[len(text) - missed :]
    return found


def test_the_logits_are_those_after_each_whole_text(draft, drafts, logits_after, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.drafters.draft_model.MOST_READ", 4)
    found = last_logits(outputs_at_roots(drafts)).cpu()
    for row, text, at in zip(found, TEXTS, drafts, strict=True):
        torch.testing.assert_close(row, logits_after(draft, text), atol=1e-4, rtol=1e-4)
        assert (at.cache.length, at.pending, at.root) == (len(text) - 1, text[-1:], text[-1])
    again = last_logits(outputs_at_roots(drafts)).cpu()  # nothing but the roots is fed
    torch.testing.assert_close(again, found, atol=1e-4, rtol=1e-4)


def test_what_texts_need_at_the_same_time_is_one_pass(draft, drafts, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.drafters.draft_model.MOST_READ", 4)
    fed, forward = [], draft.forward_ragged
    monkeypatch.setattr(
        draft, "forward_ragged", lambda parts, *a: fed.append([len(x.tokens) for x in parts]) or forward(parts, *a)
    )
    alone, forward_one = [], draft.forward
    monkeypatch.setattr(
        draft, "forward", lambda tokens, *a, **k: alone.append(len(tokens)) or forward_one(tokens, *a, **k)
    )
    outputs_at_roots(drafts)
    assert fed == [[2, 4], [1, 1, 2, 2]]  # two texts are behind; then the fourth still is
    assert alone == [4]
