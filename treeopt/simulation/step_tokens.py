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
from treeopt.errors import InfeasibleError
from treeopt.planner.tokens import TokenModel, TokenModels
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.trees import TokenTree

REPLAYED = 0.8
"""Weight of the replay from which on measured sequences are walked along."""


class Place(NamedTuple):
    """Where a text stands: in which measured text, and at which of its positions."""

    text: int
    position: int
    others: "tuple[Place, ...]" = ()
    """Where it stands at every context length, where acceptance was measured at several."""


class StepTokens(Protocol):
    """Says what steps give texts."""

    def start(self, noise: np.random.Generator, text: int | None = None) -> Place:
        """Return where a new text begins.

        Args:
            noise: what is drawn from.
            text: the measured text that it is to walk, where that is long enough; by default any of them.
        """

    def step(
        self, tree: TokenTree, place: Place, noise: np.random.Generator, context_tokens: float = 0.0
    ) -> tuple[int, Place]:
        """Return the tokens of a step with a tree, at least 1, and where the text stands after it.

        Args:
            tree: that is verified.
            place: where the text stands.
            noise: what is drawn from.
            context_tokens: tokens that the text has.
        """


@dataclass(frozen=True)
class ReplayedTokens:
    """Walks measured texts; a text that outlives its measured one goes on with another."""

    ranks: AcceptedRanks
    _tokens: dict[TokenTree, tuple[list[int], ...]] = field(default_factory=dict, init=False, repr=False)

    def start(self, noise: np.random.Generator, text: int | None = None) -> Place:
        """Return the beginning of a measured text."""
        known = self._long_enough
        return Place(text if text in known else int(noise.choice(known)), 0)

    def step(
        self, tree: TokenTree, place: Place, noise: np.random.Generator, context_tokens: float = 0.0
    ) -> tuple[int, Place]:
        """Return what a step that begins at this position commits, however long the text is.

        Raises InfeasibleError for a tree that is as deep as the longest measured text is long.
        """
        del context_tokens
        if tree not in self._tokens:
            self._tokens[tree] = tuple(each.tolist() for each in self.ranks.step_tokens(tree))
        text, position = place.text, place.position
        if position >= len(self._tokens[tree][text]) - tree.max_depth:  # the text ends before the step might
            text, position = int(noise.choice(self._with_a_step(tree.max_depth))), 0
        tokens = self._tokens[tree][text][position]
        return tokens, Place(text, position + tokens)

    def _with_a_step(self, depth: int) -> list[int]:
        """Return the texts to go on with in which a step of so many levels fits."""
        fitting = [number for number in self._long_enough if len(self.ranks.ranks[number]) > depth]
        if not fitting:
            most = max(len(each) for each in self.ranks.ranks) - 1
            raise InfeasibleError(
                f"depth: expected at most {most}, which measured texts are long enough for. Got {depth}: "
                "profile with a larger --positions."
            )
        return fitting

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

    def start(self, noise: np.random.Generator, text: int | None = None) -> Place:
        """Return a place that says nothing."""
        del noise, text
        return Place(0, 0)

    def step(
        self, tree: TokenTree, place: Place, noise: np.random.Generator, context_tokens: float = 0.0
    ) -> tuple[int, Place]:
        """Return a draw, however long the text is."""
        del context_tokens
        if tree not in self._deep:
            self._deep[tree] = self._at_least(tree)
        return 1 + int(np.count_nonzero(noise.random() < self._deep[tree])), place

    def _at_least(self, tree: TokenTree) -> Float64:
        """Return (D,): the probability that a step is accepted at least 1, 2, … levels deep."""
        reach = self.model.acceptance.table.reach(tree)
        deep = np.array([reach[level].sum() for level in tree.levels[1:]])
        wanted = self.model.tokens_per_step(tree) - 1
        return np.minimum(1.0, deep * (wanted / deep.sum())) if deep.sum() > 0 else deep


@dataclass(frozen=True)
class TokensByContext:
    """Steps as at one of the two measured context lengths around a text's own, drawn in the shares that make it.

    A text has a place at each of them, and goes on there with its next step of that length.
    """

    contexts: tuple[int, ...]
    parts: tuple[StepTokens, ...]

    def start(self, noise: np.random.Generator, text: int | None = None) -> Place:
        """Return where a new text begins at every length: in the same measured text, as far as it goes on so long."""
        first = self.parts[0].start(noise, text)
        others = (part.start(noise, first.text) for part in self.parts[1:])
        return Place(first.text, 0, (first, *others))

    def step(
        self, tree: TokenTree, place: Place, noise: np.random.Generator, context_tokens: float = 0.0
    ) -> tuple[int, Place]:
        """Return what a step gives at one of the lengths; outside the measured ones the nearest holds."""
        at = float(np.interp(context_tokens, self.contexts, range(len(self.contexts))))
        number = int(at) + int(noise.random() < at - int(at))
        tokens, other = self.parts[number].step(tree, place.others[number], noise)
        return tokens, Place(0, 0, (*place.others[:number], other, *place.others[number + 1 :]))


def tokens_by_context(models: TokenModels, trees: Sequence[TokenTree]) -> StepTokens:
    """Return what says how many tokens steps with some trees give as texts grow."""
    parts = tuple(step_tokens(model, trees) for model in models.measured)
    return parts[0] if len(parts) == 1 else TokensByContext(models.contexts, parts)


def step_tokens(model: TokenModel, trees: Sequence[TokenTree]) -> StepTokens:
    """Return what says how many tokens steps with some trees give: a replay where it tells of all of them, else draws."""
    ranks, dependence = model.acceptance.accepted_ranks, model.dependence
    if (
        ranks is not None
        and dependence is not None
        and all(tree.nodes == 1 or dependence.weight(tree) > REPLAYED for tree in trees)
    ):
        return ReplayedTokens(ranks)
    return DrawnTokens(model)
