"""Figures of several panels below the pair, the machine and the conditions."""

from typing import TYPE_CHECKING

from treeopt.pictures.panels import compose
from treeopt.planner.planned import Planned
from treeopt.records.profile import Profile
from treeopt.records.rules import rule_label
from treeopt.report.figures.acceptance import acceptance_panel, acceptance_panels
from treeopt.report.figures.rows import steps_panel
from treeopt.report.figures.speedup_map import map_panel
from treeopt.report.figures.times import times_panels
from treeopt.report.plan_text import subject
from treeopt.report.profile_words import measured_on, under

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plan_figure(planned: Planned) -> "Figure":
    """Return the map of a plan, the times that it uses, the parts of a step, and the acceptance."""
    profile, plan = planned.profile, planned.plan
    used = acceptance_panel(f"{rule_label(plan.rule)} at temperature {plan.temperature:g}", plan.model.acceptance)
    panels = [map_panel(plan), *times_panels(profile, plan), used, steps_panel(plan)]
    conditions = f"{plan.conditions}, {measured_on(profile.created)}"
    return compose(panels, title=subject(profile), subtitle=conditions, columns=2)


def times_figure(profile: Profile) -> "Figure":
    """Return the measured times of a profile."""
    return compose(times_panels(profile), title=subject(profile), subtitle=under(profile), columns=2)


def acceptance_figure(profile: Profile) -> "Figure":
    """Return every acceptance of a profile."""
    return compose(acceptance_panels(profile), title=subject(profile), subtitle=under(profile), columns=2)
