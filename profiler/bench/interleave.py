"""Timed runs of several configurations, interleaved, so that a machine that drifts slows all of them alike.

All configurations decode a prompt before any of them decodes the next one.  Their order rotates from round to round, and
every second cycle runs backwards.  Whole runs are timed: a CUDA device is waited for before and after a run, never within.
What a step consists of is timed in runs of their own, which wait after each part and are not part of a reported speed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic, TypeVar

from tqdm import tqdm

from treeopt.profiler.clock import Clock
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import DecodedStep, StepSeconds

WARM_UP_TOKENS = 32
"""Decoded untimed by every configuration, because the first passes of every size are slower; a third of a shorter run."""

R = TypeVar("R")
Configuration = Callable[[int, int, int], R]
"""Decodes a prompt: from its number, the number of the repeat and the new tokens to a timed run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt decoded once, in whole steps."""

    tokens: list[int]
    """New tokens of all steps, up to the target's end token."""
    steps: int
    seconds: float
    """Without prefill."""
    passes: dict[int, int]
    """How many of the target's passes verified each number of tokens."""


@dataclass(frozen=True, slots=True)
class Round(Generic[R]):
    """One prompt, decoded once by every configuration."""

    prompt: int
    repeat: int
    runs: tuple[R, ...]


def repeated(prompts: int, repeats: int) -> Iterable[tuple[int, int]]:
    """Return all prompts of each repeat, as (prompt, repeat), before those of the next."""
    return ((prompt, repeat) for repeat, prompt in product(range(repeats), range(prompts)))


def order(configurations: int, number: int) -> list[int]:
    """Return the order of a round's configurations.

    >>> [order(3, number) for number in range(6)]
    [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]]
    """
    cycle, first = divmod(number, configurations)
    places = [(first + place) % configurations for place in range(configurations)]
    return places[::-1] if cycle % 2 else places


def interleave(
    configurations: Sequence[Configuration[R]],
    new_tokens: int,
    rounds: Iterable[tuple[int, int]],
    *,
    recorded: Callable[[int, int], R | None] = lambda *_: None,
    record: Callable[[int, int, R], object] = lambda *_: None,
    between: Callable[[], object] = lambda: None,
) -> Iterator[Round[R]]:
    """Yield rounds; every configuration warms up before its first timed run.

    Args:
        configurations: what is compared.
        new_tokens: of each run.
        rounds: prompt and repeat of each round; iterated lazily, so that it may end when a time is over.
        recorded: from the number of a configuration and a prompt to a run that is not decoded again.
        record: called with the same numbers and a run as soon as it is decoded.
        between: called before every timed run.
    """
    warm: set[int] = set()
    for number, (prompt, repeat) in enumerate(rounds):
        runs = {place: run for place in range(len(configurations)) if (run := recorded(place, prompt)) is not None}
        missing = [place for place in order(len(configurations), number) if place not in runs]
        for place in sorted({*missing} - warm):
            configurations[place](prompt, repeat, min(WARM_UP_TOKENS, -(-new_tokens // 3)))
            warm.add(place)
        for place in missing:
            between()
            runs[place] = configurations[place](prompt, repeat, new_tokens)
            record(place, prompt, runs[place])
        yield Round(prompt, repeat, tuple(runs[place] for place in range(len(configurations))))


def whole_rounds(rounds: Iterator[Round[R]], total: int, *, show_progress: bool, name: str = "bench") -> list[Round[R]]:
    """Return all rounds under a progress bar; Ctrl-C ends it after the last whole round, and is raised before the first."""
    found: list[Round[R]] = []
    with tqdm(total=total, desc=f"{name:<10}", unit="round", disable=None if show_progress else True) as bar:
        try:
            for each in rounds:
                found.append(each)
                bar.update()
        except KeyboardInterrupt:
            if not found:
                raise
    return found


def decode_run(decoder: Decoder, prompt: Sequence[int], new_tokens: int, seed: int | None, clock: Clock) -> Run:
    """Decode whole steps until a sequence has `new_tokens` new tokens, or ends; prefill is not timed."""
    steps = decoder.whole_steps(prompt, new_tokens, seed=seed)  # prefill
    tokens: list[int] = []
    sizes: list[int] = []

    def decode() -> None:
        for step in steps:
            tokens.extend(step.tokens)
            sizes.append(len(step.logits))

    seconds = clock.time_s(decode)
    ends = decoder.target.config.end_tokens
    end = next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))
    return Run(tokens[:end], len(sizes), seconds, {size: sizes.count(size) for size in sorted(set(sizes))})


def decode_in_parts(decoder: Decoder, decode: Callable[[], R], clock: Clock) -> tuple[R, list[StepSeconds]]:
    """Return a run and the parts of each of its steps; the device is waited for after every part."""
    parts: list[StepSeconds] = []

    def note(step: DecodedStep) -> None:
        if step.seconds is not None:
            parts.append(step.seconds)

    with decoder.observed(note, clock.now_s):
        return decode(), parts
