"""Several sequences together under a fake clock: rates are exact, prefill is reported separately, outputs are compared."""

from dataclasses import replace
from functools import partial

import pytest

from treeopt.errors import InvalidValueError, OutOfMemoryError
from treeopt.planner.benchmarks import BatchCandidates
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.batches import PLAIN, BatchComparison, batch_bench
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.decoding import Decoding
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.models.memory import decoder_bytes
from treeopt.runtime.models.model import Output, Outputs
from treeopt.trees import chain, level_widths

PREFILL_S, KEEP_S = 1000.0, 0.25
DEEP = (chain(3),)


class Seconds:
    """A clock that passes of the target, prompts and commits move."""

    def __init__(self):
        self.now_s = 0.0
        self.commits_s = 0.0

    def pretend(self, target):
        """Let a target's pass take 1 s, 1.5 s over more than one token of a text, and a second more for each further text."""
        forward, prefill, new_caches = target.forward, target.prefill, target.new_caches

        def timed_forward(inputs, *arguments, **keywords):
            self.now_s += (1.5 if max(len(sequence.tokens) for sequence in inputs) > 1 else 1.0) + len(inputs) - 1
            return forward(inputs, *arguments, **keywords)

        def timed_prefill(*arguments):
            self.now_s += PREFILL_S
            return prefill(*arguments)

        def slow_keep(keep, path):
            self.now_s += self.commits_s
            keep(path)

        def slow_caches(*arguments):
            caches = new_caches(*arguments)
            for cache in caches:
                cache.commit = partial(slow_keep, cache.commit)
            return caches

        target.forward, target.prefill, target.new_caches = timed_forward, timed_prefill, slow_caches


@pytest.fixture
def clock():
    return Seconds()


@pytest.fixture
def pair(make_model, clock):
    """Return a target whose passes the clock knows, and a draft model that wants exactly what it wants."""
    target, twin = make_model(seed=1), make_model(seed=1)
    clock.pretend(target)
    return target, twin


@pytest.fixture
def comparison(pair, clock, prompts):
    def make(sizes=(2,), trees=DEEP, temperature=0.0, repeats=2, max_new_tokens=12, **changes):
        target, draft = pair
        given = {
            "target": target,
            "draft": draft,
            "trees": dict.fromkeys(sizes, (PLAIN, *trees)),
            "workload": Workload(prompts=prompts, max_new_tokens=max_new_tokens, repeats=repeats),
            "decoding": Decoding(sampling=Sampling(temperature)),
            "clock": MonotonicClock(lambda: clock.now_s),
        }
        return BatchComparison(**(given | changes))

    return make


def measured(comparison, **changes):
    return comparison(**changes).measure(show_progress=False)[0]


class TestRates:
    @pytest.mark.parametrize("size", [1, 2, 3, 6])
    def test_they_are_exact_while_so_many_texts_run(self, comparison, size):
        found = measured(comparison, sizes=(size,))
        plain, tree = found[size, PLAIN], found[size, chain(3)]
        assert plain.tokens_per_s == pytest.approx(size / size)
        assert tree.tokens_per_s == pytest.approx(4 * size / (size + 0.5))
        assert tree.step_s == pytest.approx(size + 0.5)
        assert tree.batch_tokens_per_step == 4 * size
        assert tree.speedup == pytest.approx(4 * size / (size + 0.5))
        assert (plain.speedup, plain.spread, tree.overhead) == (1.0, 0.0, pytest.approx(0.0))

    def test_the_last_step_counts_whole(self, comparison):
        """Cut off at 9 tokens, three steps of 4 would seem to yield 3."""
        assert measured(comparison, max_new_tokens=9)[2, chain(3)].batch_tokens_per_step == 8

    def test_prefill_is_reported_separately(self, comparison, prompts):
        for way in measured(comparison).values():
            assert way.prefill_s == pytest.approx(PREFILL_S * len(prompts), rel=1e-3)

    def test_host_overhead_is_neither_drafting_nor_verification(self, comparison, clock):
        clock.commits_s = KEEP_S
        found = measured(comparison)
        assert found[2, PLAIN].overhead == pytest.approx(2 * KEEP_S / (2 + 2 * KEEP_S))
        assert found[2, chain(3)].overhead == pytest.approx(2 * KEEP_S / (2.5 + 2 * KEEP_S))

    def test_the_median_of_the_rounds_counts(self, comparison, monkeypatch):
        run, calls = BatchComparison._run, []

        def slowed(self, *arguments):
            found = run(self, *arguments)
            calls.append(1)
            number = (len(calls) - 3) // 2  # after two to warm up, two a round
            found.seconds *= {0: 0.5, 1: 2.0}.get(number, 1.0)
            return found

        monkeypatch.setattr(BatchComparison, "_run", slowed)
        found = measured(comparison, repeats=3)
        assert found[2, PLAIN].tokens_per_s == pytest.approx(1.0)
        assert found[2, PLAIN].spread == pytest.approx(0.75)
        assert found[2, chain(3)].speedup == pytest.approx(8 / 2.5)

    @pytest.mark.parametrize(("runs", "rounds"), [(3, 1), (4, 2), (1, None)])
    def test_an_interruption_keeps_whole_rounds(self, comparison, monkeypatch, runs, rounds):
        run, calls = BatchComparison._run, []

        def stopped(self, *arguments):
            calls.append(1)
            if len(calls) == 2 + runs + 1:
                raise KeyboardInterrupt
            return run(self, *arguments)

        monkeypatch.setattr(BatchComparison, "_run", stopped)
        if rounds is None:
            with pytest.raises(KeyboardInterrupt):
                comparison(repeats=9).measure(show_progress=False)
        else:
            assert comparison(repeats=9).measure(show_progress=False)[1] == rounds


class TestTexts:
    @pytest.mark.parametrize("temperature", [0.0, 0.7])
    def test_they_are_those_decoded_alone(self, make_model, comparison, temperature):
        other = make_model(seed=1, noise=0.15)
        trees = (chain(2), level_widths([2, 2]))
        for way in measured(
            comparison, sizes=(3,), trees=trees, temperature=temperature, draft=other, repeats=1
        ).values():
            assert way.divergences == ()
            assert way.texts == 6

    def test_those_that_are_not_are_found(self, pair, comparison):
        """A target that says something else in a pass over several texts."""
        target, _ = pair
        forward = target.forward

        def other(inputs, *arguments, **keywords):
            outputs = forward(inputs, *arguments, **keywords)
            if len(inputs) == 1:
                return outputs
            return Outputs(Output(outputs.logits.roll(1, -1), outputs.whole.states), outputs.sizes)

        target.forward = other
        found = measured(comparison, sizes=(1, 2))
        assert found[1, PLAIN].divergences == ()
        assert [each.prompt for each in found[2, PLAIN].divergences] == list(range(6))
        assert not any(each.near_tie for each in found[2, PLAIN].divergences)


class TestRefused:
    @pytest.mark.parametrize("sizes", [(7,), (0, 2), ()])
    def test_batches_that_no_prompts_are_there_for(self, comparison, sizes):
        with pytest.raises(InvalidValueError, match=r"batch_size: expected 1 to 6, the prompts that are kept"):
            comparison(sizes=sizes)

    def test_texts_too_short_to_run_together(self, comparison):
        with pytest.raises(
            InvalidValueError, match="max_new_tokens: expected sequences long enough that 2 run together"
        ):
            measured(comparison, max_new_tokens=1)

    def test_caches_that_do_not_fit_before_anything_is_decoded(self, comparison, pair, clock, monkeypatch):
        # one text has its memory when the decoder is made
        each = decoder_bytes(*pair, None, sequence_tokens=10 + 12, max_nodes=4, sampling=GREEDY).total()
        monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 3.5 * each)
        with pytest.raises(OutOfMemoryError, match="batch_size: expected at most 4"):
            measured(comparison, sizes=(1, 6))
        assert clock.now_s == 0


def test_predictions_stand_beside_what_was_measured(comparison):
    rivals = {2: BatchCandidates(trees=(PLAIN, chain(3)), chosen=PLAIN, predicted={})}
    found = batch_bench(comparison(), rivals, show_progress=False)
    (size,) = found.sizes
    assert (size.batch_size, found.prompts, found.max_new_tokens, found.rounds) == (2, 6, 12, 2)
    assert [row.predicted_tokens_per_s for row in size.rows] == [None, None]
    assert size.chosen.tree == PLAIN
    assert size.best.tree == chain(3)
    assert size.gap_to_best == pytest.approx(8 / 2.5 - 1)
    assert replace(size, rows=size.rows[1:]).gap_to_best is None
