"""How many tokens each step yields: replayed from measured sequences if their accepted ranks are known, else drawn.

A replay walks a measured sequence: a step that begins at one of its positions yields the tokens that the tree would have
had accepted there, and the next step begins after them.  So sequences stay as easy or hard as they were measured, and
the tree may change from step to step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.planner.tokens import TokenModel, TokenModels
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.operating_point import around
from treeopt.trees import TokenTree

REPLAYED = 0.8
"""Measured sequences are replayed if the replay has a larger weight than this in the planner's expected tokens."""


class Place(NamedTuple):
    """The measured sequence that a simulated one walks, and the position in it."""

    sequence: int
    position: int = 0


@dataclass(frozen=True)
class ReplayedTokens:
    """Walks measured sequences; a simulated one that outlasts its measured one goes on with another."""

    ranks: AcceptedRanks
    _tokens: dict[TokenTree, tuple[list[int], ...]] = field(default_factory=dict, init=False, repr=False)

    def start(self, generator: np.random.Generator, sequence: int | None = None) -> Place:
        """Return the beginning of a measured sequence: the one named, if it is long enough, else any."""
        long_enough = self._long_enough
        return Place(sequence if sequence in long_enough else int(generator.choice(long_enough)))

    def step(self, tree: TokenTree, place: Place, generator: np.random.Generator) -> tuple[int, Place]:
        """Return the tokens of a step at a place, and the place after it.

        Raises InfeasibleError for a tree that is as deep as the longest measured sequence is long.
        """
        if tree not in self._tokens:
            self._tokens[tree] = tuple(each.tolist() for each in self.ranks.step_tokens(tree))
        sequence, position = place
        if position >= len(self._tokens[tree][sequence]) - tree.max_depth:  # it ends before the step might
            sequence, position = int(generator.choice(self._longer_than(tree.max_depth))), 0
        tokens = self._tokens[tree][sequence][position]
        return tokens, Place(sequence, position + tokens)

    def _longer_than(self, depth: int) -> list[int]:
        fitting = [number for number in self._long_enough if len(self.ranks.ranks[number]) > depth]
        if not fitting:
            most = max(len(each) for each in self.ranks.ranks) - 1
            raise InfeasibleError(
                f"depth: expected at most {most}, which measured sequences are long enough for. Got {depth}: "
                "profile with a larger --positions."
            )
        return fitting

    @cached_property
    def _long_enough(self) -> list[int]:
        """The sequences at least half as long as the longest."""
        longest = max(len(each) for each in self.ranks.ranks)
        return [number for number, each in enumerate(self.ranks.ranks) if 2 * len(each) >= longest]


@dataclass(frozen=True)
class DrawnTokens:
    """Draws independently how deep each step is accepted.

    P(at least depth d) is the probability that any node of depth d is reached, scaled so that the sum over d > 0 is what
    the planner expects of the tree.
    """

    model: TokenModel
    _survival: dict[TokenTree, Float64] = field(default_factory=dict, init=False, repr=False)

    def start(self, generator: np.random.Generator, sequence: int | None = None) -> Place:
        """Return a place without meaning: every step is drawn alike."""
        del generator
        return Place(sequence or 0)

    def step(self, tree: TokenTree, place: Place, generator: np.random.Generator) -> tuple[int, Place]:
        """Return the drawn tokens of a step, and the same place."""
        if tree not in self._survival:
            self._survival[tree] = self._survival_of(tree)
        return 1 + int(np.count_nonzero(generator.random() < self._survival[tree])), place

    def _survival_of(self, tree: TokenTree) -> Float64:
        """Return (D,): the probability that a step is accepted at least 1, 2, … levels deep."""
        reach = self.model.acceptance.table.reach(tree)
        survival = np.array([reach[level].sum() for level in tree.levels[1:]])
        wanted = self.model.tokens_per_step(tree) - 1
        return np.minimum(1.0, survival * (wanted / survival.sum())) if survival.sum() > 0 else survival


@dataclass(frozen=True)
class StepTokens:
    """Tokens of steps at any context length.

    Each step is one of the measured context lengths around the sequence's own, drawn by their weights in the planner's
    interpolation.  A sequence has a place at each of them, in the same measured sequence if it is long enough there.
    """

    contexts: tuple[int, ...]
    """Measured, rising; empty for one source that holds at every length."""
    sources: tuple[ReplayedTokens | DrawnTokens, ...]

    def start(self, generator: np.random.Generator) -> list[Place]:
        """Return where a new sequence begins at every measured context length."""
        first = self.sources[0].start(generator)
        return [first, *(source.start(generator, first.sequence) for source in self.sources[1:])]

    def step(self, tree: TokenTree, places: list[Place], generator: np.random.Generator, context_tokens: int) -> int:
        """Return the tokens of a step, at least 1, and move the place that it is from."""
        number = 0
        if len(self.sources) > 1:
            (weight, number), *other = around({at: n for n, at in enumerate(self.contexts)}, context_tokens)
            if other and generator.random() >= weight:
                number = other[0][1]
        tokens, places[number] = self.sources[number].step(tree, places[number], generator)
        return tokens


def step_tokens(models: TokenModels, trees: Sequence[TokenTree]) -> StepTokens:
    """Return the tokens of steps with some trees."""
    return StepTokens(models.contexts, tuple(_source(model, trees) for model in models.measured))


def _source(model: TokenModel, trees: Sequence[TokenTree]) -> ReplayedTokens | DrawnTokens:
    ranks, dependence = model.acceptance.accepted_ranks, model.dependence
    if ranks is None or dependence is None:
        return DrawnTokens(model)
    drafting = [tree for tree in trees if tree.nodes > 1]
    replayed = all(dependence.weight(tree) > REPLAYED for tree in drafting)
    return ReplayedTokens(ranks) if replayed else DrawnTokens(model)
