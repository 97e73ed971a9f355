"""Times over token count, context and batch: a profile by a pretended clock is the grid that the clock pretends."""

import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock, draft_s, faults, machine_and_pair, verify_s
from treeopt.errors import OutOfMemoryError, TreeoptError
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.clock import WarmUp
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.prefill import PrefillTimer
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.sampling import GREEDY, Sampling

CONTEXTS, BATCHES = (30, 400), (1, 3)
SETTINGS = Settings(context_tokens=CONTEXTS, batch_sizes=BATCHES, max_tokens=160, rounds=4)
WARM = Sampling(0.8)
KEEP_S = 2e-4


def exchanged(context):
    return CONTEXTS[1 - CONTEXTS.index(context)]


def measured(make_model, settings=SETTINGS, checkpoint=None, **machine):
    clock, target, draft = machine_and_pair(make_model, CONTEXTS, **machine)
    grid = LatencyGrid(target, draft, [1, 2, 3], settings, clock=clock, checkpoint=checkpoint or Checkpoint(None, ""))
    return clock, grid.measure(lambda: None)


def slow_to_keep(clock, new_caches):
    """Make caches that take KEEP_S to commit a path."""

    def slow(keep, path):
        clock.passes_s += KEEP_S
        keep(path)

    def make(capacity, texts):
        caches = new_caches(capacity, texts)
        for cache in caches:
            cache.commit = partial(slow, cache.commit)
        return caches

    return make


def count_live_caches(model):
    """Return a list that gets the number of live caches whenever the model allocates some."""
    new_caches, live, counts = model.new_caches, weakref.WeakSet(), []

    def counting(capacity, texts):
        made = new_caches(capacity, texts)
        live.update(made)
        counts.append(len(live))
        return made

    model.new_caches = counting
    return counts


@pytest.fixture(scope="module")
def latencies(make_model):
    return measured(make_model)[1]


class TestLatencyGrid:
    def test_every_condition_is_there_once(self, latencies):
        places = [(each.context_tokens, each.batch_size, each.sampled) for each in latencies]
        assert sorted(places) == [(30, 1, False), (30, 3, False), (400, 1, False), (400, 3, False)]

    def test_it_is_exact_where_measured_and_within_its_interval_everywhere(self, latencies):
        assert faults(latencies, verify_s, draft_s) == []

    def test_counts_were_added_on_both_sides_of_a_step(self, latencies):
        tokens = latencies[0].verify.tokens.tolist()
        assert {64, 128} <= set(tokens)
        around = [min(count for count in tokens if count > edge) - edge for edge in (64, 128)]
        assert min(around) <= 4

    def test_a_machine_with_exchanged_contexts_is_found_out(self, make_model):
        _, wrong = measured(
            make_model,
            verify=lambda tokens, context, batch: verify_s(tokens, exchanged(context), batch),
            draft=lambda width, context, batch: draft_s(width, exchanged(context), batch),
        )
        found = faults(wrong, verify_s, draft_s)
        assert {fault[:3] for fault in found} == {
            (name, context, batch) for name in ("verify", "draft") for context in CONTEXTS for batch in BATCHES
        }

    def test_a_step_that_is_not_on_the_grid_is_found_out(self, latencies):
        found = faults(latencies, lambda *place: verify_s(*place) + 5e-4 * (place[0] > 7), draft_s)
        assert min(fault[3] for fault in found) == 8

    def test_with_noise_the_interval_covers_the_true_median(self, make_model):
        _, noisy = measured(make_model, replace(SETTINGS, rounds=15), sigma=0.05, seed=3)
        covered, halves = [], []
        for latency in noisy:
            place = (latency.context_tokens, latency.batch_size)
            for table, seconds in ((latency.verify, verify_s), (latency.draft, draft_s)):
                truth = np.array([seconds(count, *place) for count in table.tokens.tolist()])
                low, high = table.interval_s(table.tokens)
                covered += ((low <= truth) & (truth <= high)).tolist()
                halves += ((high - low) / 2 / truth).tolist()
        assert len(covered) > 150
        assert np.mean(covered) >= 0.9
        assert np.median(halves) < 0.06  # not by being wide

    def test_passes_are_made_for_the_batch_and_behind_the_context(self, make_model):
        clock, _ = measured(make_model, replace(SETTINGS, max_tokens=4, rounds=1))
        places = {(name, context, batch) for name, _, context, batch in clock.used}
        assert len(places) == 8

    def test_what_passes_explain_is_no_overhead(self, latencies):
        assert all(abs(latency.overhead.median_s) < 2e-5 for latency in latencies)  # of steps of 1.2 ms and more

    def test_a_batch_has_the_overhead_of_its_own_steps(self, make_model):
        """A machine that takes a fifth of a millisecond between the passes of a step, for each text."""
        settings = replace(SETTINGS, context_tokens=(30,), max_tokens=8, rounds=2)
        clock, target, draft = machine_and_pair(make_model, CONTEXTS)
        target.new_caches = slow_to_keep(clock, target.new_caches)
        found = LatencyGrid(target, draft, [1, 2, 3], settings, clock=clock, checkpoint=Checkpoint(None, "")).measure(
            int
        )
        one, three = (each.overhead.median_s for each in found)
        assert one == pytest.approx(KEEP_S, abs=2e-5)
        assert three == pytest.approx(3 * KEEP_S, abs=2e-5)
        assert [len(each.steps[0].trees) for each in found] == [3, 3]
        for latency in found:  # a plain step is whole
            passes_s = verify_s(1, 30, latency.batch_size)
            assert latency.verify.medians_s[0] == pytest.approx(passes_s + latency.batch_size * KEEP_S, abs=1e-9)


class TestWays:
    def test_greedy_and_sampled_times_are_separate(self, make_model):
        settings = replace(SETTINGS, samplings=(WARM, GREEDY, Sampling(1.2)), max_tokens=4, batch_sizes=(1,), rounds=2)
        checkpoint = Checkpoint(None, "")
        _, found = measured(make_model, settings, checkpoint)
        assert [(each.sampled, each.context_tokens) for each in found] == [
            (True, 30),
            (True, 400),
            (False, 30),
            (False, 400),
        ]
        for way in ("greedy", "sampled"):
            assert len(checkpoint.samples(f"verify 30x1 {way}")[4]) == 2
            assert len(checkpoint.samples(f"step 400x1 {way}")) == 3  # one is plain

    def test_what_is_in_the_checkpoint_is_not_timed_again(self, make_model):
        settings, checkpoint = replace(SETTINGS, max_tokens=12), Checkpoint(None, "")
        _, first = measured(make_model, settings, checkpoint)
        clock, again = measured(make_model, settings, checkpoint, verify=lambda *_: 9.0, draft=lambda *_: 9.0)
        assert clock.timed == 0
        assert [each.verify.medians_s.tolist() for each in again] == [each.verify.medians_s.tolist() for each in first]


class TestMemory:
    """Memory ends between batches and contexts: caches of more tokens than `room` in all cannot be made."""

    def limited(self, make_model, room, settings, checkpoint, tried):
        """Return what is measured; `tried` gets the tokens of the caches that there were, at every cache."""
        clock, target, draft = machine_and_pair(make_model, CONTEXTS)
        new_caches, caches = target.new_caches, weakref.WeakSet()

        def limited_caches(capacity, texts):
            tried.append(capacity * texts + sum(cache.capacity for cache in caches))
            if tried[-1] > room:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
            made = new_caches(capacity, texts)
            caches.update(made)
            return made

        target.new_caches = limited_caches
        return LatencyGrid(target, draft, [1], settings, clock=clock, checkpoint=checkpoint).measure(lambda: None)

    def test_a_condition_that_does_not_fit_is_left_out_and_not_tried_again(self, make_model):
        settings, checkpoint, tried = replace(SETTINGS, max_tokens=4, rounds=2), Checkpoint(None, ""), []
        found = self.limited(make_model, 1000, settings, checkpoint, tried)
        assert [(each.context_tokens, each.batch_size) for each in found] == [(30, 1), (30, 3), (400, 1)]
        assert faults(found, verify_s, draft_s) == []
        assert max(tried) > 1000
        tried.clear()
        again = self.limited(make_model, 1000, settings, checkpoint, tried)
        assert [each.verify.medians_s.tolist() for each in again] == [each.verify.medians_s.tolist() for each in found]
        assert tried == []

    def test_where_one_text_does_not_fit_more_are_not_tried(self, make_model):
        tried = []
        found = self.limited(make_model, 450, replace(SETTINGS, max_tokens=4, rounds=1), Checkpoint(None, ""), tried)
        assert [(each.context_tokens, each.batch_size) for each in found] == [(30, 1), (30, 3)]
        assert max(tried) < 1000  # of three texts behind 400 tokens

    @pytest.mark.parametrize("batch", [1, 3])
    def test_one_cache_of_each_model_lives_at_a_time_and_one_of_plain_steps(self, make_model, batch):
        _, target, draft = machine_and_pair(make_model, CONTEXTS)
        most = {model.name: count_live_caches(model) for model in (target, draft)}
        settings = Settings(
            rules=("sequoia", "specinfer"),
            samplings=(WARM,),
            context_tokens=(30,),
            batch_sizes=(1, batch) if batch > 1 else (1,),
            max_tokens=8,
            rounds=7,
        )
        checkpoint = Checkpoint(None, "")
        clock = FakeClock(lambda: 1e-3, WarmUp())
        LatencyGrid(target, draft, [1, 2], settings, clock=clock, checkpoint=checkpoint).measure(lambda: None)
        PrefillTimer(target, draft, [1, 2], 40, Recorder(clock, checkpoint)).measure(3)
        assert {name: max(counts) for name, counts in most.items()} == {"large": 2 * batch, "small": batch}

    def test_where_nothing_fits_there_is_one_clear_error(self, make_model):
        settings, checkpoint = replace(SETTINGS, max_tokens=4, rounds=1), Checkpoint(None, "")
        for _ in range(2):
            with pytest.raises(TreeoptError, match=r"memory ran out before a single token was timed\. Use a smaller"):
                self.limited(make_model, 10, settings, checkpoint, [])

    def test_batches_that_do_not_fit_are_refused_before_anything_is_timed(self, make_model, monkeypatch):
        clock, target, draft = machine_and_pair(make_model, CONTEXTS)
        settings = replace(SETTINGS, max_tokens=4, batch_sizes=(1, 3, 100_000))
        grid = LatencyGrid(target, draft, [1], settings, clock=clock, checkpoint=Checkpoint(None, ""))
        monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 5e6)
        with pytest.raises(OutOfMemoryError, match=r"batch_size: expected at most \d+, because each sequence takes"):
            grid.measure(lambda: None)
        assert clock.timed == 0

    def test_another_error_is_passed_on(self, make_model):
        clock, target, draft = machine_and_pair(make_model, CONTEXTS)
        target.new_caches = lambda *_: (_ for _ in ()).throw(RuntimeError("shapes differ"))
        with pytest.raises(RuntimeError, match="shapes differ"):
            LatencyGrid(target, draft, [1], SETTINGS, clock=clock, checkpoint=Checkpoint(None, "")).measure(
                lambda: None
            )
