"""What steps cost at the context that decoding has come to, out of one profile."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from treeopt.adaptation.times import ExpectedSeconds
from treeopt.arrays import Float64
from treeopt.planner.condition import Condition, condition
from treeopt.planner.costs import StepCosts, sizes, step_costs
from treeopt.planner.curves import Curve
from treeopt.planner.drafted import pass_costs
from treeopt.planner.request import Where
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree

CONTEXT_TOKENS, CONTEXTS = 64, 16
"""Contexts are rounded to so many tokens, or more, so that about so many stand for all that were measured."""
KEPT_CONTEXTS = 64

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ContextCosts:
    """The curves of a rule at every context within those measured; beyond them the nearest one's hold.

    Args:
        profile: what was measured.
        rule: verification rule.
        temperature: at which times were taken.
        where: the context that stands where none is told, and the batch size.
    """

    def __init__(self, profile: Profile, rule: str, temperature: float, where: Where) -> None:
        self._profile, self._rule, self._temperature, self._where = profile, rule, temperature, where
        first = condition(profile, temperature, where)
        self.batch_size = first.batch_size
        contexts = [
            each.context_tokens
            for each in profile.latencies_at(temperature)
            if each.batch_size == first.batch_size or where.extrapolate
        ] or [first.context_tokens]
        self._shortest, self._longest = min(contexts), max(contexts)
        self._planned = first.context_tokens
        self._rounding = max(CONTEXT_TOKENS, (self._longest - self._shortest) // CONTEXTS)
        self._kept: dict[int, StepCosts] = {}
        self._passes_s: dict[int, Float64] = {}
        self._expected: dict[tuple[int, TokenTree], ExpectedSeconds] = {}
        self.max_nodes = first.max_nodes

    def rounded(self, context_tokens: int | None) -> int:
        """Return the context whose curves stand for one; None is the context planned for."""
        if context_tokens is None:
            return self._planned
        return min(self._longest, max(self._shortest, self._rounding * round(context_tokens / self._rounding)))

    def prepare(self) -> None:
        """Have the curves of every context at hand."""
        for context in (None, *range(0, self._longest + 2 * self._rounding, self._rounding)):
            self.at(context)
            self.passes_s(context)

    def at(self, context_tokens: int | None) -> StepCosts:
        """Return the curves at a context."""
        context = self.rounded(context_tokens)
        return kept(self._kept, context, lambda: step_costs(self._condition(context), rule=self._rule), KEPT_CONTEXTS)

    def passes_s(self, context_tokens: int | None) -> Float64:
        """Return (N + 1,): seconds of the target's pass over every number of tokens at a context, nothing else in them."""
        context = self.rounded(context_tokens)
        return kept(self._passes_s, context, lambda: pass_costs(self._condition(context)).verify_s, KEPT_CONTEXTS)

    def expected(self, tree: TokenTree, context_tokens: int | None) -> ExpectedSeconds:
        """Return what the profile says of the seconds of a step with a tree."""
        key = self.rounded(context_tokens), tree
        return kept(self._expected, key, lambda: _expected(self.at(context_tokens), tree), KEPT_CONTEXTS)

    def _condition(self, context: int) -> Condition:
        return condition(self._profile, self._temperature, replace(self._where, context_tokens=context))


def kept(found: dict[Key, Value], key: Key, make: Callable[[], Value], most: int) -> Value:
    """Return what is kept by a key, made where it is not; where there would be more than `most`, all before is forgotten."""
    if key not in found:
        if len(found) >= most:
            found.clear()
        found[key] = make()
    return found[key]


def _expected(costs: StepCosts, tree: TokenTree) -> ExpectedSeconds:
    nodes, widths = sizes([tree])
    draft_s = float(passes_only(costs).at(widths).sum())
    return ExpectedSeconds(draft_s, float(costs.step_s(nodes, widths)[0]) - draft_s)


def with_slower_drafts(costs: StepCosts, factor: float) -> StepCosts:
    """Return the same with all drafting longer by a factor."""
    if factor == 1:
        return costs
    every = np.arange(costs.max_draft_width + 1)
    return replace(costs, draft=Curve.of(costs.draft_s + (factor - 1) * passes_only(costs).at(every)))


def passes_only(costs: StepCosts) -> Curve:
    """Return the seconds of the draft model's passes, without what of a step's overhead was laid on each level."""
    return replace(costs.draft, more_s=np.zeros_like(costs.draft.more_s))
