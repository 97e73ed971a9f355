"""Timing many sizes fairly: warm-up, rounds that visit every size, and where a curve bends."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treeopt.profiler.clock import Work
from treeopt.profiler.recorder import Recorder
from treeopt.records.steadiness import line_errors

EACH = 12
"""Up to so many tokens every count is timed: chains are chosen among that differ by one node, and odd counts take longer."""

Step = Callable[[], object]
"""Called after every timed call, to move a progress bar."""


def first_points(most: int) -> list[int]:
    """Return every count up to EACH, then such that grow by about half each: 16, 24, 32, …, `most`.

    >>> first_points(20)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 20]
    """
    return sorted({*range(1, min(EACH, most) + 1), *coarse_points(most)})


def coarse_points(most: int) -> list[int]:
    """Return counts that grow by about half each, up to `most`.

    >>> coarse_points(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [2**i for i in range(most.bit_length() + 1)]
    return sorted({count for p in powers for count in (p, 3 * p // 2) if 1 <= count <= most} | {most})


def next_point(tokens: Sequence[int], seconds: Sequence[float]) -> int | None:
    """Return the count in the middle of the line that is least sure; None if no count lies between two neighbours.

    See `line_errors`.
    """
    if len(tokens) < 3 or np.diff(tokens).max() < 2:
        return None
    errors = np.where(np.diff(tokens) < 2, -1.0, line_errors(tokens, seconds))
    widest = int(errors.argmax())
    return int((tokens[widest] + tokens[widest + 1]) // 2)


def timed_rounds(
    kind: str,
    works: Mapping[int, Work],
    rounds: int,
    recorder: Recorder,
    *,
    prepare: Callable[[int], object] = lambda _: None,
    lead: Callable[[int], object] | None = None,
    counted: Mapping[int, Sequence[float]] | None = None,
    over: Callable[[], bool] = lambda: False,
    first_calls: int | None = None,
) -> None:
    """Time every work until it has `rounds` samples, each round in a new random order, so that drift hits all alike.

    Of the samples that the journal holds, `counted` are those that count: by default all.  No round begins once `over`
    returns True, save the first.  `first_calls` limits the warm-up of works that were never timed.

    Samples go to the journal under `kind`; those already there count.  Before each timed call `prepare` and `lead` are
    called untimed, as often as the clock's warm-up says; `lead` leaves the hardware as decoding finds it, by default by
    calls of the same work.  Without warm-up `prepare` alone is called.
    """
    clock, journal = recorder.clock, recorder.journal
    before = lead or (lambda key: works[key]())
    have = journal.samples(kind) if counted is None else {key: list(each) for key, each in counted.items()}
    for key in works.keys() - have.keys():
        for _ in range(
            clock.warm_up.first_calls if first_calls is None else min(first_calls, clock.warm_up.first_calls)
        ):
            prepare(key)
            works[key]()
    fewest = min((len(have.get(key, ())) for key in works), default=0)
    for number in range(fewest, rounds):
        if number > fewest and over():
            return
        due = [key for key in works if len(have.get(key, ())) <= number]
        for key in recorder.order.permutation(due).tolist():
            prepare(key)
            for lead_number in range(clock.warm_up.lead_calls(have.get(key, ()))):
                if lead_number:
                    prepare(key)
                before(key)
            seconds = clock.time_s(works[key])
            journal.append(kind, key, (seconds,))
            have.setdefault(key, []).append(seconds)
            recorder.tick()
