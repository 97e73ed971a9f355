"""Decoding without models: steps with any tree along texts of which it is recorded how a draft ranks every token.

Tokens are called by their ranks.  Steps take what a profile says of them at that context, times a deviation that each tree
keeps and a little noise; what re-calibration itself takes is the one time that is real.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from treeopt.adaptation.context_costs import ContextCosts
from treeopt.adaptation.recalibration import ROOM_NODES
from treeopt.arrays import Float64
from treeopt.methods.drift import RULE
from treeopt.methods.drift_streams import SHORT_TOKENS
from treeopt.planner import PlanRequest
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY
from treeopt.runtime.decoding.observer import DecodedStep, StepSeconds
from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules import rule_named
from treeopt.trees import TokenTree

CHANGE_S = 0.0015
"""By how much the first step behind a change is longer, about what it is in `treeopt bench --drift`."""
READING_S = 0.0006
"""What the draft model takes to read the end of the text while nothing is drafted, likewise."""
DEVIATION, NOISE = 0.02, 0.04
"""Standard deviations of the logarithm of times: of each tree's own, and of each step's."""
RANKS = ROOM_NODES
"""Ranks that are told apart, more than any tree has siblings."""
MOST_READ = 64
LIKELIEST_FIRST = -torch.arange(float(RANKS)).expand(MOST_READ, RANKS)
"""The draft's logits: tokens are called by their ranks, so that they are always these."""


class Walked(NamedTuple):
    """Every step of a stream."""

    places: Float64
    """(S,): tokens of the stream before each."""
    decoding_s: Float64
    """(S,): what each took."""
    observer_s: Float64
    """(S,): what re-calibration took behind it."""

    def seconds(self, place: int, *, with_observer: bool = True) -> float:
        """Return the time from a place on."""
        taken = self.decoding_s + self.observer_s if with_observer else self.decoding_s
        return float(taken[self.places >= place].sum())


class RankDecoder:
    """What re-calibration sees of a decoder of such texts."""

    takes_trees = True
    max_nodes = ROOM_NODES
    rule = rule_named(RULE)
    sampling = draft_sampling = GREEDY

    def __init__(self, target: LanguageModel, tree: TokenTree) -> None:
        self.target, self.tree = target, tree
        self.changed = False
        """Whether the next step is the first behind a change."""
        self._reading_s = 0.0

    def now_s(self) -> float:
        """Return the real time, and that of all reading, which nobody did."""
        return perf_counter() + self._reading_s

    def change_tree(self, tree: TokenTree) -> None:
        """See `Steered`."""
        self.tree, self.changed = tree, True

    def change_drafter(self, drafter: Drafter) -> None:
        """See `Steered`; no profile of this benchmark has prompt lookup."""
        raise AssertionError(drafter)

    def draft_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Steered`."""
        self._reading_s += READING_S
        return LIKELIEST_FIRST[: len(tokens)]


class SimulatedMachine:
    """What steps take: what a profile says of them, times what deviates."""

    def __init__(self, profile: Profile, request: PlanRequest, seed: int) -> None:
        self._costs = ContextCosts(profile, RULE, GREEDY.temperature, request.where)
        self._seed, self._noise = seed, np.random.default_rng(seed)
        self._own: dict[TokenTree, float] = {}

    def step_s(self, tree: TokenTree, context_tokens: int) -> StepSeconds:
        """Return the seconds of one step."""
        if tree not in self._own:
            drawn = np.random.default_rng([self._seed, *(1 + tree.parents).tolist()]).standard_normal()
            self._own[tree] = exp(DEVIATION * drawn)
        expected = self._costs.expected(tree, context_tokens)
        factor = self._own[tree] * exp(NOISE * self._noise.standard_normal())
        return StepSeconds(factor * expected.draft, factor * expected.target, 0.0)


def accepted_path(tree: TokenTree, ranks: Sequence[int], at: int) -> tuple[int, ...]:
    """Return the nodes that are accepted where a text goes on with the ranks from a place on."""
    first_child, children = _children(tree)
    path = [0]
    for rank in ranks[at : at + tree.max_depth]:
        if rank >= children[path[-1]]:
            break
        path.append(first_child[path[-1]] + rank)
    return tuple(path)


@lru_cache
def _children(tree: TokenTree) -> tuple[list[int], list[int]]:
    return tree.first_child.tolist(), tree.child_counts.tolist()


@lru_cache
def _proposal(tree: TokenTree) -> Proposal:
    return Proposal(tree, torch.zeros(tree.nodes, dtype=torch.long))


def walk(
    texts: Sequence[Sequence[int]],
    decoder: RankDecoder,
    machine: SimulatedMachine,
    observer: Callable[[DecodedStep], object] = lambda _: None,
) -> Walked:
    """Decode texts of ranks."""
    rows: list[tuple[float, float, float]] = []
    place = 0
    for number, text in enumerate(texts):
        tokens, end = [0] * SHORT_TOKENS, place + len(text)
        while place < end:
            tree, at = decoder.tree, len(tokens) - SHORT_TOKENS
            path = accepted_path(tree, text, at)
            seconds = machine.step_s(tree, len(tokens))
            if decoder.changed:
                seconds, decoder.changed = seconds._replace(draft=seconds.draft + CHANGE_S), False
            new = list(text[at : at + len(path)])
            step = Step(path, new, LIKELIEST_FIRST, None, cut=len(new) < len(path))  # what would follow is not known
            start_s = decoder.now_s()
            observer(DecodedStep(number, tokens, _proposal(tree), step, seconds))
            rows.append((place, sum(seconds), decoder.now_s() - start_s))
            tokens += new
            place += len(new)
    return Walked(*np.array(rows).T)
