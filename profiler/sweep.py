"""Timing many sizes fairly: warm-up, rounds that visit every size, and where a curve bends."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treeopt.profiler.clock import Clock, Work
from treeopt.profiler.journal import Journal
from treeopt.steadiness import line_errors

WARM_UP_CALLS = 3
LEAD_S = 0.01
"""How long a size is run before a call of it is timed."""
MOST_LEAD_CALLS = 8
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
    """Return the count in the middle of the line that is least sure; None if no count lies between two neighbours.

    See `line_errors`.
    """
    if len(tokens) < 3 or np.diff(tokens).max() < 2:
        return None
    errors = np.where(np.diff(tokens) < 2, -1.0, line_errors(tokens, seconds))
    widest = int(errors.argmax())
    return int((tokens[widest] + tokens[widest + 1]) // 2)


def lead_calls(samples_s: Sequence[float]) -> int:
    """Return how many calls go untimed before a timed one, given the samples so far.

    After work of another size the first calls of a size are slower, by about half a millisecond in all on a CPU: a
    short pass needs several until it runs as it does in decoding, where one follows the other.

    >>> lead_calls([]), lead_calls([0.002]), lead_calls([0.02])
    (1, 5, 1)
    """
    if not samples_s:
        return 1
    return int(np.clip(np.ceil(LEAD_S / np.median(samples_s)), 1, MOST_LEAD_CALLS))


def sweep(
    kind: str,
    works: Mapping[int, Work],
    rounds: int,
    clock: Clock,
    journal: Journal,
    step: Step = lambda: None,
    prepare: Callable[[int], object] = lambda _: None,
    lead: Callable[[int], object] | None = None,
    counted: Mapping[int, Sequence[float]] | None = None,
) -> None:
    """Time every work until it has `rounds` samples, each round in a new random order, so that drift hits all alike.

    Of the samples that the journal holds, `counted` are those that count: by default all.

    Samples go to the journal under `kind`; those already there count.  Before each timed call `prepare` and `lead` are
    called untimed, several times where a call is short; `lead` leaves the hardware as decoding finds it, by default by
    calls of the same work.
    """
    before = lead or (lambda key: works[key]())
    generator = np.random.default_rng(SEED)
    have = journal.samples(kind) if counted is None else {key: list(each) for key, each in counted.items()}
    for key in works.keys() - have.keys():
        for _ in range(WARM_UP_CALLS):
            prepare(key)
            works[key]()
    for number in range(rounds):
        due = [key for key in works if len(have.get(key, ())) <= number]
        for key in generator.permutation(due).tolist():
            for _ in range(lead_calls(have.get(key, ()))):
                prepare(key)
                before(key)
            seconds = clock.time_s(works[key])
            journal.append(kind, key, (seconds,))
            have.setdefault(key, []).append(seconds)
            step()
