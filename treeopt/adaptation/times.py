"""What steps take now beside what the profile says of them.

Only quotients of times decide between trees: a machine that became slower as a whole changes nothing.  So what is kept
is by how much drafting became slower than the target's part since the tree in use was begun with, and by how much the
steps with single trees differ from what is expected of them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

from treeopt.adaptation.ways import Way
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import TokenTree

TOLERANCE = log(1.15)
"""A change of the quotient that is no more than this may be chance, or the context's."""
LONGEST = 4.0
"""A step counts as at most so many times what was expected: interruptions say nothing of the next step."""
KNOWN_STEPS = 48
"""Steps with a tree after which the quotient is known that later ones are compared with."""
TREES = 16
"""Trees whose own deviation is remembered, those decoded with last."""
KEPT_SAMPLES, KEPT_WAYS = 64, 16
"""Steps whose times are kept of each of so many ways."""
OWN_SHARE = 0.7
"""Of a tree's own deviation, how much is believed."""


class ExpectedSeconds(NamedTuple):
    """What the profile says of a step with one tree."""

    draft: float
    """Passes of the draft model."""
    target: float
    """Verification and everything else."""

    @property
    def step(self) -> float:
        """Of the whole step."""
        return self.draft + self.target


@dataclass(slots=True)
class AgedSum:
    """Seconds as taken and as expected, of which older ones count for less."""

    taken: float = 0.0
    expected: float = 0.0

    def add(self, keep: float, taken: float, expected: float) -> None:
        """Add seconds to a share of those before."""
        self.taken, self.expected = keep * self.taken + taken, keep * self.expected + expected

    @property
    def deviation(self) -> float:
        """Logarithm of the quotient, 0 where nothing was taken or expected."""
        return log(self.taken / self.expected) if min(self.taken, self.expected) > 0 else 0.0


class StepTimes:
    """Times of steps, those of older ones counting for less.

    Args:
        half_life_steps: after so many further steps one counts half.
    """

    def __init__(self, half_life_steps: int) -> None:
        self._half_life_steps = half_life_steps
        self._way: Way | None = None
        self._steps = 0
        self._draft, self._target = AgedSum(), AgedSum()
        self._quotient, self._machine = Level(), Level()
        self._own: dict[Way, float] = {}

    def add(self, way: Way, taken: Sequence[StepSeconds], expected: ExpectedSeconds) -> None:
        """Add steps that were all drafted in one way."""
        steps = len(taken)
        draft = sum(min(each.draft, LONGEST * expected.draft) for each in taken)
        target = sum(min(each.verify + each.rest, LONGEST * expected.target) for each in taken)
        if way != self._way:
            self._way, self._steps, self._draft, self._target = way, 0, AgedSum(), AgedSum()
            self._quotient.end()
            self._machine.end()
        keep = 0.5 ** (steps / self._half_life_steps)
        self._draft.add(keep, draft, steps * expected.draft)
        self._target.add(keep, target, steps * expected.target)
        self._steps += steps
        if self._steps >= KNOWN_STEPS:
            self._follow(way)

    @property
    def drafting(self) -> float:
        """By how much drafting became slower than the rest, 1 where no more than the tolerance."""
        return exp(self._quotient.value - max(-TOLERANCE, min(TOLERANCE, self._quotient.value)))

    @property
    def slower(self) -> float:
        """By how much the machine became slower while trees stayed: this changes no choice, and is told."""
        return exp(self._machine.value)

    def own(self, way: Way) -> float:
        """Return the factor by which steps with a tree take longer than expected, as far as others' do not.

        A tree that was never decoded with is taken for the mean of those that were: what all have in common is the
        profile's error, and no reason to leave a tree.
        """
        if not self._own:
            return 1.0
        mean = sum(self._own.values()) / len(self._own)
        return exp(mean + OWN_SHARE * (self._own.get(way, mean) - mean))

    def _follow(self, way: Way) -> None:
        """Take what changed since the tree's steps were known for the machine's doing."""
        total = log(max(self._draft.taken + self._target.taken, 1e-12) / (self._draft.expected + self._target.expected))
        if self._draft.expected > 0:
            self._quotient.follow(self._draft.deviation - self._target.deviation)
        if self._machine.follow(total):
            self._own.pop(way, None)
            self._own[way] = total - self._machine.value
            while len(self._own) > TREES:
                self._own.pop(next(iter(self._own)))


class StepSamples:
    """What the latest steps took, of each of the ways used last."""

    def __init__(self) -> None:
        self._by_way: dict[Way, deque[StepSeconds]] = {}

    def add(self, way: Way, taken: Sequence[StepSeconds]) -> None:
        """Add steps that were all drafted in one way."""
        self._by_way[way] = self._by_way.pop(way, deque(maxlen=KEPT_SAMPLES))
        self._by_way[way].extend(taken)
        while len(self._by_way) > KEPT_WAYS:
            self._by_way.pop(next(iter(self._by_way)))

    def of_trees(self) -> dict[TokenTree, deque[StepSeconds]]:
        """Return those of all trees."""
        return {way: taken for way, taken in self._by_way.items() if isinstance(way, TokenTree)}


class Level:
    """A number of which only its changes count, while the tree stays: trees differ in it for reasons of their own."""

    def __init__(self) -> None:
        self.value = 0.0
        self._first: float | None = None
        self._before = 0.0

    def follow(self, now: float) -> bool:
        """Take the number as it is now, and return whether it is the first with this tree."""
        if self._first is None:
            self._first, self._before = now, self.value
            return True
        self.value = self._before + now - self._first
        return False

    def end(self) -> None:
        """Another tree is begun with."""
        self._first = None
