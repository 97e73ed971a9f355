"""Several texts at a time, decoded in some ways in turn at some batch sizes: tokens per second, and whether texts stay.

Steps count in which as many texts run as are to and none has just joined, so that a rate is that of its batch size, and
the reading of prompts is told apart.  A step's tokens count whole, those behind the end of a text too.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from tqdm import tqdm

from treeopt.errors import InvalidValueError
from treeopt.planner.batch_rivals import PLAIN, BatchRivals
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.bench.divergence import divergence
from treeopt.profiler.bench.timed_passes import PassSeconds
from treeopt.profiler.decoding import Decoding
from treeopt.records.batch_bench import BatchBench, BatchMeasured, BatchRow, BatchSize, MeasuredWay
from treeopt.records.results import Divergence
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import TextRequest
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import TokenTree

WARM_UP_TOKENS = 8
Ways = Mapping[int, Sequence[TokenTree]]
"""The trees that are raced at each batch size, plain decoding first."""


@dataclass(slots=True)
class BatchRun:
    """All prompts decoded once in one way."""

    texts: list[list[int]]
    seconds: float = 0.0
    """Of the steps that count, and so are the next three."""
    passes_s: float = 0.0
    tokens: int = 0
    steps: int = 0
    joining_s: float = 0.0
    """Of the steps in which texts joined."""
    joining_steps: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Of all texts."""
        return self.tokens / self.seconds

    @property
    def prefill_s(self) -> float:
        """Seconds of reading prompts: what steps with new texts take beyond others; 0 where noise is more."""
        return max(0.0, self.joining_s - self.joining_steps * self.seconds / self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRace:
    """Decodes the prompts of a workload in batches.

    Args:
        target, draft: the pair.
        ways: what is raced at each batch size.
        workload: prompts, as many as the largest batch or more, how far each is continued, and how often.
        decoding: rule and sampling.
        now_s: the clock.
    """

    target: LanguageModel
    draft: LanguageModel
    ways: Ways
    workload: Workload
    decoding: Decoding
    now_s: Callable[[], float] = time.perf_counter
    passes: PassSeconds = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", PassSeconds(self.now_s))
        prompts, most = len(self.workload.prompts), max(self.ways, default=0)
        if most < 1 or min(self.ways) < 1 or prompts < most:
            raise InvalidValueError(
                f"batch_size: expected 1 to {prompts}, the prompts that are kept for benchmarks. Got {most}: take fewer "
                "at a time, or more prompts.",
                field="batch_size",
            )

    def measure(self, *, show_progress: bool = True) -> BatchMeasured:
        """Decode alone, then in rounds at every size in every way; Ctrl-C ends it after the last whole round.

        Raises InvalidValueError where a prompt does not fit or texts are too short to run together, OutOfMemoryError
        before anything is decoded where caches of the largest batch do not fit.
        """
        decoder = self._decoder()
        decoder.steps_of_all(self._requests(), batch_size=max(self.ways))  # refuses now what does not fit
        total = len(self._trees) + self.workload.repeats * sum(map(len, self.ways.values()))
        rounds: list[dict[tuple[int, TokenTree], BatchRun]] = []
        with tqdm(total=total, desc="bench     ", unit="run", disable=None if show_progress else True) as bar:
            alone = {tree: self._alone(decoder, tree, bar.update) for tree in self._trees}
            self._warm_up(decoder)
            try:
                for _ in range(self.workload.repeats):
                    found: dict[tuple[int, TokenTree], BatchRun] = {}
                    for size, trees in self.ways.items():
                        for tree in trees:
                            found[size, tree] = self._run(decoder, tree, size)
                            bar.update()
                    rounds.append(found)
            except KeyboardInterrupt:
                if not rounds:
                    raise
        ways = {
            (size, tree): self._measured(
                [each[size, tree] for each in rounds], [each[size, PLAIN] for each in rounds], alone[tree]
            )
            for size, trees in self.ways.items()
            for tree in trees
        }
        return BatchMeasured(ways=ways, rounds=len(rounds))

    @property
    def _trees(self) -> list[TokenTree]:
        return list(dict.fromkeys(tree for trees in self.ways.values() for tree in trees))

    def _decoder(self) -> Decoder:
        """Return the decoder of all ways, without CUDA graphs: the seconds of a pass that is replayed cannot be told apart."""
        longest = max(map(len, self.workload.prompts)) + self.workload.max_new_tokens
        return Decoder(
            self.passes.timed(self.target),
            self.passes.timed(self.draft),
            max(self._trees, key=lambda tree: tree.nodes),
            rule=self.decoding.rule,
            sampling=self.decoding.sampling,
            draft_sampling=self.decoding.draft_sampling,
            lossy=self.decoding.lossy,
            max_text_tokens=min(longest, self.target.config.max_positions),
            cuda_graphs=False,
        )

    def _requests(self, max_new_tokens: int | None = None) -> list[TextRequest]:
        tokens = max_new_tokens or self.workload.max_new_tokens
        return [TextRequest(prompt, tokens, seed=seed) for seed, prompt in enumerate(self.workload.prompts)]

    def _alone(self, decoder: Decoder, tree: TokenTree, tick: Callable[[], object]) -> list[list[int]]:
        """Return the texts of one tree, each decoded by itself."""
        decoder.change_tree(tree)
        texts = [
            list(decoder.generate(each.token_ids, each.max_new_tokens, seed=each.seed)) for each in self._requests()
        ]
        tick()
        return texts

    def _warm_up(self, decoder: Decoder) -> None:
        """Make all caches, and take the first steps, which are slower."""
        few = self._requests(min(WARM_UP_TOKENS, self.workload.max_new_tokens))
        for size, trees in self.ways.items():
            for tree in trees:
                decoder.change_tree(tree)
                for _ in decoder.steps_of_all(few[:size], batch_size=size):
                    pass

    def _run(self, decoder: Decoder, tree: TokenTree, size: int) -> BatchRun:
        """Decode all prompts once.

        Raises InvalidValueError where no step counts.
        """
        decoder.change_tree(tree)
        requests = self._requests()
        run, left, began = BatchRun([[] for _ in requests]), len(requests), set[int]()
        steps = decoder.steps_of_all(requests, batch_size=size)
        while left:
            passes_s, start_s = self.passes.total_s, self.now_s()
            found = list(islice(steps, min(size, left)))  # each text that runs has a part in each step
            seconds = self.now_s() - start_s
            for each in found:
                if each.error is not None:
                    raise each.error
                run.texts[each.text] += each.tokens
                left -= each.ended
            if not began.issuperset(each.text for each in found):
                began.update(each.text for each in found)
                run.joining_s, run.joining_steps = run.joining_s + seconds, run.joining_steps + 1
            elif len(found) == size:
                run.seconds, run.steps = run.seconds + seconds, run.steps + 1
                run.passes_s += self.passes.total_s - passes_s
                run.tokens += sum(each.committed for each in found)
        if run.steps == 0:
            raise InvalidValueError(
                f"max_new_tokens: expected texts long enough that {size} run together for a step after the last has joined. "
                f"Got {self.workload.max_new_tokens}: ask for more.",
                field="max_new_tokens",
            )
        return run

    def _measured(self, runs: Sequence[BatchRun], plain: Sequence[BatchRun], alone: Sequence[list[int]]) -> MeasuredWay:
        """Return what the rounds of one way come to, beside plain decoding in the same rounds."""
        rates = [run.tokens_per_s for run in runs]
        steps = sum(run.steps for run in runs)
        size_tokens = sum(run.tokens for run in runs) / steps
        return MeasuredWay(
            tokens_per_s=float(np.median(rates)),
            step_s=float(np.median([run.seconds / run.steps for run in runs])),
            batch_tokens_per_step=size_tokens,
            speedup=float(
                np.median([run.tokens_per_s / each.tokens_per_s for run, each in zip(runs, plain, strict=True)])
            ),
            spread=1 - min(rates) / max(rates),
            rest=float(np.median([1 - run.passes_s / run.seconds for run in runs])),
            prefill_s=float(np.median([run.prefill_s for run in runs])),
            texts=len(alone),
            divergences=self._divergences(runs, alone),
        )

    def _divergences(self, runs: Sequence[BatchRun], alone: Sequence[list[int]]) -> tuple[Divergence, ...]:
        """Return where texts first part from those decoded alone, in the first round in which they do."""
        found = []
        for number, (prompt, expected) in enumerate(zip(self.workload.prompts, alone, strict=True)):
            texts = (run.texts[number] for run in runs if run.texts[number] != expected)
            if (text := next(texts, None)) is not None:
                parted = divergence(self.target, number, prompt, expected, text)
                found += [] if parted is None else [parted]
        return tuple(found)


def batch_bench(race: BatchRace, rivals: Mapping[int, BatchRivals], *, show_progress: bool = True) -> BatchBench:
    """Return what a race comes to beside what was predicted; raises as `BatchRace.measure` does."""
    measured = race.measure(show_progress=show_progress)
    return BatchBench(
        rule=race.decoding.rule,
        temperature=race.decoding.sampling.temperature,
        prompts=len(race.workload.prompts),
        max_new_tokens=race.workload.max_new_tokens,
        rounds=measured.rounds,
        sizes=tuple(
            BatchSize(
                batch_size=size,
                rows=tuple(_row(size, tree, each, measured.ways[size, tree]) for tree in each.trees),
            )
            for size, each in rivals.items()
        ),
    )


def _row(size: int, tree: TokenTree, rivals: BatchRivals, measured: MeasuredWay) -> BatchRow:
    predicted = rivals.predicted.get(tree)
    tokens = None if predicted is None else predicted.tokens_per_step.value
    step_s = None if predicted is None else predicted.step_s.value
    return BatchRow(
        tree=tree,
        chosen=tree == rivals.chosen,
        measured=measured,
        predicted_tokens_per_s=None if tokens is None or step_s is None else size * tokens / step_s,
        predicted_tokens_per_step=tokens,
        predicted_step_s=step_s,
        predicted_speedup=None if predicted is None else predicted.speedup.value,
    )
