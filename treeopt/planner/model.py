"""The model of a step: what a profile predicts of any tree, at one operating point.

    speedup(T) = F(T) / step_s(T) * verify_s(1)

with F of `treeopt.planner.tokens` and step_s of `treeopt.planner.costs`.  Plain decoding is the tree of the root alone.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from treeopt.array_record import ArrayRecord, ShortRepr
from treeopt.arrays import Float64
from treeopt.planner.costs import StepCosts, sizes, step_costs
from treeopt.planner.dependence import ChainDependence, Dependence
from treeopt.planner.options import DRAFT_MODEL, Option, Prediction
from treeopt.planner.request import PlanRequest
from treeopt.planner.resampling import OBSERVED, Estimator, Resampled, estimates, near_best
from treeopt.planner.smoothing import Smoothing
from treeopt.planner.tokens import TokenModel, token_models
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree
from treeopt.trees.drafter_setting import DrafterSetting

CostsBy = Callable[[Estimator], StepCosts]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepModel(ArrayRecord):
    """Predicted tokens, seconds and speedup of any tree at one operating point."""

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
    costs_by: CostsBy
    """Returns the costs by an estimator; `costs` are those by what was observed."""
    drafter: DrafterSetting = DRAFT_MODEL

    @property
    def acceptance(self) -> MeasuredAcceptance:
        """As measured, or smoothed, or interpolated."""
        return self.tokens.acceptance

    @property
    def smoothing(self) -> Smoothing | None:
        """What smoothing did; None if it was not wanted."""
        return self.tokens.smoothing

    @property
    def dependence(self) -> ChainDependence | Dependence | None:
        """What the acceptance table leaves out; None without accepted ranks."""
        return self.tokens.dependence

    @cached_property
    def drawn_costs(self) -> StepCosts:
        """The costs in many draws of what the measurements may have been, the same at every call."""
        return self.costs_by(Resampled(deepcopy(self.tokens.generator)))

    def step_s(self, tree: TokenTree) -> float:
        """Return the seconds of a step; InfeasibleError for sizes that were not measured."""
        return float(self.costs.tree_s(tree))

    def tokens_per_step(self, tree: TokenTree) -> float:
        """Return F(T), corrected by the replay of the measured sequences if their accepted ranks are known."""
        return self.tokens.tokens_per_step(tree)

    def knows(self, tree: TokenTree) -> bool:
        """Return whether passes as large, and levels as deep and as wide, as a tree's were measured."""
        return (
            tree.nodes <= self.costs.max_nodes
            and tree.max_depth <= min(self.acceptance.table.max_depth or tree.max_depth, self.costs.max_levels)
            and int(tree.draft_widths.max(initial=0)) <= self.costs.max_draft_width
        )

    def speedup(self, tree: TokenTree) -> float:
        """Return tokens per second over those of plain decoding."""
        return float(self.speedups([tree])[0])

    def speedups(self, trees: Sequence[TokenTree]) -> Float64:
        """Return (trees,): the speedup of each tree."""
        tokens = np.array([self.tokens_per_step(tree) for tree in trees])
        return self.costs.speedup(tokens, self.costs.step_s(*sizes(trees)))

    def draw_speedups(self, trees: Sequence[TokenTree]) -> Float64:
        """Return (draws, trees): what the speedup of each tree may be."""
        return self.drawn_costs.speedup(self._draw_tokens(trees), self.drawn_costs.step_s(*sizes(trees)))

    def predict(self, tree: TokenTree) -> Option:
        """Return a tree with its prediction; InfeasibleError for sizes that were not measured."""
        return self.predict_all([tree])[0]

    def predict_all(self, trees: Sequence[TokenTree]) -> tuple[Option, ...]:
        """Return each tree with its prediction; raises as `predict` does."""
        tokens = np.array([self.tokens_per_step(tree) for tree in trees])
        step_s, drawn_s = self.costs.step_s(*sizes(trees)), self.drawn_costs.step_s(*sizes(trees))
        drawn_tokens = self._draw_tokens(trees)
        columns = zip(
            trees,
            estimates(tokens, drawn_tokens),
            estimates(step_s, drawn_s),
            estimates(self.costs.speedup(tokens, step_s), self.drawn_costs.speedup(drawn_tokens, drawn_s)),
            strict=True,
        )
        return tuple(
            Option(
                drafter=self.drafter,
                tree=tree,
                rule=self.acceptance.rule,
                verify_tokens=int(self.costs.verify_tokens[tree.nodes]),
                prediction=Prediction(tokens_per_step=tokens_per_step, step_s=seconds, speedup=speedup),
            )
            for tree, tokens_per_step, seconds, speedup in columns
        )

    def _draw_tokens(self, trees: Sequence[TokenTree]) -> Float64:
        return np.stack([self.tokens.draw_tokens(tree) for tree in trees], axis=-1)


def model_at(
    point: OperatingPoint, tokens: TokenModel, *, max_nodes: int = 0, drafter: DrafterSetting = DRAFT_MODEL
) -> StepModel:
    """Return the model of steps with static trees.

    Args:
        point: the operating point, whose latencies are the drafter's.
        tokens: the acceptance at its context length.
        max_nodes: if larger than what was measured, how far the curves continue.
        drafter: what drafts.

    Raises InfeasibleError if an extrapolated time is not above 0.
    """
    costs_by = CostsOfPoint(point, tokens.acceptance.rule, max_nodes)
    return StepModel(point=point, tokens=tokens, costs=costs_by(OBSERVED), costs_by=costs_by, drafter=drafter)


@dataclass(frozen=True, slots=True, repr=False)
class CostsOfPoint(ShortRepr):
    """The costs of steps at an operating point, by an estimator; see `step_costs`."""

    point: OperatingPoint
    rule: str
    max_nodes: int

    def __call__(self, estimator: Estimator) -> StepCosts:
        return step_costs(self.point, rule=self.rule, max_nodes=self.max_nodes, estimator=estimator)


def step_model(
    profile: Profile,
    *,
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    raw: bool = False,
    extrapolate: bool = False,
    max_nodes: int = 0,
) -> StepModel:
    """Return the model of one operating point of a profile; by default the first one measured.

    Args:
        profile: what was measured.
        rule: verification rule whose acceptance and overhead count.
        temperature: at which it was measured.
        context_tokens: tokens in the cache; between measured lengths, times and acceptance are interpolated.
        batch_size: sequences verified together; interpolated likewise.
        raw: take the acceptance as measured, without smoothing rows that rise by noise.
        extrapolate: continue beyond what was measured, in context, batch size and nodes.
        max_nodes: if larger than what was measured, and with `extrapolate`, how far to continue.

    Raises InfeasibleError naming what was measured.
    """
    request = PlanRequest(
        rule=rule,
        temperature=temperature,
        context_tokens=context_tokens,
        batch_size=batch_size,
        extrapolate=extrapolate,
        raw=raw,
    )
    return requested_model(profile, request, max_nodes=max_nodes)


def requested_model(profile: Profile, request: PlanRequest, *, max_nodes: int = 0) -> StepModel:
    """Return the model at the operating point of a request, of its rule or else the first one measured; see `step_model`."""
    acceptance = profile.acceptance(rule=request.rule, temperature=request.temperature)
    point = profile.at(request.context_tokens, request.batch_size, acceptance.sampling, extrapolate=request.extrapolate)
    tokens = token_models(profile, acceptance, raw=request.raw).at(point.context_tokens)
    return model_at(point, tokens, max_nodes=max_nodes if request.extrapolate else 0)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Confidence(ShortRepr):
    """How certain the choice of a tree is."""

    probability: float
    """That its speed is at least 99 % of the best rival's."""
    weakest: str
    """What is least certain in this comparison: `acceptance`, `verify`, `draft` or `overhead`."""
    without_weakest: float
    """The probability if that were known exactly."""


def confidence(model: StepModel, trees: Sequence[TokenTree]) -> Confidence:
    """Return how often the first of some trees is as good as the best of them, and what would make that more certain."""
    probability, without = known_exactly(model, trees)
    weakest = max(without, key=lambda source: without[source])
    return Confidence(probability=probability, weakest=weakest, without_weakest=without[weakest])


def known_exactly(model: StepModel, trees: Sequence[TokenTree]) -> tuple[float, dict[str, float]]:
    """Return the probability that the first of some trees is nearly the best, now and if one part was known exactly.

    The parts are `acceptance`, `verify`, `draft` and `overhead`.
    """
    drawn_tokens = np.stack([model.tokens.draw_tokens(tree) for tree in trees], axis=-1)
    tokens = np.array([model.tokens_per_step(tree) for tree in trees])
    nodes, widths = sizes(trees)

    def probability(tokens: Float64, costs: StepCosts) -> float:
        speedups = costs.speedup(tokens, costs.step_s(nodes, widths))
        return near_best(speedups[:, 0], speedups.max(axis=1))

    without = {"acceptance": probability(tokens, model.drawn_costs)}
    for source, costs in _each_known(model.drawn_costs, model.costs).items():
        without[source] = probability(drawn_tokens, costs)
    return probability(drawn_tokens, model.drawn_costs), without


def _each_known(drawn: StepCosts, estimated: StepCosts) -> dict[str, StepCosts]:
    """Return drawn curves of which the passes of one kind, or the overhead, are as estimated.

    What a step's overhead grows by with levels and nodes is part of both curves, but not of their passes.
    """
    verify, draft = drawn.verify, drawn.draft
    return {
        "verify": replace(drawn, verify=replace(estimated.verify, more_s=verify.more_s)),
        "draft": replace(drawn, draft=replace(estimated.draft, more_s=draft.more_s)),
        "overhead": replace(
            estimated,
            verify=replace(verify, more_s=estimated.verify.more_s),
            draft=replace(draft, more_s=estimated.draft.more_s),
        ),
    }
