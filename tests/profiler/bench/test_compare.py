"""Tree decoding compared with plain decoding under a fake clock: speedups are exact."""

import pytest

from tests.support.bench import bench
from treeopt.errors import InvalidValueError
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.interleave import order
from treeopt.runtime import Decoder, Verdict
from treeopt.runtime.decoding import acceptance
from treeopt.trees import chain, level_widths


@pytest.fixture
def passes(target, monkeypatch):
    """Return the sizes of the target's passes, as they are made."""
    sizes = []
    forward = target.forward

    def seen(inputs, *arguments, **keywords):
        sizes.append(sum(sequence.nodes.rows for sequence in inputs))
        return forward(inputs, *arguments, **keywords)

    monkeypatch.setattr(target, "forward", seen)
    return sizes


@pytest.fixture
def twin(make_model):
    """Return a draft model that wants exactly what the target wants."""
    return make_model(seed=1)


def bench_quietly(*arguments, now_s=None, **keywords):
    clock = None if now_s is None else MonotonicClock(now_s)
    return bench(*arguments, **{"max_new_tokens": 8, "repeats": 3, "show_progress": False, "clock": clock} | keywords)


def test_the_speedup_is_exact(target, twin, prompts, passes):
    measured = bench_quietly(
        target, twin, chain(3), prompts, now_s=lambda: sum(1.5 if size > 1 else 1.0 for size in passes)
    )
    assert measured.speedup.value == pytest.approx(8 / 3)  # 2 steps of 1.5 s in place of 8 of 1 s
    assert (measured.speedup.low, measured.speedup.high) == pytest.approx((8 / 3, 8 / 3))
    assert measured.tokens_per_step == 4
    assert measured.step_s == pytest.approx(1.5)
    assert measured.plain_step_s == pytest.approx(1.0)
    assert measured.identical is True
    assert measured.tokens == 8 * len(prompts)


def test_runs_are_interleaved_after_a_warm_up(target, twin, prompts, passes):
    bench_quietly(target, twin, chain(3), prompts[:2], max_new_tokens=4, repeats=2)
    plain, tree = [1, 1, 1, 1], [4]
    warm_up = [1, 1, 4]
    assert passes == [*warm_up, *plain, *tree, *tree, *plain, *tree, *plain, *plain, *tree]


def test_the_last_step_counts_whole(target, twin, prompts, passes):
    """Cut off at 5 tokens, two steps of 4 would seem to yield 2.5."""
    measured = bench_quietly(target, twin, chain(3), prompts, max_new_tokens=5, now_s=lambda: float(len(passes)))
    assert measured.tokens_per_step == 4
    assert measured.speedup.value == pytest.approx(4.0)
    assert measured.identical is True


def test_filling_the_cache_is_not_timed(target, twin, prompts, passes, monkeypatch):
    prefill = target.prefill
    monkeypatch.setattr(target, "prefill", lambda *a: passes.extend([1] * 1000) or prefill(*a))
    measured = bench_quietly(target, twin, chain(3), prompts, now_s=lambda: float(len(passes)))
    assert measured.plain_step_s == measured.step_s == 1.0


def clock_of(plain, tree):
    """Return a clock under which the runs take these seconds in their interleaved order, after the two of the warm-up."""
    times, runs = [0.0], [iter(plain), iter(tree)]
    seconds = [next(runs[place]) for number in range(len(plain)) for place in order(2, number)]
    for each in [1.0, 1.0, *seconds]:
        times += [times[-1] + 100.0, times[-1] + 100.0 + each]
    readings = iter(times[1:])
    return lambda: next(readings)


def test_the_median_of_each_prompt_counts(target, twin, prompts):
    # both prompts in each of three repeats: medians 12 and 5, then 8 and 3
    clock = clock_of([10, 8, 100, 9, 12, 7], [5, 2, 4, 3, 50, 4])
    measured = bench_quietly(target, twin, chain(3), prompts[:2], now_s=clock)
    assert measured.speedup.value == pytest.approx(20 / 8)
    assert measured.speedup.low == pytest.approx(12 / 5)
    assert measured.speedup.high == pytest.approx(8 / 3)
    assert measured.plain_step_s == pytest.approx(20 / 16)
    assert measured.step_s == pytest.approx(8 / 4)


def test_an_interruption_keeps_what_was_measured(target, twin, prompts, passes):
    stopped = []

    def now_s():
        stopped.append(1)
        if len(stopped) > 4 + 2 * 4 + 2:  # the warm-up, two rounds, half of the third
            raise KeyboardInterrupt
        return sum(1.5 if size > 1 else 1.0 for size in passes)

    measured = bench_quietly(target, twin, chain(3), prompts, now_s=now_s)
    assert (measured.prompts, measured.rounds) == (2, 2)
    assert measured.speedup.value == pytest.approx(8 / 3)
    assert measured.tokens == 16


def test_an_interruption_before_anything_was_measured_is_passed_on(target, twin, prompts):
    readings = iter([0.0, 1.0, 2.0, 3.0, 4.0])

    def now_s():
        try:
            return next(readings)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        bench_quietly(target, twin, chain(3), prompts, now_s=now_s)


def test_the_speedup_counts_tokens_of_all_prompts(make_model, twin, prompts):
    free = make_model(seed=1)
    texts = [list(Decoder(free, None, chain(0), temperature=0.0).generate(prompt, 8)) for prompt in prompts]
    end = texts[0][2]
    lengths = [text.index(end) + 1 if end in text else 8 for text in texts]
    target = make_model(seed=1, end_tokens=(end,))
    clock = clock_of([2.0] * len(prompts), [1.0] * len(prompts))
    measured = bench_quietly(target, twin, chain(3), prompts, repeats=1, now_s=clock)
    assert lengths[0] <= 3
    assert measured.tokens == sum(lengths)
    assert measured.tokens_per_step == pytest.approx(sum(lengths) / sum(-(-length // 4) for length in lengths))
    assert measured.plain_step_s == pytest.approx(2.0 * len(prompts) / sum(lengths))
    assert measured.speedup.value == pytest.approx(2.0)


def test_another_draft_gives_the_same_text(target, draft, prompts):
    measured = bench_quietly(target, draft, level_widths([3, 2, 2]), prompts, max_new_tokens=20, repeats=1)
    assert measured.identical is True
    assert 1 <= measured.tokens_per_step < 4
    assert measured.speedup.low <= measured.speedup.value <= measured.speedup.high
    assert measured.step_s > 0


def test_a_text_that_differs_is_found(target, draft, prompts, monkeypatch):
    def accept_the_first_child(children, tokens, target_tokens):
        verdict = true_verdict(children, tokens, target_tokens)
        return Verdict(verdict.nodes, (verdict.bonus + 1) % 23) if len(tokens) > 1 else verdict

    true_verdict = acceptance.verify_greedy
    monkeypatch.setattr(acceptance, "verify_greedy", accept_the_first_child)
    assert bench_quietly(target, draft, chain(2), prompts, repeats=1).identical is False


def test_above_temperature_zero_texts_are_not_compared(target, draft, prompts):
    measured = bench_quietly(target, draft, chain(2), prompts, repeats=1, temperature=0.8, top_p=0.9)
    assert measured.identical is None
    assert 8 * len(prompts) <= measured.tokens <= (8 + 2) * len(prompts)  # whole steps only


def test_progress_goes_to_standard_error(target, prompts, capsys):
    bench_quietly(target, target, chain(1), prompts[:1], repeats=1, show_progress=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompts": []}, "prompts, max_new_tokens, repeats: expected at least one"),
        ({"prompts": [[1], []]}, "token_ids: expected at least one"),
        ({"prompts": [[1], [23]]}, "token_ids: expected tokens from 0 to 22"),
        ({"max_new_tokens": 0}, "expected at least one of each"),
        ({"repeats": 0}, "expected at least one of each"),
        ({"max_new_tokens": 200}, "max_new_tokens: expected at most"),
        ({"temperature": -1.0}, "temperature: "),
    ],
)
def test_refusals(target, changes, reason):
    arguments = {"prompts": [[1, 2]], "max_new_tokens": 4} | changes
    with pytest.raises(InvalidValueError, match=reason):
        bench(target, target, chain(1), arguments.pop("prompts"), show_progress=False, **arguments)
