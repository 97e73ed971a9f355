"""Speedups over plain decoding are exact under a fake clock."""

import pytest

from tests.support.bench import bench
from treeopt.errors import InvalidValueError
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.interleave import order
from treeopt.runtime import Decoder
from treeopt.trees import chain, level_widths


@pytest.fixture
def passes(target, monkeypatch):
    """Return the sizes of the target's passes, as they are made."""
    sizes, forward = [], target.forward

    def record(inputs, *arguments, **options):
        sizes.append(sum(sequence.nodes.rows for sequence in inputs))
        return forward(inputs, *arguments, **options)

    monkeypatch.setattr(target, "forward", record)
    return sizes


@pytest.fixture
def twin(make_model):
    """Return a draft model that equals the target."""
    return make_model(seed=1)


def measure(*arguments, now_s=None, **options):
    clock = None if now_s is None else MonotonicClock(now_s)
    return bench(*arguments, **{"max_new_tokens": 8, "repeats": 3, "clock": clock} | options)


def seconds_of(passes):
    return sum(1.5 if size > 1 else 1.0 for size in passes)


def test_speedup_is_exact_and_excludes_prefill(target, twin, prompts, passes, monkeypatch):
    prefill = target.prefill
    monkeypatch.setattr(target, "prefill", lambda *inputs: passes.extend([1] * 1000) or prefill(*inputs))
    measured = measure(target, twin, chain(3), prompts, now_s=lambda: seconds_of(passes))
    speedup = measured.speedup
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((8 / 3,) * 3)  # 2 steps of 1.5 s for 8 of 1 s
    assert (measured.tokens_per_step, measured.tokens, measured.identical) == (4, 8 * len(prompts), True)
    assert (measured.step_s, measured.plain_step_s) == pytest.approx((1.5, 1.0))


def test_runs_are_interleaved_after_a_warm_up(target, twin, prompts, passes):
    measure(target, twin, chain(3), prompts[:2], max_new_tokens=4, repeats=2)
    plain, tree = [1, 1, 1, 1], [4]
    warm_up = [1, 1, 4]
    assert passes == [*warm_up, *plain, *tree, *tree, *plain, *tree, *plain, *plain, *tree]


def test_all_tokens_of_the_last_step_count(target, twin, prompts, passes):
    """Cut off at 5 tokens, two steps of 4 would seem to yield 2.5."""
    measured = measure(target, twin, chain(3), prompts, max_new_tokens=5, now_s=lambda: float(len(passes)))
    assert (measured.tokens_per_step, measured.identical) == (4, True)
    assert measured.speedup.value == pytest.approx(4.0)


def clock_of(plain, tree):
    """Return a clock under which the runs take these seconds in their interleaved order, after two of warm-up."""
    times, runs = [0.0], [iter(plain), iter(tree)]
    seconds = [next(runs[place]) for number in range(len(plain)) for place in order(2, number)]
    for run_s in [1.0, 1.0, *seconds]:
        times += [times[-1] + 100.0, times[-1] + 100.0 + run_s]
    readings = iter(times[1:])
    return lambda: next(readings)


def test_median_of_the_repeats_of_each_prompt_counts(target, twin, prompts):
    # both prompts in each of three repeats: medians 12 and 5, then 8 and 3
    clock = clock_of([10, 8, 100, 9, 12, 7], [5, 2, 4, 3, 50, 4])
    measured = measure(target, twin, chain(3), prompts[:2], now_s=clock)
    speedup = measured.speedup
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((20 / 8, 12 / 5, 8 / 3))
    assert (measured.plain_step_s, measured.step_s) == pytest.approx((20 / 16, 8 / 4))


@pytest.mark.parametrize(("readings", "rounds"), [(4 + 2 * 4 + 2, 2), (5, None)])  # 4 of the warm-up, 4 of a round
def test_ctrl_c_keeps_whole_rounds(target, twin, prompts, passes, readings, rounds):
    calls = []

    def now_s():
        calls.append(1)
        if len(calls) > readings:
            raise KeyboardInterrupt
        return seconds_of(passes)

    if rounds is None:
        with pytest.raises(KeyboardInterrupt):
            measure(target, twin, chain(3), prompts, now_s=now_s)
    else:
        measured = measure(target, twin, chain(3), prompts, now_s=now_s)
        assert (measured.prompts, measured.rounds, measured.tokens) == (rounds, rounds, 8 * rounds)
        assert measured.speedup.value == pytest.approx(8 / 3)


def test_speedup_counts_tokens_up_to_the_end_token(make_model, twin, prompts):
    plain = Decoder(make_model(seed=1), None, chain(0), temperature=0.0)
    outputs = [list(plain.generate(prompt, 8)) for prompt in prompts]
    end = outputs[0][2]
    lengths = [output.index(end) + 1 if end in output else 8 for output in outputs]
    target, clock = make_model(seed=1, end_tokens=(end,)), clock_of([2.0] * len(prompts), [1.0] * len(prompts))
    measured = measure(target, twin, chain(3), prompts, repeats=1, now_s=clock)
    assert lengths[0] <= 3
    assert measured.tokens == sum(lengths)
    assert measured.tokens_per_step == pytest.approx(sum(lengths) / sum(-(-length // 4) for length in lengths))
    assert measured.plain_step_s == pytest.approx(2.0 * len(prompts) / sum(lengths))
    assert measured.speedup.value == pytest.approx(2.0)


def test_another_draft_has_the_same_output_and_progress_goes_to_stderr(target, draft, prompts, capsys):
    options = {"max_new_tokens": 20, "repeats": 1}
    measured = measure(target, draft, level_widths([3, 2, 2]), prompts[:3], **options)
    assert capsys.readouterr().out == ""
    assert measured.identical is True
    assert 1 <= measured.tokens_per_step < 4
    assert measured.speedup.low <= measured.speedup.value <= measured.speedup.high
    assert measured.step_s > 0


def test_sampled_outputs_are_not_compared(target, draft, prompts):
    measured = measure(target, draft, chain(2), prompts, repeats=1, temperature=0.8, top_p=0.9)
    assert measured.identical is measured.divergences is None
    assert 8 * len(prompts) <= measured.tokens <= (8 + 2) * len(prompts)  # whole steps


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompts": []}, "prompts, max_new_tokens, repeats: expected at least one"),
        ({"prompts": [[1], []]}, "token_ids: expected at least one"),
        ({"max_new_tokens": 0}, "expected at least one of each"),
        ({"repeats": 0}, "expected at least one of each"),
        ({"max_new_tokens": 200}, "max_new_tokens: expected at most"),
    ],
)
def test_workloads_that_cannot_be_decoded_are_refused(target, changes, reason):
    options = {"prompts": [[1, 2]], "max_new_tokens": 4} | changes
    with pytest.raises(InvalidValueError, match=reason):
        bench(target, target, chain(1), options.pop("prompts"), **options)
