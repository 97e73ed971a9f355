"""What to run where on the page: of all drafters by context length, and of the draft model."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.cli.invented import FOUR_CONDITIONS, invented
from tests.planner.test_drafters import CONTEXTS, by_context
from tests.support.pages import Page, planned
from treeopt.planner import Option, PlanRequest, Segment, schedule
from treeopt.planner.drafters import drafters_over_contexts
from treeopt.planner.planned import Planned
from treeopt.report.drafter_contexts_text import drafter_contexts_text
from treeopt.report.html import schedules
from treeopt.report.html.contents import Contents
from treeopt.report.html.page import page
from treeopt.trees import chain

REQUEST = PlanRequest(max_nodes=8, raw=True)


@pytest.fixture(scope="module")
def several() -> Planned:
    profile = by_context()
    plans = schedule(profile, 8, raw=True).plans_of_texts(0.0)
    return replace(
        planned(profile, max_nodes=8, raw=True), over_contexts=drafters_over_contexts(profile, REQUEST, plans)
    )


def test_every_range_of_contexts_has_its_strip_and_its_row(several: Planned) -> None:
    segments = several.over_contexts
    figure, table = schedules.drafters_over_contexts(segments, 0.6)
    strips = [each for each in figure.shapes if dict(each.attributes)["class"].startswith("strip ")]
    assert len(strips) == len(table.rows) == len(segments) > 1
    for strip, row, each in zip(strips, table.rows, segments, strict=True):
        first, last = each.context_tokens
        name = {"model": "the draft model"}.get(each.option.drafter.name, each.option.drafter.name)
        assert strip.title == (
            f"tokens of context {first} to {last}: {name}, {each.option.shape}, rule {each.option.rule}, "
            f"{each.option.speedup.value:.2f} times plain at the start"
        )
        assert row == (
            f"{first} to {last}",
            each.option.drafter.name,
            each.option.shape,
            each.option.rule,
            each.option.speedup.value,
        )
    assert [each.text for each in figure.shapes if dict(each.attributes)["class"] == "label"] == [
        "batch of 1, temperature 0.6"
    ]
    places = [
        (float(at["x"]), float(at["x"]) + float(at["width"])) for at in (dict(each.attributes) for each in strips)
    ]
    assert all(0 < after[0] - before[1] < 2 for before, after in pairwise(places))  # side by side, in order


def test_every_drafter_has_a_colour_of_its_own(several: Planned) -> None:
    first, *_, last = several.over_contexts
    model = replace(first, option=planned_model(several))
    figure, _ = schedules.drafters_over_contexts((model, first, last, plain(model), first), 0.0)
    assert [each.colour for each in figure.legend][:1] == ["tree"]
    assert {each.text: each.colour for each in figure.legend}["plain decoding"] == "plain"
    assert len({each.colour for each in figure.legend}) == len(figure.legend)


def test_the_page_says_where_to_switch_drafters(several: Planned) -> None:
    said = [line for line in drafter_contexts_text(several.over_contexts).splitlines() if "switch at" in line]
    assert said
    seen = Page(page(Contents(planned=several)))
    assert set(said) <= set(seen.texts("bdi"))
    assert "drafter-contexts" in seen.attributes("figure", "id")
    assert seen.file("drafter-contexts.csv")[0][:2] == ["context", "drafter"]
    assert (CONTEXTS[0], CONTEXTS[-1]) == (
        several.over_contexts[0].context_tokens[0],
        several.over_contexts[-1].context_tokens[1],
    )
    titles = [each for each in seen.texts("bdi") if each.startswith("Acceptance, medusa")]
    assert sorted(titles) == sorted(
        f"Acceptance, medusa at temperature 0, {each} tokens of context" for each in CONTEXTS
    )
    alone = Page(page(Contents(planned=planned(invented(conditions=FOUR_CONDITIONS)))))
    assert "contexts" in alone.attributes("figure", "id")
    assert "drafter-contexts" not in alone.attributes("figure", "id")
    assert not any("Of all drafters" in each for each in alone.texts("bdi"))


def planned_model(found: Planned) -> Option:
    """Return the option of the draft model."""
    return next(each.option for each in found.drafters if each.option.drafter.name == "model")


def plain(segment: Segment) -> Segment:
    return replace(segment, option=replace(segment.option, tree=chain(0)))
