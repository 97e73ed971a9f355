"""Where one way to decode takes over from another along a row of whole numbers, such as context lengths."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

Way = TypeVar("Way", bound=Hashable)


def winners(measured: Sequence[int], fastest: Callable[[int], Way]) -> dict[int, Way]:
    """Return the fastest way from where on it is, found by halving wherever two neighbours differ.

    Args:
        measured: numbers that rise; the first is where the first way begins.
        fastest: returns the fastest way at a number.
    """
    at = {value: fastest(value) for value in measured}
    starts = {measured[0]}
    pending = list(pairwise(measured))
    while pending:
        low, high = pending.pop()
        if at[low] == at[high]:
            continue
        if high - low == 1:
            starts.add(high)
            continue
        middle = (low + high) // 2
        at[middle] = fastest(middle)
        pending += [(low, middle), (middle, high)]
    return {start: at[start] for start in starts}


def ranges(found: Mapping[int, Way], last: int) -> list[tuple[tuple[int, int], Way]]:
    """Return the ranges, both ends included, in which each is the fastest, given where they begin."""
    starts = sorted(found)
    ends = [*(start - 1 for start in starts[1:]), last]
    return [((start, end), found[start]) for start, end in zip(starts, ends, strict=True)]
