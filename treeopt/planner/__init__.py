"""Profile to plan: the fastest rule and tree at each operating point, their predicted speed and its confidence."""

from treeopt.planner.drafters import (
    DrafterChoice,
    best_drafter,
    choice_confidence,
    chosen_drafter,
    drafter_choices,
    tree_file,
)
from treeopt.planner.fastest import Fastest, fastest_tree
from treeopt.planner.model import Confidence, StepModel, model_at, step_model
from treeopt.planner.options import OBJECTIVES, Option, Prediction
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import fastest_drafted_tree, plan, requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import Schedule, requested_schedule, schedule
from treeopt.planner.segments import Segment
from treeopt.planner.smoothing import Smoothing
from treeopt.planner.subsets import categories_of, for_category, for_new_tokens

__all__ = [
    "OBJECTIVES",
    "Confidence",
    "DrafterChoice",
    "Fastest",
    "Option",
    "Plan",
    "PlanRequest",
    "Prediction",
    "Schedule",
    "Segment",
    "Smoothing",
    "StepModel",
    "best_drafter",
    "categories_of",
    "choice_confidence",
    "chosen_drafter",
    "drafter_choices",
    "fastest_drafted_tree",
    "fastest_tree",
    "for_category",
    "for_new_tokens",
    "model_at",
    "plan",
    "requested_plan",
    "requested_schedule",
    "schedule",
    "step_model",
    "tree_file",
]


def __dir__() -> list[str]:
    """Return the public names, for tab completion."""
    return __all__
