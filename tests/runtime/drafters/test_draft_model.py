"""A draft model at several sequences reads each up to its root, in shared passes."""

import pytest
import torch

from tests.support.passes import count_fed_tokens
from treeopt.runtime.drafters.draft_model import DraftModelSequence, root_logits
from treeopt.runtime.models.runner import Runner

TEXTS = [[5], [3, 1, 4, 1, 5, 9], [2, 7, 1], [8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4]]
PENDING = [0, 2, 1, 9]
"""Tokens of each sequence before its root that were not read."""


@pytest.fixture
def drafts(draft, monkeypatch):
    """Return the draft model at each of the sequences."""
    monkeypatch.setattr("treeopt.runtime.drafters.draft_model.MAX_CATCH_UP_TOKENS", 4)
    sequences = [DraftModelSequence(draft, cache) for cache in draft.new_caches(32, len(TEXTS))]
    for sequence, text, pending in zip(sequences, TEXTS, PENDING, strict=True):
        sequence.begin(text[: len(text) - pending], None)
        sequence.pending += text[len(text) - pending :]
    return sequences


def test_logits_are_those_of_fresh_passes(draft, drafts, logits_after):
    runner = Runner(draft, max_nodes=1)
    logits = root_logits(runner, drafts).cpu()
    for row, text, sequence in zip(logits, TEXTS, drafts, strict=True):
        torch.testing.assert_close(row, logits_after(draft, text), atol=1e-4, rtol=1e-4)
        assert (sequence.cache.length, sequence.pending, sequence.root) == (len(text) - 1, text[-1:], text[-1])
    roots_alone = root_logits(runner, drafts).cpu()
    torch.testing.assert_close(roots_alone, logits, atol=1e-4, rtol=1e-4)


def test_sequences_share_passes(draft, drafts, monkeypatch):
    fed = count_fed_tokens(draft, monkeypatch)
    root_logits(Runner(draft, max_nodes=1), drafts)
    assert fed == [2 + 4, 4, 1 + 1 + 2 + 2]  # the second and fourth catch up, then the fourth alone, then all
