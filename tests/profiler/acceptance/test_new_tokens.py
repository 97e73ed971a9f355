"""Beginnings of measured texts: against profiles of so many positions of each."""

from dataclasses import replace

import numpy as np

from tests.profiler.acceptance.test_per_prompt import SETTINGS, measured
from treeopt.planner import for_new_tokens
from treeopt.records.acceptance_counts import MIN_REACHED
from treeopt.records.sampling import GREEDY, Sampling

SHORT = 10
LONG = replace(SETTINGS, rules=("sequoia", "specinfer"), samplings=(GREEDY, Sampling(1.0)), positions=360)


def test_it_is_what_a_profile_of_shorter_texts_holds(target, draft, prompts):
    whole = measured(target, draft, prompts, LONG)
    short = measured(target, draft, prompts, replace(LONG, positions=SHORT * len(prompts)))
    found = for_new_tokens(whole, SHORT)
    assert found.latencies is whole.latencies
    for ours, theirs, before in zip(found.acceptances, short.acceptances, whole.acceptances, strict=True):
        assert (ours.rule, ours.temperature) == (theirs.rule, theirs.temperature)
        assert (ours.prompts, ours.positions) == (theirs.prompts, theirs.positions) == (len(prompts), 60)
        assert [each.tolist() for each in ours.accepted_ranks.ranks] == [
            each.tolist() for each in theirs.accepted_ranks.ranks
        ]
        np.testing.assert_array_equal(ours.texts.reached, theirs.texts.reached)
        if ours.temperature == 0:
            np.testing.assert_allclose(ours.table.p, theirs.table.p, atol=1e-5)  # batches round otherwise
            np.testing.assert_allclose(ours.texts.accepted, theirs.texts.accepted, atol=1e-4)
            assert np.abs(ours.table.p - before.table.p).max() > 0.01  # negative control: they differ from whole texts
        else:
            often = ours.table.counts >= MIN_REACHED
            error = np.maximum(np.hypot(ours.table.standard_error, theirs.table.standard_error), 0.02)
            assert np.all(np.abs(ours.table.p - theirs.table.p)[often] < 4 * error[often])


def test_as_many_tokens_as_were_measured_are_what_was_measured(target, draft, prompts):
    whole = measured(target, draft, prompts, LONG)
    assert for_new_tokens(whole, 60).acceptances == whole.acceptances
    assert for_new_tokens(whole, 1000).acceptances == whole.acceptances
