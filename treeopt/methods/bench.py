"""All methods on the same prompts, in turn, so that drift of the machine hits all alike."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tqdm import tqdm

from treeopt.errors import TreeoptError
from treeopt.methods.method import Method
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.losslessness import Losslessness, greedy_losslessness, sampled_losslessness
from treeopt.profiler.bench.timed_steps import TimedSteps, decoded_text
from treeopt.records.results import NotRun, Row
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel


@dataclass(slots=True)
class _Runner:
    method: Method
    decoder: Decoder
    steps: TimedSteps
    texts: list[list[int]]
    counts: list[int]


def bench_methods(
    methods: Sequence[Method | NotRun],
    target: LanguageModel,
    workload: Workload,
    sampling: Sampling,
    *,
    now_s: Callable[[], float] = time.perf_counter,
    show_progress: bool = True,
) -> tuple[Row | NotRun, ...]:
    """Decode every prompt of the workload with every method in turn and return a row for each, in the order given.

    The first method must be plain decoding, which all are compared with.  Losslessness is tested on what was decoded.
    Another whose drafter refuses the pair or a prompt becomes a row that says so; what plain decoding refuses is raised.
    """
    prompts, repeats = workload.prompts, workload.repeats
    runners = [_started(method, prompts[0], sampling, now_s) for method in methods]
    hidden = None if show_progress else True
    with tqdm(total=len(prompts) * repeats, desc="methods   ", unit="text", disable=hidden) as bar:
        for _ in range(repeats):
            for prompt in prompts:
                for place, runner in enumerate(runners):
                    if isinstance(runner, _Runner):
                        work = partial(_decode, runner, prompt, workload.max_new_tokens)
                        runners[place] = _attempt(work, runner.method, sampling)
                bar.update()
    all_prompts, plain = list(prompts) * repeats, runners[0]
    assert isinstance(plain, _Runner)  # what it refuses is raised
    plain_rate = _rate(plain)
    return tuple(
        runner
        if isinstance(runner, NotRun)
        else _row(runner, plain_rate, _tested(target, all_prompts, plain, runner, sampling), sampling)
        for runner in runners
    )


def _started(
    method: Method | NotRun, prompt: Sequence[int], sampling: Sampling, now_s: Callable[[], float]
) -> _Runner | NotRun:
    if isinstance(method, NotRun):
        return method
    return _attempt(partial(_runner, method, prompt, now_s), method, sampling)


def _attempt(work: Callable[[], _Runner], method: Method, sampling: Sampling) -> _Runner | NotRun:
    """Return what some work comes to, or why the method cannot do it."""
    try:
        return work()
    except TreeoptError as error:
        if method.name == "plain":
            raise
        return NotRun(method=method.name, temperature=sampling.temperature, reason=str(error))


def _runner(method: Method, prompt: Sequence[int], now_s: Callable[[], float]) -> _Runner:
    decoder = method.make(1)
    decoded_text(TimedSteps(decoder, now_s), decoder, prompt, 16)  # the first calls of every size are slower
    return _Runner(method, decoder, TimedSteps(decoder, now_s), [], [])


def _decode(runner: _Runner, prompt: Sequence[int], max_new_tokens: int) -> _Runner:
    text = decoded_text(runner.steps, runner.decoder, prompt, max_new_tokens)
    runner.texts.append([token for committed in text for token in committed])
    runner.counts.append(len(text))
    return runner


def _tested(
    target: LanguageModel, prompts: Sequence[Sequence[int]], plain: _Runner, runner: _Runner, sampling: Sampling
) -> Losslessness:
    if sampling.greedy:
        return greedy_losslessness(target, prompts, plain.texts, runner.texts)
    return sampled_losslessness(target, prompts, runner.texts, sampling)


def _rate(runner: _Runner) -> float:
    """Return tokens per second."""
    return sum(map(len, runner.texts)) / _seconds(runner)


def _seconds(runner: _Runner) -> float:
    return float(sum(runner.steps.draft_s) + sum(runner.steps.verify_s) + sum(runner.steps.rest_s))


def _row(runner: _Runner, plain_rate: float, tested: Losslessness, sampling: Sampling) -> Row:
    steps, count = runner.steps, sum(runner.counts)
    draft_s, verify_s, rest_s = (float(np.sum(each)) / count for each in (steps.draft_s, steps.verify_s, steps.rest_s))
    rate = _rate(runner)
    return Row(
        method=runner.method.name,
        rule=runner.method.rule,
        temperature=sampling.temperature,
        setting=runner.method.setting,
        tokens_per_step=sum(map(len, runner.texts)) / count,
        step_s=draft_s + verify_s + rest_s,
        draft_s=draft_s,
        verify_s=verify_s,
        rest_s=rest_s,
        tokens_per_s=rate,
        speedup=rate / plain_rate,
        predicted_speedup=runner.method.predicted.value,
        lossless=tested.lossless,
        evidence=tested.evidence,
        assumed=runner.method.assumed,
    )
