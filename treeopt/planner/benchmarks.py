"""The trees that benchmarks compare, and their predictions at the pace of the machine during the benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treeopt.errors import InfeasibleError
from treeopt.planner.curves import Curve
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import Option
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.tokens import TokenModel
from treeopt.records.profile import Profile
from treeopt.records.results import Pace, PacedPrediction, TreePrediction
from treeopt.trees import TokenTree, chain

PLAIN = chain(0)
CHAIN_DEPTHS = (1, 2, 4, 6, 8, 12, 16)
NODES = (4, 8, 16, 32, 64, 128)
DEPTHS = (2, 4, 8, 16)


def predict_grid(plan: Plan) -> tuple[Option, ...]:
    """Return predictions for chains of several depths and the solver's trees of several sizes, without duplicates.

    The plan's choice comes first, or the fastest tree if the choice is plain decoding.
    """
    solution = plan.solution
    chains = [chain(depth) for depth in CHAIN_DEPTHS if depth <= min(solution.max_depth, solution.max_nodes - 1)]
    solved = [
        solution.tree(nodes, depth)
        for nodes in NODES
        for depth in DEPTHS
        if nodes <= solution.max_nodes and depth <= min(solution.max_depth, nodes - 1)
    ]
    trees = dict.fromkeys(tree for tree in (plan.choice.tree, *chains, *solved) if tree.nodes > 1)
    options = [plan.model.predict(tree) for tree in trees]
    if plan.choice.tree.nodes == 1:
        options.insert(0, options.pop(int(np.argmax([option.speedup.value for option in options]))))
    return tuple(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCandidates:
    """The trees that are compared at one batch size."""

    trees: tuple[TokenTree, ...]
    """Plain decoding first."""
    chosen: TokenTree | None
    """The planned tree; None without a plan."""
    predicted: Mapping[TokenTree, Option]
    """Without trees beyond what was measured."""
    model: StepModel | None = None
    """That predicts them; None beyond what was measured."""


def plan_batch_sizes(profile: Profile, request: PlanRequest, batch_sizes: Sequence[int]) -> dict[int, Plan]:
    """Return the plan of each batch size, increasing, all with the rule and temperature of the smallest.

    Args:
        profile: what was measured.
        request: what is planned for, at the first context length measured.
        batch_sizes: measured, or between measured ones.

    Raises InfeasibleError for batch sizes outside the measured ones.
    """
    request = replace(request, context_tokens=None, extrapolate=False)
    smallest, *larger = sorted(batch_sizes)
    first = requested_plan(profile, replace(request, batch_size=smallest))
    request = replace(request, rule=first.rule, temperature=first.temperature)
    return {smallest: first, **{size: requested_plan(profile, replace(request, batch_size=size)) for size in larger}}


def planned_candidates(plans: Mapping[int, Plan]) -> dict[int, BatchCandidates]:
    """Return the trees for each batch size: plain decoding, the choices there and at neighbouring sizes, and chains.

    These are the best chain and those that are one token shorter and longer, if they can be predicted: a fair benchmark
    needs close rivals.

    Args:
        plans: by batch size, increasing.
    """
    candidates, choices = {}, [plan.choice.tree for plan in plans.values()]
    for index, (size, plan) in enumerate(plans.items()):
        neighbours, length = choices[max(0, index - 1) : index + 2], plan.chain.tree.max_depth
        near = _predictions(plan.model, [chain(max(0, length - 1)), chain(length + 1)])
        trees = tuple(dict.fromkeys([PLAIN, plan.choice.tree, plan.chain.tree, *neighbours, *near]))
        candidates[size] = BatchCandidates(
            trees=trees, chosen=plan.choice.tree, predicted=_predictions(plan.model, trees), model=plan.model
        )
    return candidates


def tree_candidates(
    profile: Profile, tokens: TokenModel, chosen: Mapping[int, TokenTree | None], trees: Sequence[TokenTree]
) -> dict[int, BatchCandidates]:
    """Return plain decoding and some trees for each batch size.

    Args:
        profile: what was measured.
        tokens: predicts the tokens of the trees.
        chosen: the planned tree of each batch size; None for the one with the fastest prediction.
        trees: compared at every batch size.
    """
    compared = tuple(dict.fromkeys([PLAIN, *trees]))
    candidates = {}
    for size, planned in chosen.items():
        model = _model(profile, tokens, size)
        predicted = {} if model is None else _predictions(model, compared)
        best = max(predicted.values(), key=lambda option: option.speedup.value).tree if len(predicted) > 1 else None
        candidates[size] = BatchCandidates(trees=compared, chosen=planned or best, predicted=predicted, model=model)
    return candidates


def _model(profile: Profile, tokens: TokenModel, batch_size: int) -> StepModel | None:
    try:
        return model_at(profile.at(None, batch_size, tokens.acceptance.sampling), tokens)
    except InfeasibleError:
        return None


def _predictions(model: StepModel, trees: Sequence[TokenTree]) -> dict[TokenTree, Option]:
    """Return the prediction of each tree that is not larger than what was measured."""
    return {tree: model.predict(tree) for tree in trees if model.covers(tree)}


def at_pace(model: StepModel, pace: Pace) -> StepModel:
    """Return a model with scaled curves; its values are at the pace, its intervals stay those of the profile.

    Verification is scaled by both ratios, linearly interpolated between their counts.  Host overhead is scaled like the
    target's pass over one token, the most similar measurement: on a machine that is slower in all parts no speedup
    changes.
    """
    costs = model.costs
    draft = pace.plain if pace.draft is None else pace.draft
    return replace(
        model,
        costs=replace(
            costs,
            verify=_scaled(costs.verify, (pace.plain, pace.verify), pace),
            draft=_scaled(costs.draft, (draft, draft), pace),
            overhead_s=costs.overhead_s * pace.plain,
            branching_s=costs.branching_s * pace.plain,
        ),
    )


def tree_prediction(option: Option, at_pace: PacedPrediction | None = None) -> TreePrediction:
    """Return the prediction of an option as benchmarks record it."""
    return TreePrediction(
        tokens_per_step=option.tokens_per_step.value,
        step_s=option.step_s.value,
        speedup=option.speedup.value,
        interval=(option.speedup.low, option.speedup.high),
        at_pace=at_pace,
    )


def predict_at_pace(model: StepModel | None, tree: TokenTree, pace: Pace | None) -> PacedPrediction | None:
    """Return the prediction for a tree; None without a model or a pace, or beyond what was measured."""
    if model is None or pace is None or not model.covers(tree):
        return None
    scaled = at_pace(model, pace)
    return PacedPrediction(step_s=scaled.step_s(tree), speedup=scaled.speedup(tree))


def _scaled(curve: Curve, ratios: tuple[float, float], pace: Pace) -> Curve:
    scale = np.interp(curve.tokens, (1, pace.verify_tokens), ratios)
    return replace(curve, seconds=curve.seconds * scale, overhead_s=curve.overhead_s * pace.plain)
