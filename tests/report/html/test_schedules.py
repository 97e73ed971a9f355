"""The page's section on schedules, of all drafters and of the draft model."""

import json
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from tests.cli.invented import FOUR_CONDITIONS, invented
from tests.planner.test_drafters import CONTEXTS, by_context
from tests.support.pages import Page, planned
from treeopt.planner import Option, PlanRequest, Segment, schedule
from treeopt.planner.profile_plan import ProfilePlan, drafters_over_contexts
from treeopt.plotting.panels import Panel, compose
from treeopt.plotting.style import PLAIN, TREE
from treeopt.report.drafters_text import drafter_contexts_text
from treeopt.report.figures.schedules import drafters_panel
from treeopt.report.html.contents import Contents
from treeopt.report.html.page import page
from treeopt.trees import chain

REQUEST = PlanRequest(max_nodes=8, raw=True)


@pytest.fixture(scope="module")
def several() -> ProfilePlan:
    profile = by_context()
    plans = schedule(profile, 8, raw=True).single_sequence_plans(0.0)
    return replace(
        planned(profile, max_nodes=8, raw=True), over_contexts=drafters_over_contexts(profile, REQUEST, plans)
    )


def bars_of(panel: Panel) -> list[Rectangle]:
    """Return the strips of a panel, from the left."""
    axes = compose([panel]).axes[0]
    bars = [each for each in axes.patches if isinstance(each, Rectangle) and each.get_width()]
    return sorted(bars, key=lambda each: each.get_x())


def test_every_range_of_contexts_has_its_strip(several: ProfilePlan) -> None:
    segments = several.over_contexts
    bars = bars_of(drafters_panel(segments, 0.6))
    assert len(bars) == len(segments) > 1
    for bar, each in zip(bars, segments, strict=True):
        first, last = each.context_tokens
        assert (bar.get_x(), bar.get_x() + bar.get_width()) == pytest.approx((first, last + 1))
        name = {"model": "the draft model"}.get(each.option.drafter.name, each.option.drafter.name)
        expected = (
            f"tokens of context {first} to {last}: {name}, {each.option.shape}, rule {each.option.rule}, "
            f"{each.option.speedup.value:.2f}x plain decoding at the start"
        )
        assert json.loads(str(bar.get_gid()).removeprefix("tip:")) == [expected]


def test_every_drafter_has_a_colour_of_its_own(several: ProfilePlan) -> None:
    first = several.over_contexts[0]
    model = replace(first, option=planned_model(several))
    axes = compose([drafters_panel((model, *several.over_contexts, plain(model), first), 0.0)]).axes[0]
    handles, labels = axes.get_legend_handles_labels()
    colours = {label: to_hex(handle.get_facecolor()) for handle, label in zip(handles, labels, strict=True)}
    assert (colours["the draft model"], colours["plain decoding"]) == (TREE, PLAIN)
    assert len(set(colours.values())) == len(colours) >= 3


def test_page_contains_the_drafter_switches(several: ProfilePlan) -> None:
    said = [line for line in drafter_contexts_text(several.over_contexts).splitlines() if "switch at" in line]
    assert said
    seen = Page(page(Contents(planned=several)))
    assert set(said) <= set(seen.texts("bdi"))
    assert seen.file("drafter-contexts.csv")[0][0] == "drafter"
    assert len(seen.file("drafter-contexts.csv")) == 1 + len(several.over_contexts)
    assert (CONTEXTS[0], CONTEXTS[-1]) == (
        several.over_contexts[0].context_tokens[0],
        several.over_contexts[-1].context_tokens[1],
    )
    titles = [each for each in seen.texts("bdi") if each.startswith("Acceptance, medusa")]
    assert sorted(titles) == sorted(
        f"Acceptance, medusa at temperature 0, {each} tokens of context" for each in CONTEXTS
    )
    alone = Page(page(Contents(planned=planned(invented(conditions=FOUR_CONDITIONS)))))
    assert "What to run, over context lengths" in alone.texts("bdi")
    assert "drafter-contexts.csv" not in alone.attributes("a", "download")
    assert not any("all drafters" in each for each in alone.texts("bdi"))


def planned_model(found: ProfilePlan) -> Option:
    """Return the option of the draft model."""
    return next(each.option for each in found.drafters if each.option.drafter.name == "model")


def plain(segment: Segment) -> Segment:
    return replace(segment, option=replace(segment.option, tree=chain(0)))
