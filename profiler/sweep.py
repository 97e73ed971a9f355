"""Timing many sizes fairly: warm-up, rounds that visit every size, points added where the curve bends."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treeopt.latency import LatencyTable, Timing
from treeopt.profiler.clock import Clock, Work
from treeopt.profiler.journal import Journal

WARM_UP_CALLS = 3
PILOT_ROUNDS = 3
SEED = 0

Step = Callable[[], object]
"""Called after every timed call, to move a progress bar."""


def first_points(most: int) -> list[int]:
    """Return counts that grow by about half each: 1, 2, 3, 4, 6, 8, 12, …, `most`.

    >>> first_points(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [2**i for i in range(most.bit_length() + 1)]
    return sorted({count for p in powers for count in (p, 3 * p // 2) if 1 <= count <= most} | {most})


def next_point(tokens: Sequence[int], seconds: Sequence[float]) -> int | None:
    """Return the count whose time the straight lines between measured counts are least sure of; None if none is left.

    The error of a straight line is about a quarter of its width times the change of slope at its ends; the interval
    with the largest such error, relative to the time there, is halved.
    """
    counts, times = np.array(tokens, np.float64), np.array(seconds)
    if len(counts) < 3:
        return None
    widths = np.diff(counts)
    bends = np.abs(np.diff(np.diff(times) / widths))
    bend_at_ends = np.maximum(np.append(bends, 0.0), np.insert(bends, 0, 0.0))
    errors = bend_at_ends * widths / 4 / np.minimum(times[:-1], times[1:])
    errors[widths < 2] = -1.0
    widest = int(errors.argmax())
    return int((tokens[widest] + tokens[widest + 1]) // 2) if errors[widest] >= 0 else None


def sweep(
    kind: str,
    works: Mapping[int, Work],
    rounds: int,
    clock: Clock,
    journal: Journal,
    step: Step = lambda: None,
    prepare: Callable[[int], object] = lambda _: None,
) -> None:
    """Time every work until it has `rounds` samples, each round in a new random order, so that drift hits all alike.

    Samples go to the journal under `kind`; those already there count.  Before each timed call
    `prepare` and one call of the same work are made untimed.
    """
    generator = np.random.default_rng(SEED)
    have = journal.samples(kind)
    for key in works.keys() - have.keys():
        for _ in range(WARM_UP_CALLS):
            prepare(key)
            works[key]()
    for number in range(rounds):
        due = [key for key in works if len(have.get(key, ())) <= number]
        for key in generator.permutation(due).tolist():
            prepare(key)
            works[key]()  # leaves the caches as a call of the same size does, whatever the size before
            seconds = clock.time_s(works[key])
            journal.append(kind, key, (seconds,))
            have.setdefault(key, []).append(seconds)
            step()


def latency_table(
    kind: str,
    make_work: Callable[[int], Work],
    most: int,
    *,
    rounds: int,
    extra_points: int,
    clock: Clock,
    journal: Journal,
    step: Step = lambda: None,
) -> LatencyTable:
    """Measure the time of a pass against its tokens, from 1 to `most`.

    A pilot of a few rounds on `first_points`, then `extra_points` more where the pilot curve bends, then all rounds.
    """
    works = {tokens: make_work(tokens) for tokens in first_points(most)}
    works |= {tokens: make_work(tokens) for tokens in journal.samples(kind) if tokens not in works}
    sweep(kind, works, min(PILOT_ROUNDS, rounds), clock, journal, step)
    while len(works) < len(first_points(most)) + extra_points:
        pilot = {tokens: float(np.median(samples)) for tokens, samples in journal.samples(kind).items()}
        point = next_point(list(pilot), list(pilot.values()))
        if point is None:
            break
        works[point] = make_work(point)
        sweep(kind, {point: works[point]}, min(PILOT_ROUNDS, rounds), clock, journal, step)
    sweep(kind, works, rounds, clock, journal, step)
    samples = journal.samples(kind)
    return LatencyTable(list(samples), [Timing(values) for values in samples.values()])
