"""The model of a step: predicted tokens, seconds and speedup of any tree at one operating point.

    speedup(T) = F(T) / step_s(T) * verify_s(1)

with F of `treeopt.planner.tokens` and step_s of `treeopt.planner.costs`.  Plain decoding is the tree of the root alone.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64
from treeopt.planner.costs import StepCosts, sizes, step_costs
from treeopt.planner.options import DRAFT_MODEL, Option, predictions
from treeopt.planner.request import PlanRequest
from treeopt.planner.resampling import Resampled, near_best
from treeopt.planner.tokens import TokenModel, token_models
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree
from treeopt.trees.drafter_setting import DrafterSetting


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepModel(ArrayRecord):
    """Predicts tokens, seconds and speedup of any tree at one operating point."""

    _shown: ClassVar[tuple[str, ...]] = (
        "acceptance.rule",
        "acceptance.temperature",
        "point.context_tokens",
        "point.batch_size",
        "costs",
    )
    point: OperatingPoint
    tokens: TokenModel
    costs: StepCosts
    """From the observed measurements."""
    max_nodes: int = 0
    """To where the curves were extrapolated, if larger than what was measured."""
    drafter: DrafterSetting = DRAFT_MODEL

    @property
    def acceptance(self) -> MeasuredAcceptance:
        """As measured, smoothed, or interpolated."""
        return self.tokens.acceptance

    @cached_property
    def drawn_costs(self) -> StepCosts:
        """Costs by resampled measurements, the same at every call."""
        estimator = Resampled(deepcopy(self.tokens.generator))
        return step_costs(self.point, rule=self.acceptance.rule, max_nodes=self.max_nodes, estimator=estimator)

    def step_s(self, tree: TokenTree) -> float:
        """Return the seconds of a step; raises InfeasibleError for sizes that were not measured."""
        return float(self.costs.tree_s(tree))

    def tokens_per_step(self, tree: TokenTree) -> float:
        return self.tokens.tokens_per_step(tree)

    @property
    def longest_chain(self) -> int:
        """Draft tokens of the longest chain whose pass, levels and depth lie within what was measured."""
        depth, longest = self.acceptance.table.max_depth, self.costs.longest_chain
        return longest if depth is None else min(longest, depth)

    def covers(self, tree: TokenTree) -> bool:
        """Return whether the tree's verification pass, levels and depth lie within what was measured."""
        return (
            tree.nodes <= self.costs.max_nodes
            and tree.max_depth <= min(self.acceptance.table.max_depth or tree.max_depth, self.costs.max_levels)
            and int(tree.draft_widths.max(initial=0)) <= self.costs.max_draft_width
        )

    def speedup(self, tree: TokenTree) -> float:
        """Return tokens per second relative to plain decoding."""
        return float(self.speedups([tree])[0])

    def speedups(self, trees: Sequence[TokenTree]) -> Float64:
        """Return (trees,): the speedup of each tree."""
        tokens = np.array([self.tokens_per_step(tree) for tree in trees])
        return self.costs.speedup(tokens, self.costs.step_s(*sizes(trees)))

    def draw_speedups(self, trees: Sequence[TokenTree]) -> Float64:
        """Return (draws, trees): draws of the speedup of each tree."""
        return self.drawn_costs.speedup(self.draw_tokens(trees), self.drawn_costs.step_s(*sizes(trees)))

    def draw_tokens(self, trees: Sequence[TokenTree]) -> Float64:
        """Return (draws, trees): draws of the tokens per step of each tree."""
        return np.stack([self.tokens.draw_tokens(tree) for tree in trees], axis=-1)

    def predict(self, tree: TokenTree) -> Option:
        """Return a tree with its prediction; raises InfeasibleError for sizes that were not measured."""
        return self.predict_all([tree])[0]

    def predict_all(self, trees: Sequence[TokenTree]) -> tuple[Option, ...]:
        """Return each tree with its prediction; raises as `predict` does."""
        tokens, drawn_tokens = np.array([self.tokens_per_step(tree) for tree in trees]), self.draw_tokens(trees)
        step_s, drawn_s = self.costs.step_s(*sizes(trees)), self.drawn_costs.step_s(*sizes(trees))
        predicted = predictions(
            (tokens, step_s, self.costs.speedup(tokens, step_s)),
            (drawn_tokens, drawn_s, self.drawn_costs.speedup(drawn_tokens, drawn_s)),
        )
        return tuple(
            Option(
                drafter=self.drafter,
                tree=tree,
                rule=self.acceptance.rule,
                verify_tokens=int(self.costs.verify.padded[tree.nodes]),
                prediction=prediction,
            )
            for tree, prediction in zip(trees, predicted, strict=True)
        )


def model_at(
    point: OperatingPoint, tokens: TokenModel, *, max_nodes: int = 0, drafter: DrafterSetting = DRAFT_MODEL
) -> StepModel:
    """Return the model of steps with static trees.

    Args:
        point: the operating point, with the drafter's latencies.
        tokens: the acceptance at its context length.
        max_nodes: if larger than what was measured, the curves are extrapolated up to it.
        drafter: the drafter of the trees.

    Raises InfeasibleError if an extrapolated time is not above 0.
    """
    costs = step_costs(point, rule=tokens.acceptance.rule, max_nodes=max_nodes)
    return StepModel(point=point, tokens=tokens, costs=costs, max_nodes=max_nodes, drafter=drafter)


def step_model(profile: Profile, request: PlanRequest | None = None) -> StepModel:
    """Return the model at a request's operating point, by its rule or else the first one measured.

    Raises InfeasibleError naming what was measured.
    """
    request = request or PlanRequest()
    acceptance = profile.acceptance(rule=request.rule, temperature=request.temperature)
    point = profile.at(request.context_tokens, request.batch_size, acceptance.sampling, extrapolate=request.extrapolate)
    return model_at(point, token_models(profile, acceptance, raw=request.raw).at(point.context_tokens))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Confidence(ShortRepr):
    """How certain the choice of a tree is."""

    probability: float
    """That its speed is at least 99 % of the best tree's."""
    if_exact: Mapping[str, float]
    """The probability if `acceptance`, `verify`, `draft` or `overhead` were known exactly."""

    @property
    def weakest(self) -> str:
        """The least certain measurement."""
        return max(self.if_exact, key=lambda source: self.if_exact[source])

    def to_dict(self) -> dict[str, object]:
        return {
            "probability": self.probability,
            "weakest": self.weakest,
            "without_weakest": self.if_exact[self.weakest],
        }


def confidence(model: StepModel, trees: Sequence[TokenTree]) -> Confidence:
    """Return the confidence that the first of some trees is nearly the best."""
    nodes, widths = sizes(trees)

    def probability(tokens: Float64, costs: StepCosts) -> float:
        speedups = costs.speedup(tokens, costs.step_s(nodes, widths))
        return near_best(speedups[:, 0], speedups.max(axis=1))

    drawn_tokens, drawn_costs = model.draw_tokens(trees), model.drawn_costs
    tokens = np.array([model.tokens_per_step(tree) for tree in trees])
    if_exact = {"acceptance": probability(tokens, drawn_costs)}
    for source, costs in _with_one_exact(drawn_costs, model.costs).items():
        if_exact[source] = probability(drawn_tokens, costs)
    return Confidence(probability=probability(drawn_tokens, drawn_costs), if_exact=if_exact)


def _with_one_exact(drawn: StepCosts, observed: StepCosts) -> dict[str, StepCosts]:
    """Return drawn costs in which the passes of one kind, or the overhead, are as observed.

    Overhead per level and per node is part of the curves, but not of their passes.
    """
    verify, draft = drawn.verify, drawn.draft
    return {
        "verify": replace(drawn, verify=replace(observed.verify, overhead_s=verify.overhead_s)),
        "draft": replace(drawn, draft=replace(observed.draft, overhead_s=draft.overhead_s)),
        "overhead": replace(
            observed,
            verify=replace(verify, overhead_s=observed.verify.overhead_s),
            draft=replace(draft, overhead_s=observed.draft.overhead_s),
        ),
    }
