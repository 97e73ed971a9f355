"""The ways that may be fastest by what was learnt, and how much faster than the one in use.

    tokens(T) = F(T) of the learnt table * (what the profile's replay says of T / F(T) of the profile's table)

so that without anything learnt every tree is worth what the plan said of it.  What prompt lookup comes to is known from
the text itself, at every setting.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import exp, hypot, inf

import numpy as np

from treeopt.adaptation.context_costs import ContextCosts, kept, with_slower_drafts
from treeopt.adaptation.counts import outcomes_along
from treeopt.adaptation.estimate import DRAWS, Learnt, conditional, joint, log_odds, probability
from treeopt.adaptation.times import StepTimes
from treeopt.adaptation.ways import Rated, Way
from treeopt.arrays import Float64
from treeopt.planner.contexts import context_models
from treeopt.planner.costs import StepCosts, sizes
from treeopt.planner.draws import TokenDraws
from treeopt.planner.fastest import speeds
from treeopt.planner.model import TokenModel
from treeopt.planner.request import PlanRequest
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.sampling import draft_sampling_of
from treeopt.runtime.decoding.observer import Steered
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.solver import solve
from treeopt.trees import TokenTree, chain

MOST_DEPTHS, MOST_RANKS = 16, 16
"""Of the table that is learnt; what lies behind is never drafted where it pays."""
SOLVED_TREES = 3
"""Of the solved trees, those that are compared."""
KEPT_TREES = 256
"""Trees whose replay and outcomes are kept."""
KEPT_STEPS = 32
"""Rows of trees at one context whose step times are kept: those compared last."""
TIME_NOISE = 0.01
"""Standard error of a predicted quotient of step times, as a logarithm."""
PRIOR_STEPS = 20.0
"""Outcomes of the profile's table that stand beside those along its texts."""

Worth = Callable[[Way, float], bool]
"""Of a way and what it gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way that is faster by what was learnt."""

    way: Way
    gain: float
    """By which share it is faster than the way in use."""
    noise: float
    """Standard error of the logarithm of 1 + gain."""
    tokens_per_step: float
    step_s: float
    speed: float
    """Tokens per second on the machine as it was when it was measured, as other ways' are."""


def measured_request(profile: Profile, request: PlanRequest, decoder: Steered) -> PlanRequest:
    """Return what is asked for, rule and temperature by default a decoder's as far as they were measured."""
    rule, temperature = request.rule, request.temperature
    if temperature is None and profile.acceptances_of(rule=rule, temperature=decoder.sampling.temperature):
        temperature = decoder.sampling.temperature
    if rule is None and profile.acceptances_of(rule=decoder.rule.name, temperature=temperature):
        rule = decoder.rule.name
    return replace(request, rule=rule, temperature=temperature)


def measured_as(acceptance: MeasuredAcceptance, decoder: Steered) -> bool:
    """Return whether an acceptance is that of a decoder's rule and sampling; greedily all rules accept alike."""
    if decoder.sampling.greedy:
        return acceptance.sampling.greedy
    drafts = draft_sampling_of(acceptance.sampling, acceptance.draft_sampling)
    decoded = decoder.rule.name, decoder.sampling, decoder.draft_sampling
    return (acceptance.rule, acceptance.sampling, drafts) == decoded


def measured_tree(way: Way, acceptance: MeasuredAcceptance) -> TokenTree:
    """Return a tree where it is no deeper than an acceptance was measured, the root alone for any other way."""
    deepest = acceptance.table.max_depth
    if isinstance(way, TokenTree) and (deepest is None or way.max_depth <= deepest):
        return way
    return ROOT_ALONE


class Candidates:
    """Every tree of a budget under one acceptance of a profile.

    Args:
        profile: what was measured.
        request: rule, temperature, context and batch size, and how deep trees may be.
        tree: in use at first.
        max_nodes: of the largest tree.

    Raises InfeasibleError for a first tree beyond what was measured, and conditions that were not.
    """

    def __init__(self, profile: Profile, request: PlanRequest, tree: TokenTree, max_nodes: int) -> None:
        measured = profile.acceptance(rule=request.rule, temperature=request.temperature)
        self.costs = ContextCosts(profile, measured.rule, measured.temperature, request.where)
        self._model = context_models(profile, measured).at(self.costs.rounded(None))
        acceptance = self._model.acceptance
        asked = max(MOST_DEPTHS if request.max_depth is None else request.max_depth, tree.max_depth)
        self.depths = max(1, min(asked, acceptance.table.max_depth or MOST_DEPTHS, max_nodes - 1))
        self.ranks = min(MOST_RANKS, acceptance.table.branching)
        self.measured = measured
        """The acceptance, where it was measured at several contexts one of them."""
        self.rule, self.temperature, self.sampling = acceptance.rule, acceptance.temperature, acceptance.sampling
        self.max_nodes = min(max_nodes, self.costs.max_nodes)
        self._rows = np.array(acceptance.table.rows(self.depths)[..., : self.ranks])
        """(D, R, K)."""
        self._generator = np.random.default_rng(0)
        self._last_solved: list[TokenTree] = []
        self._known: dict[TokenTree, Float64] = {}
        self._step_s: dict[tuple[int, float, tuple[TokenTree, ...]], list[float]] = {}
        self._odds = log_odds(conditional(self._rows))
        self._falling = bool(np.all(self._rows[..., 1:] <= self._rows[..., :-1]))
        acceptance.table.reach(tree)  # refuse now what is deeper than was measured
        self.costs.expected(tree, None)

    @property
    def accepted_ranks(self) -> AcceptedRanks | None:
        """Of the texts that acceptance was measured on."""
        return self._model.acceptance.accepted_ranks

    def prepare(self) -> None:
        """Have at hand what every chain and every context will be asked for: while decoding there is little time."""
        self.costs.prepare()
        for each in self._chains:
            self.known(each)

    def known(self, tree: TokenTree) -> Float64:
        """Return (D, K): how often each rank is accepted once tried, in steps with a tree, as the profile has it."""
        return kept(self._known, tree, lambda: self._counted(tree), KEPT_TREES)

    def _counted(self, tree: TokenTree) -> Float64:
        table = conditional(self._rows[:, 0] if self._rows.shape[1] == 1 else self._rows.mean(axis=1))
        ranks = self._model.acceptance.accepted_ranks
        if ranks is None or tree.nodes == 1:
            return table
        found = outcomes_along(ranks, tree, self.depths, self.ranks)
        return np.asarray(np.clip((found.accepted + PRIOR_STEPS * table) / (found.tried + PRIOR_STEPS), 1e-4, 1 - 1e-4))

    def faster(
        self,
        learnt: Learnt,
        times: StepTimes,
        current: Way,
        context_tokens: int | None,
        worth: Worth,
        *,
        lookups: Sequence[Rated] = (),
        solve_anew: bool = True,
    ) -> tuple[float, Iterator[Choice]]:
        """Return the tokens per second of the way in use, and the ways with more of them, the fastest first.

        These are plain decoding, chains, other trees, and settings of prompt lookup.

        Args:
            learnt: of acceptance.
            times: of steps.
            current: the way in use, one of `lookups` where it is a setting of prompt lookup.
            context_tokens: tokens in the cache; None for the context planned for.
            worth: whether a way that gains so much is worth being returned.
            lookups: settings of prompt lookup that may be changed to.
            solve_anew: whether there is time to solve; else chains and the trees that were solved last are looked at.
        """
        table = self._table(learnt.shift)
        if solve_anew:
            self._last_solved = self._solved(table, self.costs.at(context_tokens), times)
        rate = partial(self._rated, table, times, context_tokens)
        rated = rate(dict.fromkeys([current, *self._chains])) + _on_machine(lookups, times)
        now = next(each for each in rated if each.way == current)

        def gaining(rated: Iterable[Rated]) -> list[Rated]:
            return [each for each in rated if each.speed > now.speed and worth(each.way, each.speed / now.speed - 1)]

        others = [tree for tree in self._last_solved if tree != current and tree not in self._chains]
        hoped = gaining(rate(others, self._most_replayed))
        faster = gaining(rated) + gaining(rate([each.way for each in hoped]))
        return now.speed, self._choices(learnt, times, now, sorted(faster, key=lambda each: -each.speed))

    def gain(
        self,
        learnt: Learnt,
        times: StepTimes,
        current: Way,
        other: Way,
        context_tokens: int | None,
        *,
        lookups: Sequence[Rated] = (),
    ) -> Choice:
        """Return another way as a choice, with what it gains over the one in use, below 0 where it is slower; see `faster`.

        Its noise, which takes time, is infinite where it is slower.
        """
        trees = self._rated(self._table(learnt.shift), times, context_tokens, dict.fromkeys([current, other]))
        rated = trees + _on_machine(lookups, times)
        now, then = (next(each for each in rated if each.way == way) for way in (current, other))
        if then.speed <= now.speed:
            return _choice(then, now, times, inf)
        return next(self._choices(learnt, times, now, [then]))

    def _rated(
        self,
        table: AcceptanceTable,
        times: StepTimes,
        context_tokens: int | None,
        ways: Iterable[Way],
        replayed: Callable[[TokenTree], float] | None = None,
    ) -> list[Rated]:
        """Return what the trees among some ways come to, by default as the replay of the profile's texts corrects them."""
        trees = [way for way in ways if isinstance(way, TokenTree)]
        along = np.cumsum(table.reach(next(reversed(self._chains)))).tolist()  # tokens of every chain
        by_table = [along[tree.max_depth] if tree in self._chains else table.expected_tokens(tree) for tree in trees]
        tokens = [each * (replayed or self._replayed)(tree) for each, tree in zip(by_table, trees, strict=True)]
        seconds = self._seconds(tuple(trees), context_tokens, times) if trees else []
        return [Rated(*each) for each in zip(trees, tokens, seconds, strict=True)]

    def _choices(self, learnt: Learnt, times: StepTimes, now: Rated, faster: Sequence[Rated]) -> Iterator[Choice]:
        if not faster:
            return
        trees = [each.way for each in (now, *faster) if isinstance(each.way, TokenTree)]
        depths = max((tree.max_depth for tree in trees), default=0)
        ranks = max((1 + int(tree.rank.max()) for tree in trees), default=0)
        shifts = [learnt.shift[None, :depths, :ranks], learnt.draws(self._generator, depths, ranks)]
        odds = self._odds[:depths, :, :ranks] + np.concatenate(shifts)[:, :, None]
        draws = TokenDraws(p=joint(probability(odds)))
        for each in faster:
            more, noise = _drawn(draws, now, each)
            yield _choice(each._replace(tokens_per_step=each.tokens_per_step * exp(more)), now, times, noise)

    def _solved(self, table: AcceptanceTable, costs: StepCosts, times: StepTimes) -> list[TokenTree]:
        """Return the fastest trees of most tokens, by a table alone."""
        solution = solve(table, self.max_nodes, self.depths)
        rates = speeds(solution, with_slower_drafts(costs, times.drafting))
        shallowest = solution.tree_depth == np.arange(solution.max_depth + 1)[:, None]
        exact = solution.tree_nodes == np.arange(solution.max_nodes + 1)
        places = np.argsort(-np.where(shallowest & exact, rates, 0.0), axis=None, kind="stable")
        found: dict[TokenTree, None] = {}
        for depth, nodes in zip(*np.unravel_index(places, rates.shape), strict=True):
            found[solution.tree(int(nodes), int(depth))] = None
            if len(found) == SOLVED_TREES:
                break
        return list(found)

    def _seconds(self, trees: tuple[TokenTree, ...], context_tokens: int | None, times: StepTimes) -> list[float]:
        def step_s() -> list[float]:
            costs = with_slower_drafts(self.costs.at(context_tokens), times.drafting)
            found: list[float] = costs.step_s(*sizes(trees)).tolist()
            return found

        key = self.costs.rounded(context_tokens), times.drafting, trees
        expected_s = kept(self._step_s, key, step_s, KEPT_STEPS)
        return [each * times.own(tree) for each, tree in zip(expected_s, trees, strict=True)]

    def _table(self, shift: Float64) -> AcceptanceTable:
        rows = joint(probability(self._odds + shift[:, None]))
        if self._falling:  # rows that rise by noise would be solved by a slower way
            rows = np.minimum.accumulate(rows, axis=-1)
        return AcceptanceTable(rows[:, 0] if rows.shape[1] == 1 else rows)

    @cached_property
    def _chains(self) -> dict[TokenTree, None]:
        """Plain decoding first."""
        return dict.fromkeys(chain(depth) for depth in range(min(self.depths, self.max_nodes - 1) + 1))

    def _replayed(self, tree: TokenTree) -> float:
        """Return by which factor the replay of the profile's texts corrects its table."""
        if tree not in self._factors:
            if len(self._factors) >= KEPT_TREES:
                self._factors.clear()
                self._replays = _without_replays(self._model)
            table = self._model.acceptance.table
            self._factors[tree] = self._replays.tokens_per_step(tree) / table.expected_tokens(tree)
        return self._factors[tree]

    def _most_replayed(self, tree: TokenTree) -> float:
        """Return the same, where a tree was not replayed yet the most that it is of any chain: a replay takes its time."""
        return self._factors.get(tree, max(map(self._replayed, self._chains)))

    @cached_property
    def _factors(self) -> dict[TokenTree, float]:
        self._replays = _without_replays(self._model)
        return {}


def _on_machine(lookups: Sequence[Rated], times: StepTimes) -> list[Rated]:
    """Return settings of prompt lookup with what their steps take on the machine as it is."""
    return [each._replace(step_s=each.step_s * times.own(each.way)) for each in lookups]


def _choice(each: Rated, now: Rated, times: StepTimes, noise: float) -> Choice:
    return Choice(
        way=each.way,
        gain=each.speed / now.speed - 1,
        noise=noise,
        tokens_per_step=each.tokens_per_step,
        step_s=each.step_s * times.slower,
        speed=each.speed,
    )


def _drawn(draws: TokenDraws, current: Rated, other: Rated) -> tuple[float, float]:
    """Return of the logarithm of the quotient of two ways' speeds its mean over the first draw, and its standard error."""
    quotient, known = np.zeros(1 + DRAWS), 0.0
    for each, sign in ((other, 1), (current, -1)):
        if isinstance(each.way, TokenTree):
            quotient = quotient + sign * np.log(draws.tokens(each.way))
        elif each.noise is not None:
            known = hypot(known, each.noise)
    return float(quotient[1:].mean() - quotient[0]), hypot(float(quotient[1:].std()), known, TIME_NOISE)


def _without_replays(model: TokenModel) -> TokenModel:
    """Return a model equal to another that has replayed no tree yet: what replays keep grows with every tree."""
    ranks = model.acceptance.accepted_ranks
    acceptance = (
        model.acceptance if ranks is None else replace(model.acceptance, accepted_ranks=AcceptedRanks(ranks.ranks))
    )
    parts = tuple((share, _without_replays(part)) for share, part in model.parts)
    return replace(model, acceptance=acceptance, parts=parts)
