"""From a profile to what an engine is asked for: rates, costs, schedules and records that belong together."""

from dataclasses import replace

import pytest

from tests.cli.invented import COUNTS, TABLE, invented, verify_s
from tests.engines.settings.named import engine_named
from tests.support.invented_drafts import InventedDraft, invented_text, recorded
from treeopt.engines.engine import Engine, SettingFiles, SettingRequest
from treeopt.engines.settings.setting import setting
from treeopt.engines.settings.source import Source
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import PlanRequest, step_model
from treeopt.planner.chains import fastest_length
from treeopt.trees import chain

CROWDED = {"verify": lambda n, c, b: verify_s(n, c, b) + 3e-3 * n * b}
"""A machine whose idle arithmetic is used up by a few sequences."""
CHAINS, TREES = (
    Engine(
        name=name,
        title="Engine",
        versions="1",
        needs="nothing",
        dynamic=name == "trees",
        default=None,
        schedules=True,
        limits=lambda _: None,
        render=lambda _: SettingFiles(files={"FILE": ""}, usage=""),
        off=SettingFiles(files={"FILE": "off"}, usage=""),
    )
    for name in ("chains", "trees")
)


def asked(profile, **source) -> SettingRequest:
    return setting(CHAINS, Source(profile=profile, **source)).asked


def test_an_engine_that_replays_acceptance_is_told_how_often_so_many_tokens_are_accepted():
    found, chance = asked(invented(), tree=chain(4)).survival, 1.0
    for rate, p in zip(found, TABLE.p[:, 0], strict=True):
        chance *= p
        assert rate == pytest.approx(chance)


def test_times_are_told_by_the_tokens_of_all_sequences_together():
    times = asked(invented(conditions=[(256, 4), (256, 16)]), tree=chain(2)).verify_times
    assert [time.tokens for time in times] == [4 * count for count in COUNTS]
    assert [time.seconds for time in times] == pytest.approx([verify_s(count, 256, 4) for count in COUNTS])


@pytest.mark.parametrize("smallest", [1, 4])
def test_a_schedule_covers_every_batch_size_from_1_on(smallest):
    profile = invented(conditions=[(256, smallest), (256, 64)], **CROWDED)
    schedule = asked(profile).schedule
    lengths = {
        batch: part.length for part in schedule for batch in range(part.first_batch, part.last_batch + 1)
    }  # of overlapping ranges the later would count
    assert sorted(lengths) == list(range(1, 65))
    assert sum(part.last_batch - part.first_batch + 1 for part in schedule) == 64
    for batch, length in lengths.items():
        assert length == fastest_length(step_model(profile, batch_size=max(batch, smallest)))


@pytest.mark.parametrize("context", [256, 4096])
def test_a_schedule_holds_at_the_context_asked_for(context):
    def verify(nodes, context, batch):
        return verify_s(nodes, context, batch) + (3e-3 * nodes * batch if context > 1000 else 0.0)

    profile = invented(conditions=[(each, batch) for batch in (1, 16) for each in (256, 4096)], verify=verify)
    expected = [fastest_length(step_model(profile, context_tokens=context, batch_size=batch)) for batch in (1, 16)]
    schedule = asked(profile, request=PlanRequest(context_tokens=context)).schedule
    assert [schedule[0].length, schedule[-1].length] == expected
    assert expected != [
        fastest_length(step_model(profile, context_tokens=4352 - context, batch_size=batch)) for batch in (1, 16)
    ]


@pytest.mark.parametrize("pair", ["other + small", "big + other"])
def test_a_record_of_another_target_or_another_draft_is_refused(pair):
    draft = InventedDraft(4)
    record = recorded(draft, [invented_text(draft, seed, 20) for seed in range(2)], 12, 2, 2)
    source = Source(profile=invented(), record=record)
    assert source.for_engine(TREES).record is record
    with pytest.raises(InfeasibleError, match=r"record: expected one of the profile's pair, big \+ small"):
        replace(source, record=replace(record, pair=pair)).for_engine(TREES)


def test_a_reason_against_every_tree_is_told():
    draft = InventedDraft(4)
    record = recorded(draft, [invented_text(draft, seed, 20) for seed in range(2)], 12, 2, 2)
    source = Source(profile=invented(), record=record, method="Eagle3", engine_version="1.2")
    with pytest.raises(InfeasibleError, match=r"expected Draft_Target before 1\.3\. Got Eagle3"):
        setting(engine_named("tensorrt-llm"), source)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"max_nodes": 1}, "max_nodes: expected at least 2"), ({"max_depth": 0}, "max_depth: expected")],
)
def test_a_limit_that_leaves_no_draft_token_is_named(limit, reason):
    draft = InventedDraft(4)
    record = recorded(draft, [invented_text(draft, seed, 20) for seed in range(2)], 12, 2, 2)
    with pytest.raises(InfeasibleError, match=reason):
        setting(TREES, Source(profile=invented(), record=record, request=PlanRequest(**limit)))


def test_of_reasons_that_differ_from_tree_to_tree_one_is_told_with_its_tree():
    draft = InventedDraft(4)
    record = recorded(draft, [invented_text(draft, seed, 20) for seed in range(2)], 12, 2, 2)
    refusing = replace(TREES, limits=lambda request: f"nodes: expected 99. Got {request.tree.nodes}: take another.")
    with pytest.raises(
        InfeasibleError, match=r"such as top-k 1, .* (\d+) nodes: Engine: nodes: expected 99\. Got \1: take another"
    ):
        setting(refusing, Source(profile=invented(), record=record))


def test_the_fastest_tree_within_the_limits_is_taken():
    """Negative control: without limits another one is."""
    draft = InventedDraft(4)
    record = recorded(draft, [invented_text(draft, seed, 20) for seed in range(2)], 12, 2, 2)
    source = Source(profile=invented(), record=record)
    free = setting(TREES, source).asked.tree
    limited = replace(TREES, limits=lambda request: None if request.tree.nodes < free.nodes else "nodes: too many.")
    rendered = []
    limited = replace(limited, render=lambda request: rendered.append(request) or TREES.render(request))
    assert setting(limited, source).asked.tree.nodes < free.nodes
    assert len(rendered) == 1, "no file is made for trees that are only considered"


def test_an_unknown_method_is_told_before_any_tree_is_tried():
    draft = InventedDraft(4)
    record = recorded(draft, [invented_text(draft, seed, 20) for seed in range(2)], 12, 2, 2)
    source = Source(profile=invented(), record=record, method="bananas")
    with pytest.raises(
        InvalidValueError, match=r"method: expected one of TensorRT-LLM's: Draft_Target, .* Got 'bananas'"
    ):
        setting(engine_named("tensorrt-llm"), source)
