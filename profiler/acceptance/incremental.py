"""Acceptance counted in increments: group after group of prompts, then again on more positions."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter
from treeopt.profiler.budget import Deadline
from treeopt.profiler.latency.rounds import Tick
from treeopt.profiler.processes.processes import Processes
from treeopt.records.measured_acceptance import MeasuredAcceptance

FIRST_POSITIONS = 64
"""Positions of each sequence in the first pass over the prompts."""
MAX_POSITIONS = 256
"""Later tokens are easier to draft, and are decoded in longer contexts than those that are timed."""
GROWTH = 4
GROUP_PROMPTS = 4
"""Prompts that are counted together: a pass over a few more tokens takes hardly longer."""
MIN_SEQUENCES = 24
"""Sequences that a plan needs before it is trusted."""
SEED = 0


def position_levels(room_tokens: int) -> tuple[int, ...]:
    """Return the positions per sequence of each pass over the prompts, at most `room_tokens`.

    >>> position_levels(40), position_levels(1000)
    ((40,), (64, 256))
    """
    levels = [min(FIRST_POSITIONS, room_tokens)]
    while levels[-1] < min(room_tokens, MAX_POSITIONS):
        levels.append(min(GROWTH * levels[-1], room_tokens, MAX_POSITIONS))
    return tuple(levels)


def random_groups(prompts: int) -> list[list[int]]:
    """Return groups of prompt numbers; their order is random, because neighbours may be alike."""
    numbers: list[int] = np.random.default_rng(SEED).permutation(prompts).tolist()
    return [numbers[first : first + GROUP_PROMPTS] for first in range(0, prompts, GROUP_PROMPTS)]


class IncrementalAcceptance:
    """The acceptance of the prompts counted so far.

    Args:
        counters: one per context length, each with its ascending levels of positions.
        prompts: their number.
        processes: those that count together; each counts whole groups of prompts.
        tick: called for every sequence, those in the checkpoint included.
    """

    def __init__(
        self,
        counters: Sequence[tuple[AcceptanceCounter, Sequence[int]]],
        prompts: int,
        processes: Processes,
        tick: Tick = lambda: None,
    ) -> None:
        self.counters = counters
        groups = random_groups(prompts)
        self.numbers = [number for group in groups for number in group]
        """Prompt numbers in the order of counting."""
        self._tick = tick
        levels = range(max(len(levels) for _, levels in counters))
        self._pending = [
            (counter, group, positions[level])
            for level, (number, group) in product(levels, enumerate(groups))
            if processes.owns(number)
            for counter, positions in counters
            if level < len(positions)
        ][::-1]
        self._counted_sequences = 0
        while self._pending and self._was_counted(*self._pending[-1]):  # by an interrupted run
            self._finish_group()

    @property
    def exhausted(self) -> bool:
        """Whether every prompt was counted on the most positions."""
        return not self._pending

    @property
    def sequences(self) -> int:
        """The number of sequences counted at every context; one that was counted again counts twice."""
        return self._counted_sequences // len(self.counters)

    @property
    def missing(self) -> int:
        """The number of sequences that a plan still needs before it is trusted."""
        return max(0, min(MIN_SEQUENCES, len(self.numbers)) - self.sequences)

    @property
    def positions(self) -> int:
        """Positions that all sequences were counted on at the first context, at least those of the first pass over them."""
        counter, levels = self.counters[0]
        complete = [level for level in levels if self._was_counted(counter, self.numbers, level)]
        return max(complete, default=levels[0])

    def add(self, deadline: Deadline, at_least: int = 1, at_most: int | None = None) -> None:
        """Count further sequences at every context until the deadline.

        Args:
            deadline: after which no sequence is started.
            at_least: sequences that are counted however long they take.
            at_most: sequences after which to stop, at the end of a group; by default all.
        """
        before = self.sequences
        while self._pending:
            added = self.sequences - before
            if (at_most is not None and added >= at_most) or (added >= at_least and deadline.over()):
                return
            self._count_next()

    def _count_next(self) -> None:
        counter, group, positions = self._pending[-1]
        counter.count(group, positions)
        self._finish_group()

    def _finish_group(self) -> None:
        _, group, _ = self._pending.pop()
        self._counted_sequences += len(group)
        for _ in group:
            self._tick()

    @staticmethod
    def _was_counted(counter: AcceptanceCounter, group: Sequence[int], positions: int) -> bool:
        return all(counter.has_counted(number, positions) for number in group)

    def acceptances(self) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance so far, after counting more sequences if fewer than two are long enough.

        Every process that counts must call this.
        """
        while True:
            try:
                return tuple(
                    acceptance for counter, levels in self.counters for acceptance in counter.acceptances(levels)
                )
            except TreeoptError:
                if self.exhausted:
                    raise
                self._count_next()
