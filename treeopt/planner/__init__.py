"""Profile to plan: which rule and tree are fastest, where, by how much, and how sure that is."""

from treeopt.planner.fastest import Fastest, fastest_tree
from treeopt.planner.model import Candidate, StepModel, kind_of, step_model
from treeopt.planner.planning import OBJECTIVES, Plan, fastest_drafted_tree, largest_pass, plan, tree_file
from treeopt.planner.rule_choice import RuleChoice
from treeopt.planner.scheduling import Schedule, Segment, schedule
from treeopt.planner.smoothing import Smoothing
from treeopt.planner.uncertainty import Confidence

__all__ = [
    "OBJECTIVES",
    "Candidate",
    "Confidence",
    "Fastest",
    "Plan",
    "RuleChoice",
    "Schedule",
    "Segment",
    "Smoothing",
    "StepModel",
    "fastest_drafted_tree",
    "fastest_tree",
    "kind_of",
    "largest_pass",
    "plan",
    "schedule",
    "step_model",
    "tree_file",
]


def __dir__() -> list[str]:
    """Return the public names: what tab completion shows."""
    return __all__
