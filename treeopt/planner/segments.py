"""Ranges of context lengths and batch sizes in which one option is the fastest."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from treeopt.array_record import ShortRepr
from treeopt.planner.options import Option
from treeopt.tabular import Row

CLOSE = 1e-9
"""Speeds that differ by no more than this share are equal; then the shorter chain, or the smaller tree, wins."""
Choice = TypeVar("Choice", bound=Hashable)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Segment(ShortRepr):
    """A range of batch sizes and context lengths, both ends included, in which one option is the fastest."""

    temperature: float
    batch_sizes: tuple[int, int]
    context_tokens: tuple[int, int]
    option: Option
    """With its prediction at the start of the range."""

    @property
    def row(self) -> Row:
        """The columns of a segment in tables."""
        return {
            "rule": self.option.rule,
            "lossy": self.option.lossy,
            "temperature": self.temperature,
            "first_batch_size": self.batch_sizes[0],
            "last_batch_size": self.batch_sizes[1],
            "first_context_tokens": self.context_tokens[0],
            "last_context_tokens": self.context_tokens[1],
            **self.option.row,
        }


def winners(measured: Sequence[int], fastest: Callable[[int], Choice]) -> dict[int, Choice]:
    """Return each choice by the number at which it becomes the fastest, found by bisection between unlike neighbours.

    Args:
        measured: numbers that rise; the first is where the first choice begins.
        fastest: returns the fastest choice at a number.
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


def ranges(starts: Mapping[int, Choice], last: int) -> list[tuple[tuple[int, int], Choice]]:
    """Return the ranges, both ends included, in which each choice is the fastest, by where they begin."""
    firsts = sorted(starts)
    ends = [*(first - 1 for first in firsts[1:]), last]
    return [((first, end), starts[first]) for first, end in zip(firsts, ends, strict=True)]
