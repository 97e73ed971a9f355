"""Batched decoding with several trees at several batch sizes, in interleaved runs.

Only steps with a full batch count, and prefill is reported separately.  All tokens of a step count, including those after
the end of a sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from treeopt.errors import InvalidValueError
from treeopt.planner.benchmarks import PLAIN, BatchCandidates, predict_at_pace, tree_prediction
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.divergence import find_divergences
from treeopt.profiler.bench.interleave import collect_rounds, decode_in_parts
from treeopt.profiler.bench.reference_passes import reference_passes
from treeopt.profiler.clock import Clock, clock_for
from treeopt.profiler.decoding import Decoding
from treeopt.records.results import NO_PREDICTION, BatchBench, BatchMeasurement, BatchRow, BatchSize, Pace
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest, RequestOutput
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree


@dataclass(slots=True)
class BatchRun:
    """All prompts decoded once with one tree."""

    tokens: list[list[int]]
    """New tokens of each prompt."""
    seconds: float = 0.0
    """Of steps with a full batch; so are the next two."""
    committed: int = 0
    steps: int = 0
    joining_s: float = 0.0
    """Of steps in which sequences joined, prefill included."""
    joining_steps: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Over the whole batch."""
        return self.committed / self.seconds

    @property
    def prefill_s(self) -> float:
        """The additional time of steps in which sequences joined; 0 if noise is larger."""
        return max(0.0, self.joining_s - self.joining_steps * self.seconds / self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComparison:
    """Decodes the prompts of a workload in batches.

    Args:
        target, draft: the pair.
        candidates: the trees that are compared, by batch size.
        workload: prompts, as many as the largest batch or more, how far each is continued, and how often.
        decoding: rule and sampling.
        clock: by default that of the target's device.
    """

    target: LanguageModel
    draft: LanguageModel
    candidates: Mapping[int, BatchCandidates]
    workload: Workload
    decoding: Decoding
    clock: Clock | None = None

    def __post_init__(self) -> None:
        prompts, most = len(self.workload.prompts), max(self.candidates, default=0)
        if most < 1 or min(self.candidates) < 1 or prompts < most:
            raise InvalidValueError(
                f"batch_size: expected 1 to {prompts}, the prompts that are kept for benchmarks. Got {most}: take fewer "
                "at a time, or more prompts.",
                field="batch_size",
            )

    def bench(self) -> BatchBench:
        """Return measurements next to predictions, with a bar on standard error; Ctrl-C ends it after the last whole round.

        Raises InvalidValueError if a prompt does not fit or sequences are too short for a full batch, and OutOfMemoryError
        before anything is decoded if the caches of the largest batch do not fit.
        """
        decoder, clock = self._decoder(), self.clock or clock_for(self.target.device)
        decoder.stream_all(self._requests(), batch_size=max(self.candidates))  # raises for what does not fit
        references = {
            size: reference_passes(
                candidates.model, self.target, self.draft, candidates.trees, self.workload.prompts, clock=clock
            )
            for size, candidates in self.candidates.items()
        }
        cases = [(size, tree) for size, candidates in self.candidates.items() for tree in candidates.trees]
        alone = {tree: self._alone(decoder, tree) for _, tree in cases}

        def decode(size: int, tree: TokenTree, _: int, new_tokens: int) -> BatchRun:
            decoder.change_tree(tree)
            if new_tokens < self.workload.max_new_tokens:  # the warm-up
                return self._run(decoder, self._requests(new_tokens)[:size], size, clock)
            for other_size, passes in references.items():
                if passes is not None and other_size == size:
                    passes.time()
                elif passes is not None:
                    passes.close()
            run = self._run(decoder, self._requests(), size, clock)
            if run.steps == 0:
                raise InvalidValueError(
                    f"max_new_tokens: expected sequences long enough that {size} run together for a step after the last has "
                    f"joined. Got {new_tokens}: ask for more.",
                    field="max_new_tokens",
                )
            return run

        rounds = collect_rounds(
            [partial(decode, *case) for case in cases],
            self.workload.max_new_tokens,
            self.workload.repeats,
        )
        runs = {case: [finished[index] for finished in rounds] for index, case in enumerate(cases)}
        paces = {size: None if passes is None else passes.pace for size, passes in references.items()}
        sizes = []
        for size, candidates in self.candidates.items():
            rows = []
            for tree in candidates.trees:
                overhead = self._overhead(decoder, size, tree, clock)
                measured = self._measurement(runs[size, tree], runs[size, PLAIN], alone[tree], overhead)
                rows.append(_row(tree, candidates, measured, paces[size]))
            sizes.append(BatchSize(batch_size=size, pace=paces[size], rows=tuple(rows)))
        return BatchBench(
            rule=self.decoding.rule,
            temperature=self.decoding.sampling.temperature,
            prompts=len(self.workload.prompts),
            max_new_tokens=self.workload.max_new_tokens,
            rounds=len(rounds),
            sizes=tuple(sizes),
        )

    def _decoder(self) -> Decoder:
        longest = max(map(len, self.workload.prompts)) + self.workload.max_new_tokens
        return self.decoding.decoder(
            self.target,
            self.draft,
            max((tree for item in self.candidates.values() for tree in item.trees), key=lambda tree: tree.nodes),
            min(longest, self.target.config.max_positions),
        )

    def _requests(self, max_new_tokens: int | None = None) -> list[GenerationRequest]:
        tokens = max_new_tokens or self.workload.max_new_tokens
        return [GenerationRequest(prompt, tokens, seed=seed) for seed, prompt in enumerate(self.workload.prompts)]

    def _alone(self, decoder: Decoder, tree: TokenTree) -> list[list[int]]:
        decoder.change_tree(tree)
        return [
            list(decoder.generate(request.token_ids, request.max_new_tokens, seed=request.seed))
            for request in self._requests()
        ]

    def _overhead(self, decoder: Decoder, size: int, tree: TokenTree, clock: Clock) -> float:
        """Return the fraction of steps that is host overhead, from a separate run over one batch."""
        decoder.change_tree(tree)
        requests = self._requests()[:size]
        _, parts = decode_in_parts(decoder, lambda: self._run(decoder, requests, size, clock), clock)
        return sum(seconds.accept for seconds in parts) / sum(map(sum, parts))

    def _run(self, decoder: Decoder, requests: Sequence[GenerationRequest], size: int, clock: Clock) -> BatchRun:
        """Decode all requests once; steps in which no sequence joins are timed together until a sequence ends."""
        run, left, running = BatchRun([[] for _ in requests]), len(requests), 0
        steps = decoder.stream_all(requests, batch_size=size)
        while left:
            batch = min(size, left)
            joins, outputs = running < batch, list[RequestOutput]()

            def decode(joins: bool = joins, batch: int = batch, outputs: list[RequestOutput] = outputs) -> None:
                while True:
                    step = list(islice(steps, batch))  # a step yields one output per running sequence
                    outputs.extend(step)
                    if joins or any(output.finished for output in step):
                        return

            seconds = clock.time_s(decode)
            for output in outputs:
                if output.error is not None:
                    raise output.error
                run.tokens[output.request] += output.tokens
            finished = sum(output.finished for output in outputs)
            left, running = left - finished, batch - finished
            if joins:
                run.joining_s, run.joining_steps = run.joining_s + seconds, run.joining_steps + 1
            elif batch == size:
                run.seconds, run.steps = run.seconds + seconds, run.steps + len(outputs) // size
                run.committed += sum(output.committed_tokens for output in outputs)
        return run

    def _measurement(
        self, runs: Sequence[BatchRun], plain: Sequence[BatchRun], alone: Sequence[list[int]], overhead: float
    ) -> BatchMeasurement:
        rates = [run.tokens_per_s for run in runs]
        speedups = [run.tokens_per_s / plain_run.tokens_per_s for run, plain_run in zip(runs, plain, strict=True)]
        outputs = {number: [(expected, run.tokens[number]) for run in runs] for number, expected in enumerate(alone)}
        return BatchMeasurement(
            tokens_per_s=float(np.median(rates)),
            step_s=float(np.median([run.seconds / run.steps for run in runs])),
            batch_tokens_per_step=sum(run.committed for run in runs) / sum(run.steps for run in runs),
            speedup=float(np.median(speedups)),
            spread=1 - min(rates) / max(rates),
            overhead=overhead,
            prefill_s=float(np.median([run.prefill_s for run in runs])),
            outputs=len(alone),
            divergences=find_divergences(self.target, self.workload.prompts, outputs),
        )


def _row(tree: TokenTree, candidates: BatchCandidates, measured: BatchMeasurement, pace: Pace | None) -> BatchRow:
    option = candidates.predicted.get(tree)
    predicted = NO_PREDICTION
    if option is not None:
        predicted = tree_prediction(option, predict_at_pace(candidates.model, tree, pace))
    return BatchRow(tree=tree, chosen=tree == candidates.chosen, predicted=predicted, measured=measured)
