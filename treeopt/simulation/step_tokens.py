"""Tokens of each step: replayed along measured sequences if their accepted ranks are known, else drawn.

In a replay, a step at a position of a measured sequence yields the tokens that the tree would have had accepted there, and
the next step begins after them.  So easy and hard sequences stay easy and hard, and the tree may change between steps.
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
from treeopt.records.operating_point import weighted_neighbours
from treeopt.trees import TokenTree

MIN_REPLAY_WEIGHT = 0.8
"""Sequences are replayed if the replay's weight in the planner's expected tokens is larger."""


class ReplayPosition(NamedTuple):
    """A position in a measured sequence."""

    sequence: int
    position: int = 0


@dataclass(frozen=True)
class ReplayedTokens:
    """Replays measured sequences; a longer simulated sequence continues with another measured one."""

    ranks: AcceptedRanks
    _tokens: dict[TokenTree, tuple[list[int], ...]] = field(default_factory=dict, init=False, repr=False)

    def start(self, generator: np.random.Generator, sequence: int | None = None) -> ReplayPosition:
        """Return the start of the measured sequence `sequence` if it is long enough, else of a random one."""
        long_enough = self._long_enough
        return ReplayPosition(sequence if sequence in long_enough else int(generator.choice(long_enough)))

    def step(
        self, tree: TokenTree, current: ReplayPosition, generator: np.random.Generator
    ) -> tuple[int, ReplayPosition]:
        """Return the tokens of a step at a position, and the next position.

        Raises InfeasibleError for a tree at least as deep as the longest measured sequence is long.
        """
        if tree not in self._tokens:
            self._tokens[tree] = tuple(tokens.tolist() for tokens in self.ranks.step_tokens(tree))
        sequence, position = current
        if position >= len(self._tokens[tree][sequence]) - tree.max_depth:  # the step may extend beyond its end
            sequence, position = int(generator.choice(self._longer_than(tree.max_depth))), 0
        tokens = self._tokens[tree][sequence][position]
        return tokens, ReplayPosition(sequence, position + tokens)

    def _longer_than(self, depth: int) -> list[int]:
        longer = [index for index in self._long_enough if len(self.ranks.ranks[index]) > depth]
        if not longer:
            max_depth = max(len(ranks) for ranks in self.ranks.ranks) - 1
            raise InfeasibleError(
                f"depth: expected at most {max_depth}, for which measured sequences are long enough. Got {depth}: "
                "profile with a larger --positions."
            )
        return longer

    @cached_property
    def _long_enough(self) -> list[int]:
        """Indices of the sequences at least half as long as the longest."""
        longest = max(len(ranks) for ranks in self.ranks.ranks)
        return [index for index, ranks in enumerate(self.ranks.ranks) if 2 * len(ranks) >= longest]


@dataclass(frozen=True)
class DrawnTokens:
    """Draws the accepted depth of each step independently.

    P(depth >= d) is the probability that any node of depth d is reached, scaled so that the sum over d > 0 equals the planner's
    expected tokens.
    """

    model: TokenModel
    _survival: dict[TokenTree, Float64] = field(default_factory=dict, init=False, repr=False)

    def start(self, generator: np.random.Generator, sequence: int | None = None) -> ReplayPosition:
        """Return a position that has no effect."""
        del generator
        return ReplayPosition(sequence or 0)

    def step(
        self, tree: TokenTree, current: ReplayPosition, generator: np.random.Generator
    ) -> tuple[int, ReplayPosition]:
        """Return the drawn tokens of a step, and the same position."""
        if tree not in self._survival:
            self._survival[tree] = self._survival_of(tree)
        return 1 + int(np.count_nonzero(generator.random() < self._survival[tree])), current

    def _survival_of(self, tree: TokenTree) -> Float64:
        """Return (D,): the probability that at least 1, 2, … levels are accepted."""
        reach = self.model.acceptance.table.reach(tree)
        survival = np.array([reach[level].sum() for level in tree.levels[1:]])
        expected = self.model.tokens_per_step(tree) - 1
        return np.minimum(1.0, survival * (expected / survival.sum())) if survival.sum() > 0 else survival


@dataclass(frozen=True)
class StepTokens:
    """Tokens of steps at any context length.

    Each step takes one of the two nearest measured context lengths, drawn by their weights in the planner's interpolation.  A
    sequence has a position at each measured length, in the same measured sequence if that is long enough.
    """

    contexts: tuple[int, ...]
    """Measured context lengths, increasing; empty for one source for all lengths."""
    sources: tuple[ReplayedTokens | DrawnTokens, ...]

    def start(self, generator: np.random.Generator) -> list[ReplayPosition]:
        """Return the positions of a new sequence at every measured context length."""
        first = self.sources[0].start(generator)
        return [first, *(source.start(generator, first.sequence) for source in self.sources[1:])]

    def step(
        self, tree: TokenTree, positions: list[ReplayPosition], generator: np.random.Generator, context_tokens: int
    ) -> int:
        """Return the tokens of a step, at least 1, and advance the position that it used."""
        index = 0
        if len(self.sources) > 1:
            indices = {context: i for i, context in enumerate(self.contexts)}
            (weight, index), *other = weighted_neighbours(indices, context_tokens)
            if other and generator.random() >= weight:
                index = other[0][1]
        tokens, positions[index] = self.sources[index].step(tree, positions[index], generator)
        return tokens


def step_tokens(models: TokenModels, trees: Sequence[TokenTree]) -> StepTokens:
    """Return the source of tokens for steps with some trees."""
    return StepTokens(models.contexts, tuple(_source(model, trees) for model in models.measured))


def _source(model: TokenModel, trees: Sequence[TokenTree]) -> ReplayedTokens | DrawnTokens:
    ranks, dependence = model.acceptance.accepted_ranks, model.dependence
    if ranks is None or dependence is None:
        return DrawnTokens(model)
    drafting = [tree for tree in trees if tree.nodes > 1]
    replayed = all(dependence.weight(tree) > MIN_REPLAY_WEIGHT for tree in drafting)
    return ReplayedTokens(ranks) if replayed else DrawnTokens(model)
