"""The grid of latencies by a fake clock is the one that the clock defines."""

import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock, draft_s, faults, machine_and_pair, measure_grid, verify_s
from treeopt.errors import OutOfMemoryError, TreeoptError
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.clock import WarmUp
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.prefill import measure_prefill
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.sampling import GREEDY, Sampling

CONTEXTS, BATCHES = (30, 400), (1, 3)
SETTINGS = Settings(context_tokens=CONTEXTS, batch_sizes=BATCHES, max_tokens=160, rounds=4)
SMALL = replace(SETTINGS, max_tokens=4, rounds=2)
COMMIT_S = 2e-4


def measure(make_model, settings=SETTINGS, checkpoint=None, change=lambda _: None, **options):
    """Return the machine and its latencies; `change` is called with machine, target and draft before they are timed."""
    machine, target, draft = machine_and_pair(make_model, CONTEXTS, **options)
    change((machine, target, draft))
    checkpoint = checkpoint or Checkpoint(None, "")
    grid = LatencyGrid(target, draft, [1, 2, 3], settings, Recorder(machine, checkpoint))
    return machine, measure_grid(grid)


@pytest.fixture(scope="module")
def latencies(make_model):
    return measure(make_model)[1]


class TestLatencies:
    def test_latencies_are_exact_at_measured_counts_and_inside_intervals_between(self, latencies):
        points = [(latency.context_tokens, latency.batch_size, latency.sampled) for latency in latencies]
        assert points == [(30, 1, False), (30, 3, False), (400, 1, False), (400, 3, False)]
        assert faults(latencies, verify_s, draft_s) == []
        assert all(abs(latency.overhead.median_s) < 2e-5 for latency in latencies)  # of steps of 1.2 ms and more
        tokens = latencies[0].verify.tokens.tolist()  # counts were added next to steps of the curve
        assert {64, 128} <= set(tokens)
        assert min(min(count for count in tokens if count > edge) - edge for edge in (64, 128)) <= 4

    def test_exchanged_contexts_and_an_extra_step_are_found(self, make_model, latencies):
        """Negative control."""

        def exchange(seconds):
            return lambda tokens, context, batch: seconds(tokens, sum(CONTEXTS) - context, batch)

        settings = replace(SETTINGS, max_tokens=8, rounds=1)
        _, exchanged = measure(make_model, settings, verify=exchange(verify_s), draft=exchange(draft_s))
        assert {fault[:3] for fault in faults(exchanged, verify_s, draft_s)} == {
            (name, context, batch) for name in ("verify", "draft") for context in CONTEXTS for batch in BATCHES
        }
        wrong = faults(latencies, lambda *place: verify_s(*place) + 5e-4 * (place[0] > 7), draft_s)
        assert min(fault[3] for fault in wrong) == 8

    def test_intervals_contain_the_true_median_under_noise(self, make_model):
        _, noisy = measure(make_model, replace(SETTINGS, rounds=15), sigma=0.05, seed=3)
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

    def test_batch_has_the_overhead_of_its_own_steps(self, make_model):
        """The machine takes a fifth of a millisecond in a step for each sequence, outside all passes."""

        def slow_commits(models):
            machine, target, _ = models
            new_caches = target.new_caches

            def commit(original, path):
                machine.passes_s += COMMIT_S
                original(path)

            def make(capacity, sequences):
                caches = new_caches(capacity, sequences)
                for cache in caches:
                    cache.commit = partial(commit, cache.commit)
                return caches

            target.new_caches = make

        settings = replace(SETTINGS, context_tokens=(30,), max_tokens=8, rounds=2)
        _, latencies = measure(make_model, settings, change=slow_commits)
        for latency in latencies:
            assert latency.overhead.median_s == pytest.approx(latency.batch_size * COMMIT_S, abs=2e-5)
            assert len(latency.steps[0].trees) == 3
            plain_s = verify_s(1, 30, latency.batch_size) + latency.batch_size * COMMIT_S  # a plain step is whole
            assert latency.verify.medians_s[0] == pytest.approx(plain_s, abs=1e-9)

    def test_greedy_and_sampled_latencies_are_separate_and_not_timed_again(self, make_model):
        settings = replace(SMALL, samplings=(Sampling(0.8), GREEDY, Sampling(1.2)), batch_sizes=(1,))
        checkpoint = Checkpoint(None, "")
        machine, latencies = measure(make_model, settings, checkpoint)
        assert {(context, batch) for _, _, context, batch in machine.used} == {(30, 1), (400, 1)}
        points = [(latency.sampled, latency.context_tokens) for latency in latencies]
        assert points == [(True, 30), (True, 400), (False, 30), (False, 400)]
        for kind in ("greedy", "sampled"):
            assert len(checkpoint.samples(f"verify 30x1 {kind}")[4]) == 2
            assert len(checkpoint.samples(f"step 400x1 {kind}")) == 3  # one is plain
        machine, resumed = measure(make_model, settings, checkpoint, verify=lambda *_: 9.0, draft=lambda *_: 9.0)
        assert machine.timed == 0
        medians_s = [[latency.verify.medians_s.tolist() for latency in each] for each in (latencies, resumed)]
        assert medians_s[0] == medians_s[1]


class TestMemory:
    """Caches of more than `room` tokens in total cannot be allocated."""

    def measure(self, make_model, room, settings=SMALL, checkpoint=None):
        """Return the latencies, and the tokens of all caches at every allocation."""
        totals = []

        def limit(models):
            _, target, _ = models
            new_caches, caches = target.new_caches, weakref.WeakSet()

            def limited_caches(capacity, sequences):
                totals.append(capacity * sequences + sum(cache.capacity for cache in caches))
                if totals[-1] > room:
                    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
                allocated = new_caches(capacity, sequences)
                caches.update(allocated)
                return allocated

            target.new_caches = limited_caches

        return measure(make_model, settings, checkpoint, limit)[1], totals

    def test_point_that_does_not_fit_is_left_out_and_not_tried_again(self, make_model):
        checkpoint = Checkpoint(None, "")
        latencies, totals = self.measure(make_model, 1000, checkpoint=checkpoint)
        assert [(latency.context_tokens, latency.batch_size) for latency in latencies] == [(30, 1), (30, 3), (400, 1)]
        assert faults(latencies, verify_s, draft_s) == []
        assert max(totals) > 1000
        resumed, totals = self.measure(make_model, 1000, checkpoint=checkpoint)
        assert [latency.verify for latency in resumed] == [latency.verify for latency in latencies]
        assert totals == []

    def test_larger_batches_are_not_tried_if_one_sequence_does_not_fit(self, make_model):
        latencies, totals = self.measure(make_model, 450)
        assert [(latency.context_tokens, latency.batch_size) for latency in latencies] == [(30, 1), (30, 3)]
        assert max(totals) < 1000  # fewer than those of three sequences of 400 tokens

    def test_error_names_the_cause_if_nothing_fits(self, make_model):
        with pytest.raises(TreeoptError, match=r"memory ran out before a single token was timed\. Use a smaller"):
            self.measure(make_model, 10)

    @pytest.mark.parametrize("batch", [1, 3])
    def test_one_set_of_caches_of_each_model_exists_at_a_time_and_one_of_plain_steps(self, make_model, batch):
        _, *pair = machine_and_pair(make_model, CONTEXTS)
        most = {}

        def count_live_caches(model):
            new_caches, live = model.new_caches, weakref.WeakSet()

            def counting(capacity, sequences):
                allocated = new_caches(capacity, sequences)
                live.update(allocated)
                most[model.name] = max(most.get(model.name, 0), len(live))
                return allocated

            model.new_caches = counting

        for model in pair:
            count_live_caches(model)
        settings = Settings(
            rules=("sequoia", "specinfer"),
            samplings=(Sampling(0.8),),
            context_tokens=(30,),
            batch_sizes=tuple(sorted({1, batch})),
            max_tokens=8,
            rounds=7,
        )
        checkpoint, clock = Checkpoint(None, ""), FakeClock(lambda: 1e-3, WarmUp())
        measure_grid(LatencyGrid(*pair, [1, 2], settings, Recorder(clock, checkpoint)))
        measure_prefill(*pair, [1, 2], 40, Recorder(clock, checkpoint))
        assert most == {"large": 2 * batch, "small": batch}

    def test_batch_that_does_not_fit_is_refused_before_anything_is_timed(self, make_model, monkeypatch):
        machine, *pair = machine_and_pair(make_model, CONTEXTS)
        settings = replace(SMALL, batch_sizes=(1, 3, 100_000))
        grid = LatencyGrid(*pair, [1], settings, Recorder(machine, Checkpoint(None, "")))
        monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 5e6)
        with pytest.raises(OutOfMemoryError, match=r"batch_size: expected at most \d+, because each sequence takes"):
            measure_grid(grid)
        assert machine.timed == 0

    def test_other_errors_are_raised(self, make_model):
        def fail(models):
            models[1].new_caches = lambda *_: (_ for _ in ()).throw(RuntimeError("shapes differ"))

        with pytest.raises(RuntimeError, match="shapes differ"):
            measure(make_model, change=fail)
