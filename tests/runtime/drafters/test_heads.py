"""Heads on the target's last hidden state draft for several sequences in the passes of one."""

import pytest
import torch

from tests.contracts.drafters import TREE, medusa, redrafter
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.drafters.redrafter import RedrafterHead
from treeopt.runtime.models.model import HiddenStates


def propose(drafter, sequences):
    proposals = drafter.propose(sequences, [torch.Generator()] * len(sequences))
    return [(proposal.tree, proposal.tokens.tolist()) for proposal in proposals]


@pytest.mark.parametrize(
    ("make", "kind", "method", "passes"),
    [
        (lambda target: medusa(target, TREE), MedusaHeads, "logits", 1),
        (lambda target: redrafter(target, 3, 4), RedrafterHead, "log_probs", 4),
    ],
)
def test_a_batch_has_the_drafts_of_each_sequence_alone_from_shared_passes(
    target, make, kind, method, passes, monkeypatch
):
    """The second sequence has one token, so its draft is the root alone."""
    drafter = make(target)
    hidden = torch.randn((4, target.config.hidden), generator=torch.Generator().manual_seed(0)).to(target.device)
    for number in range(4):
        states = HiddenStates((), hidden[number : number + 1]) if number != 1 else None
        drafter.begin(number, [number + 3], states)
    alone = [propose(drafter, [number])[0] for number in range(4)]
    assert len({tuple(tokens[1:]) for _, tokens in alone}) == 4
    assert propose(drafter, [3, 1, 2]) == [alone[3], alone[1], alone[2]]
    calls, original = [], getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *args, **options: calls.append(args) or original(*args, **options))
    assert propose(drafter, range(4)) == alone
    assert len(calls) == passes


def test_each_sequence_has_its_own_scores(target):
    drafter = medusa(target, TREE)
    for number, value in enumerate([1.0, torch.nan, -1.0]):
        drafter.begin(number, [5], HiddenStates((), torch.full((1, target.config.hidden), value)))
    proposals = drafter.propose(range(3), [torch.Generator()] * 3)
    assert [bool(proposal.scores.values.isfinite().all()) for proposal in proposals] == [True, False, True]
