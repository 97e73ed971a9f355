"""Decoding in one way: its times are what the clock said, not more."""

from treeopt.profiler.bench.timed_steps import decode_stats
from treeopt.runtime import Decoder
from treeopt.trees import k_ary


def test_drafting_that_takes_no_time_is_kept_as_none(target, draft, prompts):
    """A clock too coarse to see a draft says 0; a floor in its place would be a time that nobody measured."""
    decoder = Decoder(target, draft, k_ary(2, 1), temperature=0.0)
    stats = decode_stats(decoder, prompts[:2], 6, now_s=lambda: 5.0)
    assert set(stats.draft.samples_s) == {0.0}
    assert len(stats.draft.samples_s) == stats.steps.sum()
