"""Rows of the table: arithmetic with a fake clock, losslessness, and names."""

from functools import partial
from itertools import count

import pytest

from tests.methods.toys import option_of
from treeopt.errors import InvalidValueError
from treeopt.methods.bench import bench_methods
from treeopt.methods.method import Method
from treeopt.methods.names import NAMES, select_methods
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.interleave import decode_in_parts, decode_run
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import chain, k_ary

GREEDY, WARM = Sampling(0.0), Sampling(0.6)


def accelerating_clock() -> MonotonicClock:
    """Return a clock whose n-th interval takes n seconds."""
    return MonotonicClock(partial(next, (n * (n + 1) / 2 for n in count(1))))


@pytest.fixture(scope="module")
def pair(bundled_pair):
    return bundled_pair


@pytest.fixture(scope="module")
def prompts(bundled_outputs):
    return [prompt[:40] for prompt, _ in bundled_outputs]


def method(pair, name, tree, *, sampling=GREEDY, rule="sequoia", **options) -> Method:
    def make():
        return Decoder(
            pair.target,
            pair.draft if tree.nodes > 1 else None,
            tree,
            rule=rule,
            temperature=sampling.temperature,
            **options,
        )

    return Method(name=name, option=option_of(tree, rule, speedup=1.5), build=make)


def methods(pair, **options):
    return [method(pair, "plain", chain(0), **options), method(pair, "tree", k_ary(2, 2), **options)]


def bench(pair, prompts, methods, sampling=GREEDY, repeats=1, **options):
    return bench_methods(
        methods,
        pair.target,
        Workload(prompts=prompts, max_new_tokens=24, repeats=repeats),
        sampling,
        **options,
    )


def test_parts_of_steps_are_timed_in_a_separate_run(pair, prompts):
    decoder = Decoder(pair.target, pair.draft, k_ary(2, 2), temperature=0.0)
    clock = accelerating_clock()
    run, parts = decode_in_parts(decoder, lambda: decode_run(decoder, prompts[0], 10, 0, clock), clock)
    readings = [2 + 4 * step for step in range(run.steps)]  # the first is that of the whole run
    assert parts == [(first + 1, first + 2, first + 3) for first in readings]
    assert run.passes == {7: run.steps}
    assert len(run.tokens) >= 10
    parts.clear()
    decode_run(decoder, prompts[0], 10, 0, clock)
    assert parts == []


def test_rows_add_up_runs(pair, prompts):
    plain, tree = bench(pair, prompts, methods(pair), clock=accelerating_clock())
    for row in (plain, tree):
        assert row.tokens_per_s == pytest.approx(row.tokens_per_step / row.step_s)
        assert row.rounds == len(prompts)
    assert (plain.speedup, plain.tokens_per_step) == (1.0, 1.0)
    assert tree.speedup == pytest.approx(tree.tokens_per_s / plain.tokens_per_s)
    assert tree.tokens_per_step > 1.5
    assert tree.predicted_speedup == 1.5
    assert tree.predicted_at_pace is tree.pace is None


def test_parts_add_up_to_a_step(pair, prompts):
    """With a second per reading of the clock: one for each part, and one between two steps."""
    for row in bench(pair, prompts, methods(pair), clock=MonotonicClock(partial(next, map(float, count())))):
        assert (row.draft_s, row.verify_s) == (1.0, 1.0)
        assert row.overhead_s == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_lossless_methods_pass(pair, prompts, sampling):
    rows = bench(pair, prompts, methods(pair, sampling=sampling), sampling)
    assert [row.lossless for row in rows] == [True, True]


@pytest.mark.slow
def test_output_of_another_model_is_not_lossless(pair, prompts):
    """Negative control."""

    def draft_method(sampling):
        decoder = Decoder(pair.draft, None, chain(0), temperature=sampling.temperature)
        return Method(name="draft", option=option_of(chain(0)), build=lambda: decoder)

    plain = method(pair, "plain", chain(0), sampling=WARM)
    rows = bench(pair, prompts, [plain, draft_method(WARM)], WARM, repeats=3)
    assert [row.lossless for row in rows] == [True, False]
    rows = bench(pair, prompts[:1], [methods(pair)[0], draft_method(GREEDY)])
    assert [row.lossless for row in rows] == [True, False]
    assert "outputs differ" in rows[1].evidence


def test_names_are_in_table_order():
    assert select_methods(["sequoia", "chain"]) == ("plain", "chain", "sequoia")
    assert select_methods(["all"]) == NAMES
    with pytest.raises(InvalidValueError, match="Got 'jacobi'"):
        select_methods(["chain", "jacobi"])
