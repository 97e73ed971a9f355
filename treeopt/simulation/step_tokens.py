"""How many tokens each step gives a text: along measured texts where their accepted ranks are known, else by draws.

A measured text is walked as decoding would: a step that begins at one of its positions commits the tokens that the tree
would have had accepted there, and the next step begins behind them.  So texts stay easy or hard as they were measured,
and a tree may change from step to step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from treeopt.arrays import Float64
from treeopt.planner.model import TokenModel
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.trees import TokenTree


class Place(NamedTuple):
    """Where a text stands: in which measured text, and at which of its positions."""

    text: int
    position: int


class StepTokens(Protocol):
    """Says what steps give texts."""

    def start(self, noise: np.random.Generator) -> Place:
        """Return where a new text begins."""

    def step(self, tree: TokenTree, place: Place, noise: np.random.Generator) -> tuple[int, Place]:
        """Return the tokens of a step with a tree, at least 1, and where the text stands after it."""


@dataclass(frozen=True)
class ReplayedTokens:
    """Walks measured texts; a text that outlives its measured one goes on with another."""

    ranks: AcceptedRanks
    _tokens: dict[TokenTree, tuple[list[int], ...]] = field(default_factory=dict, init=False, repr=False)

    def start(self, noise: np.random.Generator) -> Place:
        """Return the beginning of some measured text."""
        return Place(int(noise.choice(self._long_enough)), 0)

    def step(self, tree: TokenTree, place: Place, noise: np.random.Generator) -> tuple[int, Place]:
        """Return what a step that begins at this position commits."""
        if tree not in self._tokens:
            self._tokens[tree] = tuple(each.tolist() for each in self.ranks.step_tokens(tree))
        known = self._tokens[tree][place.text]
        if place.position >= len(known) - tree.max_depth:  # the text ends before the step might
            return self.step(tree, self.start(noise), noise)
        tokens = known[place.position]
        return tokens, Place(place.text, place.position + tokens)

    @cached_property
    def _long_enough(self) -> list[int]:
        longest = max(len(each) for each in self.ranks.ranks)
        return [number for number, each in enumerate(self.ranks.ranks) if 2 * len(each) >= longest]


@dataclass(frozen=True)
class DrawnTokens:
    """Draws how deep each step is accepted, by itself: P(at least d) is what the nodes of depth d are reached together.

    The probabilities of d > 0 are stretched so that their sum is what the planner expects of the tree.
    """

    model: TokenModel
    _deep: dict[TokenTree, Float64] = field(default_factory=dict, init=False, repr=False)

    def start(self, noise: np.random.Generator) -> Place:
        """Return a place that says nothing."""
        del noise
        return Place(0, 0)

    def step(self, tree: TokenTree, place: Place, noise: np.random.Generator) -> tuple[int, Place]:
        """Return a draw."""
        if tree not in self._deep:
            self._deep[tree] = self._at_least(tree)
        return 1 + int(np.count_nonzero(noise.random() < self._deep[tree])), place

    def _at_least(self, tree: TokenTree) -> Float64:
        """Return (D,): the probability that a step is accepted at least 1, 2, … levels deep."""
        reach = self.model.acceptance.table.reach(tree)
        deep = np.array([reach[level].sum() for level in tree.levels[1:]])
        wanted = self.model.tokens_per_step(tree) - 1
        return np.minimum(1.0, deep * (wanted / deep.sum())) if deep.sum() > 0 else deep


def step_tokens(model: TokenModel, trees: Sequence[TokenTree]) -> StepTokens:
    """Return what says how many tokens steps with some trees give: a replay where it tells of all of them, else draws."""
    ranks, dependence = model.acceptance.accepted_ranks, model.dependence
    if (
        ranks is not None
        and dependence is not None
        and all(tree.nodes == 1 or dependence.tells(tree) for tree in trees)
    ):
        return ReplayedTokens(ranks)
    return DrawnTokens(model)
