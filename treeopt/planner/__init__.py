"""Profile to plan: which rule and tree are fastest, where, by how much, and how sure that is."""

from treeopt.planner.categories import categories_of, for_category
from treeopt.planner.drafters import (
    DrafterChoice,
    best_drafter,
    choice_confidence,
    chosen_drafter,
    drafter_choices,
    tree_file,
)
from treeopt.planner.fastest import Fastest, fastest_tree
from treeopt.planner.model import Confidence, StepModel, model_at, requested_model, step_model
from treeopt.planner.new_tokens import for_new_tokens
from treeopt.planner.options import OBJECTIVES, Option, Prediction
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import fastest_drafted_tree, largest_pass, plan, requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import Schedule, requested_schedule, schedule
from treeopt.planner.segments import Segment
from treeopt.planner.smoothing import Smoothing

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
    "largest_pass",
    "model_at",
    "plan",
    "requested_model",
    "requested_plan",
    "requested_schedule",
    "schedule",
    "step_model",
    "tree_file",
]


def __dir__() -> list[str]:
    """Return the public names: what tab completion shows."""
    return __all__
