"""Timing many sizes fairly: warm-up, and rounds that visit every size; and which sizes to time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.clock import Clock, Work, repeat_without_captures
from treeopt.profiler.latency.disturbance import SampleFilter
from treeopt.profiler.settings import MAX_SAMPLES
from treeopt.records.timing_quality import interpolation_errors

SEED = 0

Tick = Callable[[], object]
"""Called after every timed call, to move a progress bar."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Times calls and stores the samples."""

    clock: Clock
    checkpoint: Checkpoint
    tick: Tick = lambda: None
    sample_filter: SampleFilter | None = None
    """Drops samples that other programs disturbed; by default all count."""
    most_samples: int = MAX_SAMPLES
    """Of every size."""
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    """Shuffles every round; shared by a whole run, so that orders do not repeat."""


def coarse_points(max_tokens: int) -> list[int]:
    """Return counts that grow by half.

    >>> coarse_points(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [2**i for i in range(max_tokens.bit_length() + 1)]
    return sorted({count for p in powers for count in (p, 3 * p // 2) if 1 <= count <= max_tokens} | {max_tokens})


def next_point(tokens: Sequence[int], seconds: Sequence[float]) -> int | None:
    """Return the count in the middle of the line with the largest `interpolation_errors`; None if all neighbours are adjacent."""
    if len(tokens) < 3 or np.diff(tokens).max() < 2:
        return None
    errors = np.where(np.diff(tokens) < 2, -1.0, interpolation_errors(tokens, seconds))
    widest = int(errors.argmax())
    return int((tokens[widest] + tokens[widest + 1]) // 2)


def time_rounds(
    kind: str,
    works: Mapping[int, Work],
    rounds: int,
    recorder: Recorder,
    *,
    prepare: Callable[[int], object] = lambda _: None,
    lead: Callable[[int], object] | None = None,
    counted: Mapping[int, Sequence[float]] | None = None,
    deadline: Deadline = NO_DEADLINE,
    first_calls: int | None = None,
) -> None:
    """Time every work until it has `rounds` samples, each round in a new random order, so that drift affects all equally.

    Before each timed call `prepare` and `lead` are called untimed, as often as the clock's warm-up demands.

    Args:
        kind: of the samples in the checkpoint.
        works: by token count or other key.
        rounds: samples of each, those in the checkpoint included.
        recorder: the clock and the checkpoint.
        prepare: called with the key before every call; without warm-up it is the only untimed call.
        lead: called with the key to leave the hardware as decoding does; by default the work itself.
        counted: the samples in the checkpoint that count; by default all.
        deadline: after which no round is started, except the first.
        first_calls: upper bound of the warm-up calls of a work without samples.
    """
    clock, checkpoint = recorder.clock, recorder.checkpoint
    call_before = lead or (lambda key: works[key]())
    max_first_calls = clock.warm_up.first_calls
    first_calls = max_first_calls if first_calls is None else min(first_calls, max_first_calls)
    samples = checkpoint.samples(kind) if counted is None else {key: list(each) for key, each in counted.items()}
    for key in works.keys() - samples.keys():
        for _ in range(first_calls):
            prepare(key)
            works[key]()
    fewest = min((len(samples.get(key, ())) for key in works), default=0)
    for number in range(fewest, rounds):
        if number > fewest and deadline.over():
            return
        missing = [key for key in works if len(samples.get(key, ())) <= number]
        for key in recorder.generator.permutation(missing).tolist():

            def time_call(key: int = key) -> float:
                prepare(key)
                for lead_number in range(clock.warm_up.lead_calls(samples.get(key, ()))):
                    if lead_number:
                        prepare(key)
                    call_before(key)
                return clock.time_s(works[key])

            seconds = repeat_without_captures(time_call)
            checkpoint.append(kind, key, (seconds,))
            samples.setdefault(key, []).append(seconds)
            if recorder.sample_filter is not None:
                recorder.sample_filter.update()
            recorder.tick()
