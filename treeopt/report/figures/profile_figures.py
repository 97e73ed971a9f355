"""Figures of a plan or a profile: several panels under one heading."""

from typing import TYPE_CHECKING

from treeopt.planner.profile_plan import ProfilePlan
from treeopt.plotting.panels import compose
from treeopt.records.profile import Profile
from treeopt.records.rules import rule_label
from treeopt.report.figures.acceptance import acceptance_panel, acceptance_panels
from treeopt.report.figures.rows import steps_panel
from treeopt.report.figures.speedup_map import map_panel
from treeopt.report.figures.times import times_panels
from treeopt.report.profile_text import describe_conditions, measured_on
from treeopt.report.text import subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plan_figure(planned: ProfilePlan) -> "Figure":
    """Return the map of a plan, its times, its acceptance, and the parts of a step."""
    profile, plan = planned.profile, planned.plan
    label = f"{rule_label(plan.rule)} at temperature {plan.temperature:g}"
    acceptance = acceptance_panel(label, plan.model.acceptance)
    panels = [map_panel(plan), *times_panels(profile, plan), acceptance, steps_panel(plan)]
    conditions = f"{plan.conditions}, {measured_on(profile.created)}"
    return compose(panels, title=subject(profile), subtitle=conditions, columns=2)


def times_figure(profile: Profile) -> "Figure":
    """Return the measured times of a profile."""
    return compose(times_panels(profile), title=subject(profile), subtitle=describe_conditions(profile), columns=2)


def acceptance_figure(profile: Profile) -> "Figure":
    """Return every acceptance of a profile."""
    return compose(acceptance_panels(profile), title=subject(profile), subtitle=describe_conditions(profile), columns=2)
