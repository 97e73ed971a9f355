"""Probes of the draft model compared with counts by hand."""

import itertools
from itertools import pairwise

import pytest
import torch

from tests.support.table_model import Table
from treeopt.adaptation import probing
from treeopt.adaptation.probing import PROBE_FRACTION, Probe
from treeopt.runtime import Decoder, Sampling, distribution
from treeopt.trees import chain

TARGET, DRAFT = Table.random(1, 23, "target"), Table.random(2, 23, "draft")
LATE = 1e9
"""Seconds of decoding after which a probe is due."""


def probe_of(draft, steps, **options):
    """Return a probe after some plain steps, and the token before and after each step."""
    decoder = Decoder(TARGET, draft, chain(0), max_nodes=4, seed=3, **options)
    probe, text = Probe(decoder, 1.0, lambda: 0.0), [1, 5]
    decoder.start([1, 5])
    for _ in range(steps):
        step = decoder.step()
        probe.add(1, text, step.tokens[-1], step.logits)
        text += step.tokens
    return probe, list(pairwise(text[1:]))


@pytest.mark.parametrize(("most", "counted"), [(100, 30), (16, 16)])
def test_committed_tokens_are_counted_by_their_rank(most, counted, monkeypatch):
    monkeypatch.setattr(probing, "MAX_PROBED", most)
    probe, pairs = probe_of(DRAFT, 30, temperature=0.0)
    ranks = [int((DRAFT.logits[before] > DRAFT.logits[before, after]).sum()) for before, after in pairs[-counted:]]
    outcomes = probe.take(2, 4, LATE)
    assert outcomes.tried[0].tolist() == [sum(rank >= k for rank in ranks) for k in range(4)]
    assert outcomes.accepted[0].tolist() == [sum(rank == k for rank in ranks) for k in range(4)]
    assert outcomes.tried[1].sum() == 0  # deeper levels were never drafted
    assert probe.take(2, 4, LATE).tried.sum() == 0  # the steps were discarded


def test_sampled_tokens_are_counted_by_the_overlap_of_the_distributions():
    probe, pairs = probe_of(DRAFT, 20, temperature=0.8, rule="sequoia")
    target, draft = (
        distribution(model.logits[[before for before, _ in pairs]], Sampling(0.8)) for model in (TARGET, DRAFT)
    )
    outcomes = probe.take(2, 4, LATE)
    assert outcomes.tried[0].tolist() == [20, 0, 0, 0]
    assert outcomes.accepted[0, 0] == pytest.approx(float(torch.minimum(target, draft).sum()), rel=1e-4)


def test_the_target_as_draft_is_always_accepted():
    outcomes = probe_of(TARGET, 20, temperature=0.0)[0].take(1, 2, LATE)
    assert (outcomes.tried[0, 0], outcomes.accepted[0, 0]) == (20, 20)


def test_a_non_finite_draft_is_not_counted():
    broken = Table(torch.full((23, 23), torch.nan), "broken")
    assert probe_of(broken, 20, temperature=0.0)[0].take(1, 2, LATE).tried.sum() == 0


def test_excluded_tokens_are_ordinary_logits():
    logits = TARGET.logits.clone()
    logits[:, logits.argmax(-1).bincount(minlength=23) == 0] = -torch.inf  # never the target's likeliest
    outcomes = probe_of(Table(logits, "limited"), 20, temperature=0.0)[0].take(1, 2, LATE)
    assert (outcomes.tried[0, 0], outcomes.accepted[0, 0]) == (20, 20)


def test_another_sequence_starts_again():
    probe, _ = probe_of(DRAFT, 20, temperature=0.0)
    probe.add(2, [3], 4, torch.zeros(1, 23))
    assert probe.take(1, 2, LATE).tried.sum() == 0  # too few steps for a probe


@pytest.mark.parametrize("interruption_s", [0.0, 50.0])
def test_probes_take_a_fraction_of_the_time_in_spite_of_an_interruption(interruption_s):
    probe, _ = probe_of(DRAFT, 20, temperature=0.0)
    readings = itertools.chain([0.0, 1.0 + interruption_s], itertools.cycle([0.0, 1.0]))
    probe._now_s = lambda: next(readings)
    probes = 0
    for second in range(2000):
        for token in range(16):
            probe.add(3, [1], token, torch.zeros(1, 23))
        probes += bool(probe.take(1, 1, float(second)).tried.sum())
    assert probes == pytest.approx(2000 * PROBE_FRACTION, abs=3)
