"""Benchmark all methods on the same prompts, in interleaved runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from treeopt.errors import TreeoptError
from treeopt.methods.method import Method
from treeopt.planner.benchmarks import predict_at_pace
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.interleave import Run, collect_rounds, decode_in_parts, decode_run
from treeopt.profiler.bench.losslessness import LosslessnessTest, greedy_losslessness, sampled_losslessness
from treeopt.profiler.bench.reference_passes import ReferencePasses
from treeopt.profiler.clock import Clock, clock_for
from treeopt.records.results import MethodRow, NotRun
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.runtime.models.model import LanguageModel

R = TypeVar("R")


def bench_methods(
    methods: Sequence[Method | NotRun],
    target: LanguageModel,
    workload: Workload,
    sampling: Sampling,
    *,
    references: ReferencePasses | None = None,
    clock: Clock | None = None,
) -> tuple[MethodRow | NotRun, ...]:
    """Decode every prompt of the workload with every method and return a row for each, in the order of `methods`.

    The first method must be plain decoding, the baseline.  Losslessness is tested on the decoded outputs.  If a method raises
    TreeoptError, it becomes a `NotRun`; errors of plain decoding propagate.  Ctrl-C ends the benchmark after the last complete
    round.
    """
    clock = clock or clock_for(target.device)
    contenders = [_Contender(method, workload, sampling, clock) for method in methods if isinstance(method, Method)]
    rounds = collect_rounds(
        [contender.decode for contender in contenders],
        workload.max_new_tokens,
        workload.rounds,
        between=references.time if references else lambda: None,
        name="methods",
    )
    prompts = [workload.prompt(number) for number in range(len(rounds))]
    runs = [[run for run in column if isinstance(run, Run)] for column in zip(*rounds, strict=True)]
    plain, rows = runs[0], dict[str, MethodRow | NotRun]()
    for contender, decoded in zip(contenders, runs, strict=True):
        parts = contender.decode_in_parts()
        if isinstance(parts, NotRun):
            rows[parts.method] = parts
            continue
        outputs = [run.tokens for run in decoded]
        if sampling.greedy:
            tested = greedy_losslessness(target, prompts, [run.tokens for run in plain], outputs)
        else:
            tested = sampled_losslessness(target, prompts, outputs, sampling)
        rows[contender.method.name] = _row(contender, decoded, plain, parts, tested, references)
    return tuple(method if isinstance(method, NotRun) else rows[method.name] for method in methods)


@dataclass(eq=False)
class _Contender:
    """A method that decodes until it raises an error."""

    method: Method
    workload: Workload
    sampling: Sampling
    clock: Clock
    decoder: Decoder | None = None
    failure: NotRun | None = None

    def decode(self, number: int, new_tokens: int) -> Run | NotRun:
        return self._attempt(lambda decoder: self._decode_run(decoder, number, new_tokens))

    def decode_in_parts(self) -> tuple[Run, list[StepSeconds]] | NotRun:
        """Return a run over the first prompt and the parts of each of its steps."""
        new_tokens = self.workload.max_new_tokens
        return self._attempt(
            lambda decoder: decode_in_parts(decoder, lambda: self._decode_run(decoder, 0, new_tokens), self.clock)
        )

    def _decode_run(self, decoder: Decoder, number: int, new_tokens: int) -> Run:
        return decode_run(decoder, self.workload.prompt(number), new_tokens, number, self.clock)

    def _attempt(self, work: Callable[[Decoder], R]) -> R | NotRun:
        """Return the result of `work`, or the method's first failure."""
        if self.failure is not None:
            return self.failure
        try:
            self.decoder = self.decoder or self.method.build()
            return work(self.decoder)
        except TreeoptError as error:
            if self.method.name == "plain":  # the baseline
                raise
            self.failure = NotRun(method=self.method.name, temperature=self.sampling.temperature, reason=str(error))
            return self.failure


def _row(
    contender: _Contender,
    runs: Sequence[Run],
    plain: Sequence[Run],
    in_parts: tuple[Run, list[StepSeconds]],
    tested: LosslessnessTest,
    references: ReferencePasses | None,
) -> MethodRow:
    """Return the row of a method, compared with the runs of plain decoding."""
    method, pace = contender.method, references.pace if references else None
    tokens, steps, seconds = _totals(runs)
    plain_tokens, _, plain_s = _totals(plain)
    run, parts = in_parts
    draft_s, verify_s, _ = np.mean(parts, axis=0).tolist()
    return MethodRow(
        method=method.name,
        rule=method.option.rule,
        temperature=contender.sampling.temperature,
        setting=method.setting,
        tokens_per_step=tokens / steps,
        step_s=seconds / steps,
        draft_s=draft_s,
        verify_s=verify_s,
        overhead_s=run.seconds / run.steps - draft_s - verify_s,
        tokens_per_s=tokens / seconds,
        speedup=tokens / seconds / (plain_tokens / plain_s),
        predicted_speedup=method.option.speedup.value,
        lossless=tested.lossless,
        evidence=tested.evidence,
        assumed=method.assumed,
        predicted_at_pace=predict_at_pace(method.model, method.option.tree, pace),
        pace=pace,
        rounds=len(runs),
    )


def _totals(runs: Sequence[Run]) -> tuple[int, int, float]:
    """Return the tokens, steps and seconds of some runs."""
    return sum(len(run.tokens) for run in runs), sum(run.steps for run in runs), sum(run.seconds for run in runs)
