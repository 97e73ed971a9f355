"""What steps take now beside what the profile says of them.

Only quotients of times decide between trees: a machine that became slower as a whole changes nothing.  So what is kept
is by how much drafting became slower than the target's part, and by how much the steps with single trees differ from
what the two parts explain.
"""

from math import exp, log
from typing import NamedTuple

from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import TokenTree

TOLERANCE = log(1.15)
"""Profile and decoding do not agree better than this: the profile's passes were timed one by one."""
LONGEST = 4.0
"""A step counts as at most so many times what was expected: interruptions say nothing of the next step."""
TREES = 16
"""Trees whose own deviation is remembered, those decoded with last."""
SURE_STEPS = 64
"""Steps after which a tree's own deviation counts half."""


class ExpectedSeconds(NamedTuple):
    """What the profile says of a step with one tree."""

    draft: float
    target: float
    """Verification and everything else."""

    @property
    def step(self) -> float:
        """Of the whole step."""
        return self.draft + self.target


class StepTimes:
    """Times of steps, those of older ones counting for less.

    Args:
        half_life_steps: after so many further steps one counts half.
    """

    def __init__(self, half_life_steps: int) -> None:
        self._half_life_steps = half_life_steps
        self._draft = self._draft_expected = self._target = self._target_expected = 0.0
        self._own: dict[TokenTree, tuple[float, float]] = {}
        self._sum = [0.0, 0.0]

    def note(self, seconds: StepSeconds, expected: ExpectedSeconds) -> None:
        """Count a step."""
        target = seconds.verify + seconds.rest
        self._sum[0] += min(seconds.draft, LONGEST * expected.draft)
        self._sum[1] += min(target, LONGEST * expected.target)

    def take(self, tree: TokenTree, steps: int, expected: ExpectedSeconds) -> None:
        """Add the steps that were noted since, all with one tree, to those before."""
        if not steps:
            return
        keep = 0.5 ** (steps / self._half_life_steps)
        draft, target = self._sum
        self._sum[:] = 0.0, 0.0
        self._draft, self._target = keep * self._draft + draft, keep * self._target + target
        self._draft_expected = keep * self._draft_expected + steps * expected.draft
        self._target_expected = keep * self._target_expected + steps * expected.target
        explained = expected.target + expected.draft * self.drafting
        known, deviation = self._own.pop(tree, (0.0, 0.0))
        common = log(self._target / self._target_expected) if self._target > 0 else 0.0
        if draft + target > 0:
            now = log((draft + target) / (steps * explained)) - common
            known *= keep
            deviation = (known * deviation + steps * now) / (known + steps)
            self._own[tree] = known + steps, deviation
        while len(self._own) > TREES:
            self._own.pop(next(iter(self._own)))

    @property
    def drafting(self) -> float:
        """By how much drafting became slower than the rest, 1 where no more than the tolerance."""
        if min(self._draft, self._draft_expected, self._target, self._target_expected) <= 0:
            return 1.0
        quotient = log(self._draft / self._draft_expected) - log(self._target / self._target_expected)
        return exp(quotient - max(-TOLERANCE, min(TOLERANCE, quotient)))

    @property
    def slower(self) -> float:
        """By how much the target's part became slower: this changes no choice, and is told."""
        return self._target / self._target_expected if min(self._target, self._target_expected) > 0 else 1.0

    def own(self, tree: TokenTree) -> float:
        """Return the factor by which steps with a tree take longer than their parts explain, relative to others' steps.

        A tree that was never decoded with is taken for the mean of those that were: what all have in common is the
        profile's error, and no reason to leave a tree.
        """
        if not self._own:
            return 1.0
        total = sum(steps for steps, _ in self._own.values())
        mean = sum(steps * deviation for steps, deviation in self._own.values()) / total
        steps, deviation = self._own.get(tree, (0.0, 0.0))
        return exp(mean + (deviation - mean) * steps / (steps + SURE_STEPS))
