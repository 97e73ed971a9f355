"""The strategies that may be the fastest, and the tokens per second that the averages predict for each.

    tokens(T) = F(T) of the shifted table * (replay of the profile's sequences / F) of the chain as deep as T

The table is the profile's with the log odds of its conditional acceptance shifted.  Without a shift, predictions for
chains equal the plan's.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, cached_property, lru_cache

import numpy as np

from treeopt.adaptation.averages import (
    StepTimes,
    apply_shift,
    conditional,
    joint,
    log_odds,
    replay_outcomes,
)
from treeopt.adaptation.strategy import PredictedRate, Strategy
from treeopt.arrays import Float64
from treeopt.planner.costs import StepCosts, sizes, step_costs
from treeopt.planner.curves import Curve
from treeopt.planner.drafter_costs import pass_costs
from treeopt.planner.fastest import solution_speedups
from treeopt.planner.request import PlanRequest
from treeopt.planner.tokens import token_models
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.records.sampling import resolve_draft_sampling
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.solver import solve
from treeopt.trees import TokenTree, chain

MAX_DEPTHS, MAX_RANKS = 16, 16
MAX_SOLVED_TREES = 4
"""Solved trees that are candidates, in addition to the chains."""
CONTEXTS = 8
"""Contexts with costs of their own; others take the costs of the nearest."""
MIN_CONTEXT_STEP = 64
"""Fewest tokens between two of these contexts."""
MAX_REPLAYED_POSITIONS = 4096
REPLAYED_TRIALS = 20.0
"""Weight of the acceptance table relative to a replay, in trials."""
MAX_TREES = 64
"""Trees with a cached replay, and sets of trees with cached step times."""


class ContextCosts:
    """Step costs at the contexts of a profile; those of the nearest context outside the measured range."""

    def __init__(self, profile: Profile, acceptance: MeasuredAcceptance, request: PlanRequest) -> None:
        @cache
        def point(context_tokens: int | None) -> OperatingPoint:
            return profile.at(context_tokens, request.batch_size, acceptance.sampling, extrapolate=request.extrapolate)

        first = point(request.context_tokens)
        self.planned, self.batch_size, self.max_nodes = first.context_tokens, first.batch_size, first.max_nodes
        contexts = [
            latency.context_tokens
            for latency in profile.latencies_at(acceptance.temperature)
            if latency.batch_size == first.batch_size or request.extrapolate
        ] or [first.context_tokens]
        self._shortest, self._longest = min(contexts), max(contexts)
        self._rounding = max(MIN_CONTEXT_STEP, (self._longest - self._shortest) // CONTEXTS)
        self.at: Callable[[int], StepCosts] = cache(
            lambda context: step_costs(point(context), rule=acceptance.rule, max_nodes=self.max_nodes)
        )
        """Returns the step costs at a context, for as many nodes as at the planned one."""
        self.pass_s: Callable[[int], Float64] = cache(lambda context: pass_costs(point(context)).verify_s)
        """Returns (N + 1,): seconds of the target's pass alone, by number of tokens."""

    def rounded(self, context_tokens: int) -> int:
        return min(self._longest, max(self._shortest, self._rounding * round(context_tokens / self._rounding)))


class Candidates:
    """The trees of a budget under one acceptance of a profile, which may be as deep as `tree`.

    Raises InfeasibleError for a tree or an operating point beyond what was measured.
    """

    def __init__(self, profile: Profile, request: PlanRequest, tree: TokenTree, max_nodes: int) -> None:
        self.measured = profile.acceptance(rule=request.rule, temperature=request.temperature)
        self.costs = ContextCosts(profile, self.measured, request)
        self._model = token_models(profile, self.measured).at(self.costs.planned)
        self.acceptance = self._model.acceptance
        table = self.acceptance.table
        deepest = max(MAX_DEPTHS if request.max_depth is None else request.max_depth, tree.max_depth)
        self.depths = max(1, min(deepest, table.max_depth or deepest, max_nodes - 1))
        self.ranks = min(MAX_RANKS, table.branching)
        self.max_nodes = min(max_nodes, self.costs.max_nodes)
        rows = np.array(table.rows(self.depths)[..., : self.ranks])  # (D, parent's rank, K)
        self._odds = log_odds(conditional(rows))
        self._mean = conditional(rows.mean(axis=1))
        self._non_increasing = bool(np.all(rows[..., 1:] <= rows[..., :-1]))
        """Whether all rows are; the shifted rows are then kept so, because the solver is faster for them."""
        self._chains = [chain(depth) for depth in range(min(self.depths, self.max_nodes - 1) + 1)]
        """Plain decoding first."""
        self._factors = np.array(
            [self._model.tokens_per_step(tree) / table.expected_tokens(tree) for tree in self._chains]
        )
        self.conditional = lru_cache(MAX_TREES)(self._replayed)
        """Returns the profile's conditional acceptance in steps with a tree, (D, K)."""
        self._seconds = lru_cache(MAX_TREES)(self._measured_seconds)
        self._solved: dict[TokenTree, None] = {}
        table.reach(tree)  # raises if the tree is deeper than was measured
        self.costs.at(self.costs.planned).tree_s(tree)

    def step_parts(self, tree: TokenTree, context: int) -> tuple[float, float]:
        """Return the profile's seconds of a step: drafting with host overhead, and verification.

        The draft's catch-up pass is host overhead in a profile, and part of drafting in a step.
        """
        draft_s, step_s = (float(seconds[0]) for seconds in self._seconds((tree,), context))
        return draft_s, step_s - draft_s

    def _measured_seconds(self, trees: tuple[TokenTree, ...], context: int) -> tuple[Float64, Float64]:
        """Return (trees,) each: the profile's seconds of drafting with host overhead, and of the whole step."""
        breakdown = self.costs.at(context).breakdown(*sizes(trees))
        return breakdown.draft + breakdown.overhead, breakdown.step_s

    def _replayed(self, tree: TokenTree) -> Float64:
        if self._ranks is None or tree.nodes == 1:
            return self._mean
        tried, accepted = replay_outcomes(self._ranks, tree, self.depths, self.ranks)
        return np.asarray((accepted + REPLAYED_TRIALS * self._mean) / (tried + REPLAYED_TRIALS))

    @cached_property
    def _ranks(self) -> AcceptedRanks | None:
        ranks = self.acceptance.accepted_ranks
        return None if ranks is None else ranks.first(max(1, MAX_REPLAYED_POSITIONS // len(ranks.ranks)))

    def solve(self, shift: Float64, times: StepTimes, context: int) -> None:
        """Add the fastest tree of the shifted table to the candidates."""
        solution = solve(self._table(shift), self.max_nodes, self.depths)
        rates = solution_speedups(solution, _slow_drafts(self.costs.at(context), times.drafting))
        depth, nodes = np.unravel_index(rates.argmax(), rates.shape)
        tree = solution.tree(int(nodes), int(depth))
        self._solved.pop(tree, None)
        self._solved[tree] = None
        while len(self._solved) > MAX_SOLVED_TREES:
            self._solved.pop(next(iter(self._solved)))

    def predict(
        self, shift: Float64, times: StepTimes, context: int, others: Iterable[Strategy]
    ) -> list[PredictedRate]:
        """Return the prediction for each candidate tree, also for those among `others`."""
        table = self._table(shift)
        other_trees = [strategy for strategy in others if isinstance(strategy, TokenTree)]
        trees = list(dict.fromkeys([*self._chains, *self._solved, *other_trees]))
        path = np.cumprod(table.rows(self.depths)[: len(self._chains) - 1, 0, 0])
        tokens = [*(1 + np.append(0, np.cumsum(path))), *map(table.expected_tokens, trees[len(self._chains) :])]
        draft_s, step_s = self._seconds(tuple(trees), context)
        return [
            PredictedRate(
                tree,
                float(expected * self._factors[min(tree.max_depth, len(self._factors) - 1)]),
                times.step_s(tree, *seconds),
            )
            for tree, expected, *seconds in zip(
                trees, tokens, draft_s.tolist(), (step_s - draft_s).tolist(), strict=True
            )
        ]

    def _table(self, shift: Float64) -> AcceptanceTable:
        rows = joint(apply_shift(1 / (1 + np.exp(-self._odds)), shift[:, None]))
        if self._non_increasing:
            rows = np.minimum.accumulate(rows, axis=-1)
        return AcceptanceTable(rows[:, 0] if rows.shape[1] == 1 else rows)


def measured_request(profile: Profile, request: PlanRequest, decoder: Decoder) -> PlanRequest:
    """Return a request with the decoder's rule and temperature as defaults, if they were measured."""
    rule, temperature = request.rule, request.temperature
    if temperature is None and profile.acceptances_of(rule=rule, temperature=decoder.sampling.temperature):
        temperature = decoder.sampling.temperature
    if rule is None and profile.acceptances_of(rule=decoder.rule.name, temperature=temperature):
        rule = decoder.rule.name
    return replace(request, rule=rule, temperature=temperature)


def measured_as(acceptance: MeasuredAcceptance, decoder: Decoder) -> bool:
    """Return whether an acceptance has the decoder's rule and sampling; greedy decoding is the same for all rules."""
    if decoder.sampling.greedy:
        return acceptance.sampling.greedy
    drafts = resolve_draft_sampling(acceptance.sampling, acceptance.draft_sampling)
    return (acceptance.rule, acceptance.sampling, drafts) == (
        decoder.rule.name,
        decoder.sampling,
        decoder.draft_sampling,
    )


def _slow_drafts(costs: StepCosts, factor: float) -> StepCosts:
    """Return costs whose drafting and host overhead take longer by a factor."""
    if factor == 1:
        return costs
    overhead_s, branching_s = factor * costs.overhead_s, factor * costs.branching_s
    return replace(costs, draft=Curve.of(factor * costs.draft_s), overhead_s=overhead_s, branching_s=branching_s)
