"""Decoding without models: steps along texts of which it is recorded how a draft ranks every token.

With trees what is accepted hangs on ranks alone, with prompt lookup on the text alone.  Steps take what a profile says of
them at that context, times a deviation that each way keeps and a little noise; what re-calibration itself takes is the one
time that is real.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from math import exp
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from streams import RULE

from treeopt.adaptation.context_costs import ContextCosts
from treeopt.adaptation.lookups import measured_lookups
from treeopt.adaptation.recalibration import ROOM_NODES
from treeopt.adaptation.ways import Way, take
from treeopt.arrays import Float64
from treeopt.planner import PlanRequest
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling, draft_sampling_of
from treeopt.runtime.decoding.observer import DecodedStep, StepSeconds
from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules import rule_named
from treeopt.trees import TokenTree

CHANGE_S = 0.0015
"""By how much the first step behind a change is longer, about what it is in `benchmarks/drift.py`."""
READING_S = 0.0006
"""What the draft model takes to read the end of the text while nothing is drafted, likewise."""
DEVIATION, NOISE = 0.02, 0.04
"""Standard deviations of the logarithm of times: of each tree's own, and of each step's."""
RANKS = ROOM_NODES
"""Ranks that are told apart, more than any tree has siblings."""
NO_TEXT = -1
NO_LOGITS = torch.zeros(ROOM_NODES, 1)
"""Of the target, which nothing asks for where tokens are the likeliest."""


class RankText(NamedTuple):
    """A text that the target went on with."""

    tokens: list[int]
    """Prompt included."""
    ranks: list[int]
    """That the draft gives to every token behind the prompt, 0 for the likeliest."""

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt."""
        return len(self.tokens) - len(self.ranks)


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
    rule = replace(rule_named("target"), name=RULE)
    """Ranks say everything, as they do of tokens that are given; they are those of the rule that was measured."""
    sampling = draft_sampling = GREEDY
    draft_model: LanguageModel | None = None

    def __init__(self, target: LanguageModel, way: Way) -> None:
        self.target = target
        self.tree = ROOT_ALONE
        self.drafter: Drafter | None = None
        self._text, self._number, self._committed = RankText([], []), NO_TEXT, 0
        self._reading_s = 0.0
        take(self, way)
        self.changed = False
        """Whether the next step is the first behind a change."""

    def sample(self, sampling: Sampling) -> None:
        """Have texts sampled in a way, before re-calibration is attached again."""
        self.sampling, self.draft_sampling = sampling, draft_sampling_of(sampling, None)

    @property
    def way(self) -> Way:
        """What drafts."""
        return self.drafter.setting if isinstance(self.drafter, PromptLookupDrafter) else self.tree

    def now_s(self) -> float:
        """Return the real time, and that of all reading, which nobody did."""
        return perf_counter() + self._reading_s

    def change_tree(self, tree: TokenTree) -> None:
        self.tree, self.drafter, self.changed = tree, None, True

    def change_drafter(self, drafter: Drafter) -> None:
        self.drafter, self.changed = drafter, True
        if self._number != NO_TEXT:
            drafter.begin(self._number, self._text.tokens[: self._committed], None)

    def draft_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Steered`: what comes next has its rank among so many other tokens."""
        self._reading_s += READING_S
        vocabulary = self.target.config.vocabulary
        logits = torch.zeros(len(tokens), vocabulary)
        for row, place in enumerate(range(self._committed - len(tokens), self._committed)):
            token, behind = self._text.tokens[place], place - self._text.prompt_tokens
            rank = self._text.ranks[behind] if behind >= 0 else 0
            logits[row, (token + 1 + torch.arange(rank)) % vocabulary] = 1.0
            logits[row, token] = 0.5
        return logits

    def begin(self, number: int, text: RankText) -> None:
        """Begin a text."""
        if self.drafter is not None and self._number != NO_TEXT:
            self.drafter.end(self._number)
        self._text, self._number, self._committed = text, number, text.prompt_tokens
        if self.drafter is not None:
            self.drafter.begin(number, text.tokens[: self._committed], None)

    def step(self) -> tuple[Proposal, Step]:
        """Draft and accept."""
        text, at = self._text, self._committed
        if self.drafter is None:
            proposal = _proposal(self.tree)
            path = accepted_path(self.tree, text.ranks, at - text.prompt_tokens)
        else:
            (proposal,) = self.drafter.propose([self._number], ())
            path = _looked_up(proposal, text.tokens[at:])
        new = text.tokens[at : at + len(path)]
        step = Step(path[: len(new)], new, NO_LOGITS, None, cut=len(new) < len(path))  # what would follow is not known
        if self.drafter is not None:
            self.drafter.accept([self._number], [step])
        self._committed += len(new)
        return proposal, step


class SimulatedMachine:
    """What steps take: what a profile says of them, times what deviates."""

    def __init__(self, profile: Profile, request: PlanRequest, seed: int) -> None:
        acceptance = profile.acceptance(rule=RULE, temperature=request.temperature)
        self._costs = ContextCosts(profile, RULE, acceptance.temperature, request.where)
        lookups = measured_lookups(profile, self._costs, acceptance.sampling, ROOM_NODES)
        self._beside_s = {each.setting: each.beside_s for each in lookups}
        """Of a setting that was not measured, what it is on average."""
        self._seed, self._noise = seed, np.random.default_rng(seed)
        self._own: dict[Way, float] = {}

    def step_s(self, way: Way, nodes: int, context_tokens: int) -> StepSeconds:
        """Return the seconds of one step, of so many tokens in the target's pass."""
        if way not in self._own:
            numbers = way.parents.tolist() if isinstance(way, TokenTree) else [way.ngram, way.length]
            drawn = np.random.default_rng([self._seed, *(1 + number for number in numbers)]).standard_normal()
            self._own[way] = exp(DEVIATION * drawn)
        factor = self._own[way] * exp(NOISE * self._noise.standard_normal())
        if isinstance(way, TokenTree):
            expected = self._costs.expected(way, context_tokens)
            return StepSeconds(factor * expected.draft, factor * expected.target, 0.0)
        beside_s = self._beside_s.get(way, sum(self._beside_s.values()) / len(self._beside_s))
        pass_s = float(self._costs.passes_s(context_tokens)[nodes])
        return StepSeconds(0.0, factor * (pass_s + beside_s), 0.0)


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


def _looked_up(proposal: Proposal, coming: Sequence[int]) -> tuple[int, ...]:
    """Return the path of a chain: as far as the text goes on so."""
    drafted = proposal.tokens.tolist()[1:]
    right = takewhile(lambda each: each[0] == each[1], zip(drafted, coming, strict=False))
    return tuple(range(1 + sum(1 for _ in right)))


def walk(
    texts: Sequence[RankText],
    decoder: RankDecoder,
    machines: Sequence[SimulatedMachine],
    observer: Callable[[DecodedStep], object] = lambda _: None,
) -> Walked:
    """Decode texts, each on a machine of its own or the same."""
    rows: list[tuple[float, float, float]] = []
    place = 0
    for number, (text, machine) in enumerate(zip(texts, machines, strict=True)):
        decoder.begin(number, text)
        tokens, end = text.tokens[: text.prompt_tokens], place + len(text.ranks)
        while place < end:
            way = decoder.way
            proposal, step = decoder.step()
            seconds = machine.step_s(way, proposal.tree.nodes, len(tokens))
            if decoder.changed:
                seconds, decoder.changed = seconds._replace(draft=seconds.draft + CHANGE_S), False
            start_s = decoder.now_s()
            observer(DecodedStep(number, tokens, proposal, step, seconds))
            rows.append((place, sum(seconds), decoder.now_s() - start_s))
            tokens += step.tokens
            place += len(step.tokens)
    return Walked(*np.array(rows).T)
