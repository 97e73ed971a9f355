"""Profile to plan: which rule and tree are fastest, where, by how much, and how sure that is."""

from treeopt.planner.categories import categories_of, for_category
from treeopt.planner.contexts import requested_model, step_model
from treeopt.planner.drafters import (
    DrafterChoice,
    best_drafter,
    choice_confidence,
    chosen_drafter,
    drafter_choices,
    tree_file,
)
from treeopt.planner.draws import Confidence
from treeopt.planner.fastest import Fastest, fastest_tree
from treeopt.planner.model import Candidate, StepModel, kind_of
from treeopt.planner.new_tokens import for_new_tokens
from treeopt.planner.plan_record import Plan
from treeopt.planner.planning import fastest_drafted_tree, largest_pass, plan, requested_plan
from treeopt.planner.request import OBJECTIVES, PlanRequest, Where
from treeopt.planner.rule_choice import RuleChoice
from treeopt.planner.scheduling import Schedule, Segment, requested_schedule, schedule
from treeopt.planner.smoothing import Smoothing

__all__ = [
    "OBJECTIVES",
    "Candidate",
    "Confidence",
    "DrafterChoice",
    "Fastest",
    "Plan",
    "PlanRequest",
    "RuleChoice",
    "Schedule",
    "Segment",
    "Smoothing",
    "StepModel",
    "Where",
    "best_drafter",
    "categories_of",
    "choice_confidence",
    "chosen_drafter",
    "drafter_choices",
    "fastest_drafted_tree",
    "fastest_tree",
    "for_category",
    "for_new_tokens",
    "kind_of",
    "largest_pass",
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
