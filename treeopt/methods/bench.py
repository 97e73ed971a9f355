"""All methods on the same prompts, in interleaved runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from treeopt.errors import TreeoptError
from treeopt.methods.method import Method
from treeopt.planner.pace import predict_at_pace
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.interleave import Run, decode_in_parts, decode_run, interleave, repeated, whole_rounds
from treeopt.profiler.bench.losslessness import Losslessness, greedy_losslessness, sampled_losslessness
from treeopt.profiler.bench.reference_passes import ReferencePasses
from treeopt.profiler.clock import Clock, clock_for
from treeopt.records.results import NotRun, Pace, Row
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
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
    show_progress: bool = True,
) -> tuple[Row | NotRun, ...]:
    """Decode every prompt of the workload with every method and return a row for each, in the order of `methods`.

    The first method must be plain decoding, which all are compared with.  Losslessness is tested on what was decoded.
    Another whose drafter refuses the pair or a prompt becomes a `NotRun`; what plain decoding refuses is raised.
    Ctrl-C ends it after the last whole round.
    """
    clock = clock or clock_for(target.device)
    running = [_Running(method, workload, sampling, clock) for method in methods]
    rounds = interleave(
        [each.decode for each in running],
        workload.max_new_tokens,
        repeated(len(workload.prompts), workload.repeats),
        between=references.time if references else lambda: None,
    )
    found = whole_rounds(rounds, workload.rounds, show_progress=show_progress, name="methods")
    pace = references.pace if references else None
    prompts = [workload.prompts[each.prompt] for each in found]
    plain = [each.runs[0].tokens for each in found if each.runs[0] is not None]
    rows: list[Row | NotRun] = []
    for place, each in enumerate(running):
        each.decode_parts()
        if each.failure is not None:
            rows.append(each.failure)
            continue
        runs = [run for one in found if (run := one.runs[place]) is not None]
        tokens = [run.tokens for run in runs]
        tested = (
            greedy_losslessness(target, prompts, plain, tokens)
            if sampling.greedy
            else sampled_losslessness(target, prompts, tokens, sampling)
        )
        rows.append(each.row(runs, rows[0] if rows else None, tested, pace))
    return tuple(rows)


@dataclass
class _Running:
    """A method that decodes until it refuses something."""

    method: Method | NotRun
    workload: Workload
    sampling: Sampling
    clock: Clock

    def __post_init__(self) -> None:
        self.failure = self.method if isinstance(self.method, NotRun) else None
        self.parts_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
        method = self.method
        if not isinstance(method, NotRun):
            self.decoder = self._attempt(lambda: method.make(1))

    def decode(self, prompt: int, repeat: int, new_tokens: int) -> Run | None:
        """Decode a prompt; None once the method has refused something."""
        prompts = self.workload.prompts
        seed = repeat * len(prompts) + prompt
        return self._attempt(lambda: decode_run(self._made, prompts[prompt], new_tokens, seed, self.clock))

    def decode_parts(self) -> None:
        """Decode the first prompt once more, for the parts of a step."""
        found = self._attempt(
            lambda: decode_in_parts(
                self._made,
                lambda: decode_run(self._made, self.workload.prompts[0], self.workload.max_new_tokens, 0, self.clock),
                self.clock,
            )
        )
        if found is not None:
            run, parts = found
            draft_s, verify_s, _ = np.mean(parts, axis=0).tolist()
            self.parts_s = draft_s, verify_s, run.seconds / run.steps - draft_s - verify_s

    def row(self, runs: Sequence[Run], plain: Row | NotRun | None, tested: Losslessness, pace: Pace | None) -> Row:
        """Return the row of a method, compared with that of plain decoding, by default its own."""
        method = self.method
        assert isinstance(method, Method)
        tokens, steps = sum(len(run.tokens) for run in runs), sum(run.steps for run in runs)
        seconds = sum(run.seconds for run in runs)
        draft_s, verify_s, overhead_s = self.parts_s
        return Row(
            method=method.name,
            rule=method.rule,
            temperature=self.sampling.temperature,
            setting=method.setting,
            tokens_per_step=tokens / steps,
            step_s=seconds / steps,
            draft_s=draft_s,
            verify_s=verify_s,
            overhead_s=overhead_s,
            tokens_per_s=tokens / seconds,
            speedup=tokens / seconds / plain.tokens_per_s if isinstance(plain, Row) else 1.0,
            predicted_speedup=method.predicted.value,
            lossless=tested.lossless,
            evidence=tested.evidence,
            assumed=method.assumed,
            predicted_at_pace=None if method.tree is None else predict_at_pace(method.model, method.tree, pace),
            pace=pace,
            rounds=len(runs),
        )

    @property
    def _made(self) -> Decoder:
        assert self.decoder is not None
        return self.decoder

    def _attempt(self, work: Callable[[], R]) -> R | None:
        """Return what some work returns; None, with the reason kept, if the method refuses it or has refused before."""
        if self.failure is not None:
            return None
        assert isinstance(self.method, Method)
        try:
            return work()
        except TreeoptError as error:
            if self.method.name == "plain":
                raise
            self.failure = NotRun(method=self.method.name, temperature=self.sampling.temperature, reason=str(error))
            return None
