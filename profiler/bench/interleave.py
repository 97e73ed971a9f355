"""Timed runs of several configurations, interleaved, so that drift affects all of them equally.

All configurations decode a prompt before any of them decodes the next one.  Their order rotates from round to round, and
every second cycle is reversed.  Whole runs are timed: a CUDA device is synchronized before and after a run, never within.
The parts of a step are timed in separate runs, which synchronize after each part and do not count for speeds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from treeopt.profiler.clock import Clock, repeat_without_captures
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import StepEvent, StepSeconds

WARM_UP_TOKENS = 32
"""New tokens of the warm-up of every configuration; a third of a shorter run."""

R = TypeVar("R")
Configuration = Callable[[int, int], R]
"""From the number of a round and the number of new tokens to a timed run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt decoded once, in whole steps."""

    tokens: list[int]
    """New tokens of all steps, up to the end token."""
    seconds: float
    """Without prefill."""
    passes: dict[int, int]
    """The number of the target's passes by their tokens; every step has one."""

    @property
    def steps(self) -> int:
        return sum(self.passes.values())


def order(configurations: int, number: int) -> list[int]:
    """Return the order of configurations in the n-th round.

    >>> [order(3, number) for number in range(6)]
    [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]]
    """
    cycle, first = divmod(number, configurations)
    indices = [(first + offset) % configurations for offset in range(configurations)]
    return indices[::-1] if cycle % 2 else indices


def interleave(
    configurations: Sequence[Configuration[R]],
    new_tokens: int,
    numbers: Iterable[int],
    *,
    recorded: Callable[[int, int], R | None] = lambda *_: None,
    record: Callable[[int, int, R], object] = lambda *_: None,
    between: Callable[[], object] = lambda: None,
) -> Iterator[tuple[R, ...]]:
    """Yield the runs of all configurations, round by round; every configuration warms up before its first timed run.

    Args:
        configurations: what is compared.
        new_tokens: of each run.
        numbers: one for each round, such as that of a prompt; iterated lazily, so that it may end at a deadline.
        recorded: from the index of a configuration and the number of a round to a run that is not decoded again.
        record: called with both and each new run.
        between: called before every timed run.
    """
    warm: set[int] = set()
    for turn, number in enumerate(numbers):
        runs = {index: run for index in range(len(configurations)) if (run := recorded(index, number)) is not None}
        missing = [index for index in order(len(configurations), turn) if index not in runs]
        for index in sorted({*missing} - warm):
            configurations[index](number, min(WARM_UP_TOKENS, -(-new_tokens // 3)))
            warm.add(index)
        for index in missing:
            between()
            runs[index] = repeat_without_captures(partial(configurations[index], number, new_tokens))
            record(index, number, runs[index])
        yield tuple(runs[index] for index in range(len(configurations)))


def collect_rounds(
    configurations: Sequence[Configuration[R]],
    new_tokens: int,
    rounds: int,
    *,
    between: Callable[[], object] = lambda: None,
    name: str = "bench",
) -> list[tuple[R, ...]]:
    """Return interleaved runs, with a progress bar; Ctrl-C ends after the last whole round, and is raised before the first.

    Arguments as for `interleave`.
    """
    finished: list[tuple[R, ...]] = []
    with tqdm(total=rounds, desc=f"{name:<10}", unit="round", disable=None) as bar:
        try:
            for runs in interleave(configurations, new_tokens, range(rounds), between=between):
                finished.append(runs)
                bar.update()
        except KeyboardInterrupt:
            if not finished:
                raise
    return finished


def decode_run(decoder: Decoder, prompt: Sequence[int], new_tokens: int, seed: int | None, clock: Clock) -> Run:
    """Decode whole steps until a sequence has `new_tokens` new tokens, or ends; prefill is not timed."""
    steps = decoder.decode_steps(prompt, new_tokens, seed=seed)  # prefill
    tokens: list[int] = []
    sizes: list[int] = []

    def decode() -> None:
        for step in steps:
            tokens.extend(step.tokens)
            sizes.append(len(step.logits))

    seconds = clock.time_s(decode)
    ends = decoder.target.config.end_tokens
    end = next((index + 1 for index, token in enumerate(tokens) if token in ends), len(tokens))
    return Run(tokens[:end], seconds, {size: sizes.count(size) for size in sorted(set(sizes))})


def decode_in_parts(decoder: Decoder, decode: Callable[[], R], clock: Clock) -> tuple[R, list[StepSeconds]]:
    """Return a run and the seconds of the parts of each step; the device is synchronized after every part."""
    parts: list[StepSeconds] = []

    def append_parts(step: StepEvent) -> None:
        if step.seconds is not None:
            parts.append(step.seconds)

    with decoder.observed(append_parts, clock.now_s):
        return decode(), parts
