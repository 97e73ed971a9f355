"""Batched decoding under a fake clock: rates are exact, prefill is separate, outputs are compared."""

from dataclasses import replace
from functools import partial

import pytest

from treeopt.errors import InvalidValueError, OutOfMemoryError
from treeopt.planner.benchmarks import BatchCandidates
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.batches import PLAIN, BatchComparison
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.decoding import Decoding
from treeopt.records.results import NO_PREDICTION
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.models.memory import decoder_bytes
from treeopt.runtime.models.model import Output, Outputs
from treeopt.trees import chain, level_widths

PREFILL_S, COMMIT_S = 1000.0, 0.25
DEEP = (chain(3),)


class Seconds:
    """A clock that passes of the target, prefill and commits advance."""

    def __init__(self):
        self.now_s = 0.0
        self.commits_s = 0.0

    def time_target(self, target):
        """Make a pass take 1 s, or 1.5 s with more than one token of a sequence, and 1 s for each further sequence."""
        forward, prefill, new_caches = target.forward, target.prefill, target.new_caches

        def timed_forward(inputs, *arguments, **options):
            self.now_s += (1.5 if max(len(sequence.tokens) for sequence in inputs) > 1 else 1.0) + len(inputs) - 1
            return forward(inputs, *arguments, **options)

        def timed_prefill(*arguments):
            self.now_s += PREFILL_S
            return prefill(*arguments)

        def timed_commit(commit, path):
            self.now_s += self.commits_s
            commit(path)

        def timed_caches(*arguments):
            caches = new_caches(*arguments)
            for cache in caches:
                cache.commit = partial(timed_commit, cache.commit)
            return caches

        target.forward, target.prefill, target.new_caches = timed_forward, timed_prefill, timed_caches


@pytest.fixture
def clock():
    return Seconds()


@pytest.fixture
def pair(make_model, clock):
    """Return a target that advances the clock, and a draft model that equals it."""
    target, twin = make_model(seed=1), make_model(seed=1)
    clock.time_target(target)
    return target, twin


@pytest.fixture
def make_comparison(pair, clock, prompts):
    def make(sizes=(2,), trees=DEEP, temperature=0.0, repeats=2, max_new_tokens=12, draft=None):
        return BatchComparison(
            target=pair[0],
            draft=draft or pair[1],
            candidates=dict.fromkeys(sizes, BatchCandidates(trees=(PLAIN, *trees), chosen=PLAIN, predicted={})),
            workload=Workload(prompts=prompts, max_new_tokens=max_new_tokens, repeats=repeats),
            decoding=Decoding(sampling=Sampling(temperature)),
            clock=MonotonicClock(lambda: clock.now_s),
        )

    return make


@pytest.fixture
def measure(make_comparison):
    """Return the measurements by batch size and tree."""

    def measure(**options):
        bench = make_comparison(**options).bench()
        return {(size.batch_size, row.tree): row.measured for size in bench.sizes for row in size.rows}

    return measure


class TestRates:
    @pytest.mark.parametrize("size", [1, 2, 4, 6])  # the last batch of 4 is not full
    def test_rates_are_exact_while_the_batch_is_full(self, measure, prompts, size):
        measured = measure(sizes=(size,))
        plain, tree = measured[size, PLAIN], measured[size, chain(3)]
        assert plain.tokens_per_s == pytest.approx(1)
        assert tree.tokens_per_s == pytest.approx(4 * size / (size + 0.5))
        assert tree.step_s == pytest.approx(size + 0.5)
        assert tree.batch_tokens_per_step == 4 * size
        assert tree.speedup == pytest.approx(4 * size / (size + 0.5))
        assert (plain.speedup, plain.spread, tree.overhead) == (1.0, 0.0, pytest.approx(0.0))
        for measurement in (plain, tree):
            assert measurement.prefill_s == pytest.approx(PREFILL_S * len(prompts), rel=1e-3)

    def test_all_tokens_of_the_last_step_count(self, measure):
        """Cut off at 9 tokens, three steps of 4 would seem to yield 3."""
        assert measure(max_new_tokens=9)[2, chain(3)].batch_tokens_per_step == 8

    def test_host_overhead_is_neither_drafting_nor_verification(self, measure, clock):
        clock.commits_s = COMMIT_S
        measured = measure()
        assert measured[2, PLAIN].overhead == pytest.approx(2 * COMMIT_S / (2 + 2 * COMMIT_S))
        assert measured[2, chain(3)].overhead == pytest.approx(2 * COMMIT_S / (2.5 + 2 * COMMIT_S))

    def test_median_of_the_rounds_counts(self, measure, monkeypatch):
        run, calls = BatchComparison._run, []

        def slow_run(self, *arguments):
            result = run(self, *arguments)
            calls.append(1)
            number = (len(calls) - 3) // 2  # after two of warm-up, two a round
            result.seconds *= {0: 0.5, 1: 2.0}.get(number, 1.0)
            return result

        monkeypatch.setattr(BatchComparison, "_run", slow_run)
        measured = measure(repeats=3)
        assert measured[2, PLAIN].tokens_per_s == pytest.approx(1.0)
        assert measured[2, PLAIN].spread == pytest.approx(0.75)
        assert measured[2, chain(3)].speedup == pytest.approx(8 / 2.5)

    @pytest.mark.parametrize(("runs", "rounds"), [(3, 1), (1, None)])
    def test_ctrl_c_keeps_whole_rounds(self, make_comparison, monkeypatch, runs, rounds):
        run, calls = BatchComparison._run, []

        def stop(self, *arguments):
            calls.append(1)
            if len(calls) == 2 + runs + 1:
                raise KeyboardInterrupt
            return run(self, *arguments)

        monkeypatch.setattr(BatchComparison, "_run", stop)
        comparison = make_comparison(repeats=9)
        if rounds is None:
            with pytest.raises(KeyboardInterrupt):
                comparison.bench()
        else:
            assert comparison.bench().rounds == rounds


class TestOutputs:
    @pytest.mark.parametrize("temperature", [0.0, 0.7])
    def test_outputs_are_those_decoded_alone(self, make_model, measure, temperature):
        draft, trees = make_model(seed=1, noise=0.15), (chain(2), level_widths([2, 2]))
        measured = measure(sizes=(3,), trees=trees, temperature=temperature, draft=draft, repeats=1)
        for measurement in measured.values():
            assert (measurement.divergences, measurement.outputs) == ((), 6)

    def test_different_outputs_are_found(self, pair, measure):
        target, _ = pair
        forward = target.forward

        def change_batches(inputs, *arguments, **options):
            outputs = forward(inputs, *arguments, **options)
            if len(inputs) == 1:
                return outputs
            return Outputs(Output(outputs.logits.roll(1, -1), outputs.whole.states), outputs.sizes)

        target.forward = change_batches
        measured = measure(sizes=(1, 2))
        assert measured[1, PLAIN].divergences == ()
        divergences = measured[2, PLAIN].divergences
        assert [(each.prompt, each.near_tie) for each in divergences] == [(number, False) for number in range(6)]


class TestRefusals:
    @pytest.mark.parametrize("sizes", [(7,), (0, 2), ()])
    def test_batches_larger_than_the_prompts_are_refused(self, make_comparison, sizes):
        with pytest.raises(InvalidValueError, match=r"batch_size: expected 1 to 6, the prompts that are kept"):
            make_comparison(sizes=sizes)

    def test_sequences_too_short_for_a_full_batch_are_refused(self, measure):
        reason = "max_new_tokens: expected sequences long enough that 2 run together"
        with pytest.raises(InvalidValueError, match=reason):
            measure(max_new_tokens=1)

    def test_caches_that_do_not_fit_are_refused_before_anything_is_decoded(self, measure, pair, clock, monkeypatch):
        # one sequence has its memory when the decoder is made
        sequence_bytes = decoder_bytes(*pair, None, sequence_tokens=10 + 12, max_nodes=4, sampling=GREEDY).total()
        monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 3.5 * sequence_bytes)
        with pytest.raises(OutOfMemoryError, match="batch_size: expected at most 4"):
            measure(sizes=(1, 6))
        assert clock.now_s == 0


def test_bench_has_predictions_next_to_measurements(make_comparison):
    bench = make_comparison().bench()
    (size,) = bench.sizes
    assert (size.batch_size, bench.prompts, bench.max_new_tokens, bench.rounds) == (2, 6, 12, 2)
    assert [row.predicted for row in size.rows] == [NO_PREDICTION] * 2
    assert (size.chosen.tree, size.best.tree) == (PLAIN, chain(3))
    assert size.gap_to_best == pytest.approx(8 / 2.5 - 1)
    assert replace(size, rows=size.rows[1:]).gap_to_best is None
