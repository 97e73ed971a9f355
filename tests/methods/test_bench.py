"""Rows of the table: arithmetic with a fake clock, losslessness, and names."""

from dataclasses import replace

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
from treeopt.runtime import Decoder, ExpandingDrafter
from treeopt.texts.prompts import bench_prompts, load_prompts
from treeopt.trees import chain, k_ary
from treeopt.trees.drafter_parameters import DynamicTree

GREEDY, WARM = Sampling(0.0), Sampling(0.6)


class Clock:
    """Tells a time that goes on by a known amount at every reading."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return self.readings * (self.readings + 1) / 2  # the n-th stretch takes n seconds


@pytest.fixture(scope="module")
def pair(bundled_pair):
    return bundled_pair


@pytest.fixture(scope="module")
def prompts(pair):
    return [pair.tokenizer.encode(text)[:40] for text in bench_prompts(load_prompts())][:3]


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


def rows(pair, prompts, made, sampling=GREEDY, repeats=1, **options):
    return bench_methods(
        made,
        pair.target,
        Workload(prompts=prompts, max_new_tokens=24, repeats=repeats),
        sampling,
        show_progress=False,
        **options,
    )


def test_parts_of_steps_are_timed_in_a_separate_run(pair, prompts):
    decoder = Decoder(pair.target, pair.draft, k_ary(2, 2), temperature=0.0)
    clock = MonotonicClock(Clock())
    run, parts = decode_in_parts(decoder, lambda: decode_run(decoder, prompts[0], 10, 0, clock), clock)
    readings = [2 + 4 * step for step in range(run.steps)]  # the first is that of the whole run
    assert parts == [(first + 1, first + 2, first + 3) for first in readings]
    assert run.passes == {7: run.steps}
    assert len(run.tokens) >= 10
    parts.clear()
    decode_run(decoder, prompts[0], 10, 0, clock)
    assert parts == []


def test_rows_add_up_runs(pair, prompts):
    plain, tree = rows(pair, prompts, methods(pair), clock=MonotonicClock(Clock()))
    for row in (plain, tree):
        assert row.tokens_per_s == pytest.approx(row.tokens_per_step / row.step_s)
        assert row.rounds == len(prompts)
    assert (plain.speedup, plain.tokens_per_step) == (1.0, 1.0)
    assert tree.speedup == pytest.approx(tree.tokens_per_s / plain.tokens_per_s)
    assert tree.tokens_per_step > 1.5
    assert tree.predicted_speedup == 1.5
    assert tree.predicted_at_pace is tree.pace is None


def test_parts_add_up_to_a_step(pair, prompts):
    """A clock that takes a second a reading: a step's parts and what is between two steps have one each."""
    seconds = iter(range(10**6))
    for row in rows(pair, prompts, methods(pair), clock=MonotonicClock(lambda: float(next(seconds)))):
        assert (row.draft_s, row.verify_s) == (1.0, 1.0)
        assert row.overhead_s == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_lossless_methods_pass(pair, prompts, sampling):
    found = rows(pair, prompts, methods(pair, sampling=sampling), sampling)
    assert [row.lossless for row in found] == [True, True]


@pytest.mark.slow
def test_output_of_another_model_is_not_lossless(pair, prompts):
    """Negative control: the table would say so, were a method to change the text."""
    other = Method(
        name="draft",
        option=option_of(chain(0)),
        build=lambda: Decoder(pair.draft, None, chain(0), temperature=WARM.temperature),
    )
    plain = method(pair, "plain", chain(0), sampling=WARM)
    assert [row.lossless for row in rows(pair, prompts, [plain, other], WARM, repeats=3)] == [True, False]
    greedy = replace(other, build=lambda: Decoder(pair.draft, None, chain(0), temperature=0.0))
    found = rows(pair, prompts[:1], [methods(pair)[0], greedy])
    assert [row.lossless for row in found] == [True, False]
    assert "outputs differ" in found[1].evidence


def test_dynamic_tree_passes_have_its_size(pair, prompts):
    drafter = ExpandingDrafter(pair.draft, DynamicTree(top_k=2, depth=3, nodes=6), capacity=128)
    decoder = Decoder(pair.target, drafter, temperature=0.0)
    run = decode_run(decoder, prompts[0], 12, 0, MonotonicClock())
    assert run.passes == {6: run.steps}


def test_names_are_in_table_order():
    assert select_methods(["sequoia", "chain"]) == ("plain", "chain", "sequoia")
    assert select_methods(["all"]) == NAMES
    assert (
        *(
            "plain",
            "prompt-lookup",
            "chain",
            "osd",
            "k-sequences",
            "top-k-tree",
            "medusa",
            "dflash",
            "dspark",
            "ddtree",
            "redrafter",
            "eagle",
            "p-eagle",
        ),
        *("lookahead", "specexec", "eagle2", "sequoia", "treeopt"),
    ) == NAMES
    with pytest.raises(InvalidValueError, match="Got 'jacobi'"):
        select_methods(["chain", "jacobi"])
