"""What the draft model would have been worth while nothing was drafted, beside a count by hand."""

from itertools import pairwise

import pytest
import torch

from tests.support.table_model import Table
from treeopt.adaptation.missed import MissedSteps
from treeopt.runtime import Decoder, Sampling, distribution
from treeopt.trees import chain

TARGET, DRAFT = Table.random(1, 23, "target"), Table.random(2, 23, "draft")


def missed_steps(draft, steps, *, most=100, **how):
    """Return the steps that were missed, and the tokens before and after each."""
    decoder = Decoder(TARGET, draft, chain(0), max_nodes=4, seed=3, **how)
    missed, text = MissedSteps(decoder, most), [1, 5]
    decoder.start([1, 5])
    for _ in range(steps):
        step = decoder.step()
        missed.note(1, text, step.tokens[-1], step.logits)
        text += step.tokens
    return missed, list(pairwise(text[1:]))


@pytest.mark.parametrize(("most", "counted"), [(100, 30), (8, 8)])
def test_given_tokens_are_counted_by_their_rank(most, counted):
    missed, places = missed_steps(DRAFT, 30, most=most, temperature=0.0)
    ranks = [int((DRAFT.logits[before] > DRAFT.logits[before, after]).sum()) for before, after in places[-counted:]]
    found = missed.outcomes(2, 4)
    assert found.tried[0].tolist() == [sum(rank >= k for rank in ranks) for k in range(4)]
    assert found.accepted[0].tolist() == [sum(rank == k for rank in ranks) for k in range(4)]
    assert found.tried[1].sum() == 0  # deeper levels were never drafted
    assert len(missed) == 0


def test_sampled_tokens_are_counted_by_how_far_the_distributions_overlap():
    missed, places = missed_steps(DRAFT, 30, temperature=0.8, rule="sequoia")
    sampling = Sampling(0.8)
    overlap = sum(
        float(
            torch.minimum(
                distribution(TARGET.logits[[before]], sampling), distribution(DRAFT.logits[[before]], sampling)
            ).sum()
        )
        for before, _ in places
    )
    found = missed.outcomes(2, 4)
    assert found.tried[0].tolist() == [30, 0, 0, 0]
    assert found.accepted[0, 0] == pytest.approx(overlap, rel=1e-4)


def test_a_draft_that_is_the_target_is_always_right():
    found = missed_steps(TARGET, 30, temperature=0.0)[0].outcomes(1, 2)
    assert (found.tried[0, 0], found.accepted[0, 0]) == (30, 30)


def test_a_draft_that_is_not_finite_says_nothing():
    broken = Table(torch.full((23, 23), torch.nan), "broken")
    assert missed_steps(broken, 10, temperature=0.0)[0].outcomes(1, 2).tried.sum() == 0


def test_tokens_that_are_ruled_out_do_not_make_a_draft_useless():
    logits = TARGET.logits.clone()
    logits[:, logits.argmax(-1).bincount(minlength=23) == 0] = -torch.inf  # never the target's likeliest
    found = missed_steps(Table(logits, "limited"), 30, temperature=0.0)[0].outcomes(1, 2)
    assert (found.tried[0, 0], found.accepted[0, 0]) == (30, 30)


def test_another_text_begins_anew():
    missed, _ = missed_steps(DRAFT, 10, temperature=0.0)
    missed.note(2, [3], 4, torch.zeros(1, 23))
    assert len(missed) == 1
