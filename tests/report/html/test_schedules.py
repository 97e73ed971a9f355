"""The page's section on schedules, of all drafters and of the draft model."""

import json
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from tests.cli.invented import FOUR_CONDITIONS, invented
from tests.planner.test_drafters import CONTEXTS, by_context
from tests.support.pages import planned
from treeopt.planner import PlanRequest, schedule
from treeopt.planner.drafters import drafters_over_contexts
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.plotting.panels import compose
from treeopt.plotting.style import PLAIN, TREE
from treeopt.report.figures.schedules import drafters_panel
from treeopt.report.html.contents import Contents
from treeopt.report.html.parts import Section
from treeopt.report.html.sections import sections
from treeopt.trees import chain

REQUEST = PlanRequest(max_nodes=8, raw=True)


@pytest.fixture(scope="module")
def several() -> ProfilePlan:
    profile = by_context()
    plans = schedule(profile, 8, raw=True).single_sequence_plans(0.0)
    segments = drafters_over_contexts(profile, REQUEST, plans)
    return replace(planned(profile, max_nodes=8, raw=True), over_contexts=segments)


def section_of(found: ProfilePlan, name: str) -> Section:
    return next(section for section in sections(Contents(planned=found)) if section.name == name)


def test_every_range_of_contexts_has_its_strip(several: ProfilePlan) -> None:
    segments = several.over_contexts
    axes = compose([drafters_panel(segments, 0.6)]).axes[0]
    strips = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_width()]
    strips.sort(key=lambda strip: strip.get_x())
    assert len(strips) == len(segments) > 1
    for strip, segment in zip(strips, segments, strict=True):
        (first, last), option = segment.context_tokens, segment.option
        assert (strip.get_x(), strip.get_x() + strip.get_width()) == pytest.approx((first, last + 1))
        name = {"model": "the draft model"}.get(option.drafter.name, option.drafter.name)
        tooltip = (
            f"tokens of context {first} to {last}: {name}, {option.shape}, rule {option.rule}, "
            f"{option.speedup.value:.2f}x plain decoding at the start"
        )
        assert json.loads(str(strip.get_gid()).removeprefix("tip:")) == [tooltip]


def test_every_drafter_has_its_own_colour(several: ProfilePlan) -> None:
    first = several.over_contexts[0]
    model = next(choice.option for choice in several.drafters if choice.option.drafter.name == "model")
    segments = [
        *(replace(first, option=option) for option in (model, replace(model, tree=chain(0)))),
        *several.over_contexts,
    ]
    axes = compose([drafters_panel(segments, 0.0)]).axes[0]
    handles, labels = axes.get_legend_handles_labels()
    colours = {label: to_hex(handle.get_facecolor()) for handle, label in zip(handles, labels, strict=True)}
    assert (colours["the draft model"], colours["plain decoding"]) == (TREE, PLAIN)
    assert len(set(colours.values())) == len(colours) >= 3


def test_section_contains_the_switches_of_drafters(several: ProfilePlan) -> None:
    section = section_of(several, "schedule")
    (table,) = (table for table in section.tables if table.name == "drafter-contexts")
    assert table.header[0] == "drafter"
    assert len(table.rows) == len(several.over_contexts)
    assert (several.over_contexts[0].context_tokens[0], several.over_contexts[-1].context_tokens[1]) == (
        CONTEXTS[0],
        CONTEXTS[-1],
    )
    titles = [figure.title for figure in section_of(several, "acceptance").figures]
    for context in CONTEXTS:
        assert f"Acceptance, medusa at temperature 0, {context} tokens of context" in titles


def test_section_of_the_draft_model_mentions_no_drafters() -> None:
    section = section_of(planned(invented(conditions=FOUR_CONDITIONS), max_nodes=8), "schedule")
    assert "What to run, over context lengths" in [figure.title for figure in section.figures]
    assert [table.name for table in section.tables] == ["schedule"]
