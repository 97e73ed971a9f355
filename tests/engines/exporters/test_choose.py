"""The setting that is chosen from a profile: rates, times, schedules and dynamic trees."""

from dataclasses import replace

import pytest

from tests.cli.invented import COUNTS, TABLE, invented, verify_s
from tests.engines.exporters.named import engine_named
from tests.support.invented_drafts import InventedDraft, invented_text, recorded
from treeopt.engines.exporters.choose import choose_setting
from treeopt.engines.exporters.engine import Engine, SettingFiles, SettingRequest
from treeopt.engines.exporters.setting import Source
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import PlanRequest, step_model
from treeopt.planner.segments import fastest_length
from treeopt.records.step_latency import Imported
from treeopt.trees import TreeFile, chain

CROWDED = {"verify": lambda n, c, b: verify_s(n, c, b) + 3e-3 * n * b}
"""Latency of a machine that is compute-bound from a few sequences on."""
CHAINS, TREES = (
    Engine(
        name=name,
        title="Engine",
        checked=("1",),
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


def choose_request(profile, **source) -> SettingRequest:
    return choose_setting(CHAINS, Source(profile=profile, **source)).request


@pytest.fixture(scope="module")
def record():
    draft = InventedDraft(4)
    return recorded(draft, [invented_text(draft, seed, 20) for seed in range(2)], 12, 2, 2)


def test_survival_is_the_product_of_acceptance_by_depth():
    survival = choose_request(invented(), tree_file=TreeFile(tree=chain(4))).survival
    assert survival == pytest.approx(TABLE.p[:, 0].cumprod())


def test_verification_times_are_by_tokens_of_the_whole_batch():
    times = choose_request(invented(conditions=[(256, 4), (256, 16)]), tree_file=TreeFile(tree=chain(2))).verify_s
    assert list(times) == [4 * count for count in COUNTS]
    assert list(times.values()) == pytest.approx([verify_s(count, 256, 4) for count in COUNTS])


@pytest.mark.parametrize("smallest", [1, 4])
def test_schedule_covers_every_batch_size(smallest):
    profile = invented(conditions=[(256, smallest), (256, 64)], **CROWDED)
    schedule = choose_request(profile).schedule
    lengths = {batch: part.length for part in schedule for batch in range(part.first_batch, part.last_batch + 1)}
    assert sorted(lengths) == list(range(1, 65))
    assert sum(part.last_batch - part.first_batch + 1 for part in schedule) == 64
    for batch, length in lengths.items():
        assert length == fastest_length(step_model(profile, PlanRequest(batch_size=max(batch, smallest))))


@pytest.mark.parametrize("context", [256, 4096])
def test_schedule_is_planned_at_the_requested_context(context):
    def verify(nodes, context, batch):
        return verify_s(nodes, context, batch) + (3e-3 * nodes * batch if context > 1000 else 0.0)

    profile = invented(conditions=[(tokens, batch) for batch in (1, 16) for tokens in (256, 4096)], verify=verify)
    expected = [
        fastest_length(step_model(profile, PlanRequest(context_tokens=context, batch_size=batch))) for batch in (1, 16)
    ]
    schedule = choose_request(profile, request=PlanRequest(context_tokens=context)).schedule
    assert [schedule[0].length, schedule[-1].length] == expected
    assert expected != [
        fastest_length(step_model(profile, PlanRequest(context_tokens=4352 - context, batch_size=batch)))
        for batch in (1, 16)
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pair": "other + small"}, r"of the profile's pair, big \+ small.*record that pair"),
        ({"pair": "big + other"}, r"of the profile's pair, big \+ small.*record that pair"),
        ({"temperature": 0.7}, "at temperature the profile's. Got 0.7: record at that temperature"),
    ],
)
def test_record_under_other_conditions_is_refused_by_engines_of_trees(record, change, reason):
    source = Source(profile=invented(), record=record)
    assert source.for_engine(TREES).record is record
    other = replace(source, record=replace(record, **change))
    assert other.for_engine(CHAINS).record is None
    with pytest.raises(InfeasibleError, match=f"record: expected one {reason}"):
        other.for_engine(TREES)


def test_refusal_of_every_tree_is_an_error(record):
    source = Source(profile=invented(), record=record, method="Eagle3", engine_version="1.2")
    with pytest.raises(InfeasibleError, match=r"expected Draft_Target before 1\.3\. Got Eagle3"):
        choose_setting(engine_named("tensorrt-llm"), source)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"max_nodes": 1}, "max_nodes: expected at least 2"), ({"max_depth": 0}, "max_depth: expected")],
)
def test_limit_without_draft_tokens_is_named(record, limit, reason):
    with pytest.raises(InfeasibleError, match=reason):
        choose_setting(TREES, Source(profile=invented(), record=record, request=PlanRequest(**limit)))


def test_refusals_that_differ_by_tree_name_one_tree(record):
    refusing = replace(TREES, limits=lambda request: f"nodes: expected 99. Got {request.tree.nodes}: take another.")
    with pytest.raises(
        InfeasibleError, match=r"such as top-k 1, .* (\d+) nodes: Engine: nodes: expected 99\. Got \1: take another"
    ):
        choose_setting(refusing, Source(profile=invented(), record=record))


def test_fastest_tree_within_limits_is_chosen(record):
    """Negative control: another tree is chosen without limits."""
    source = Source(profile=invented(), record=record)
    free = choose_setting(TREES, source).request.tree
    limited = replace(TREES, limits=lambda request: None if request.tree.nodes < free.nodes else "nodes: too many.")
    rendered = []
    limited = replace(limited, render=lambda request: rendered.append(request) or TREES.render(request))
    assert choose_setting(limited, source).request.tree.nodes < free.nodes
    assert len({request.tree for request in rendered}) == 1  # no file for trees that are only considered


def test_unknown_method_is_refused_before_trees_are_tried(record):
    source = Source(profile=invented(), record=record, method="bananas")
    with pytest.raises(
        InvalidValueError, match=r"method: expected one of TensorRT-LLM's: Draft_Target, .* Got 'bananas'"
    ):
        choose_setting(engine_named("tensorrt-llm"), source)


def test_profile_without_models_is_not_advised_to_record():
    """Negative control: a profile of the bundled pair is."""
    measured = invented()
    imported = Imported(what="verify", source="a file")
    foreign = replace(
        measured, latencies=tuple(replace(latency, imported=(imported,)) for latency in measured.latencies)
    )
    for profile, action in ((measured, "Run treeopt profile --record"), (foreign, "Profile the models themselves")):
        notes = choose_setting(TREES, Source(profile=profile)).notes
        (note,) = [note for note in notes if "takes dynamic trees" in note]
        assert f". {action}" in note


@pytest.mark.parametrize(("name", "method"), [("sglang", "DFLASH"), ("sglang", "NGRAM"), ("tensorrt-llm", "DFlash")])
def test_methods_that_draft_chains_need_no_record(name, method):
    """Negative control: a method with trees needs one."""
    engine = engine_named(name)
    chains, trees = (
        choose_setting(engine, Source(profile=invented(), method=name)) for name in (method, engine.methods["eagle"])
    )
    assert "takes dynamic trees" not in " ".join(chains.notes)
    assert "takes dynamic trees" in " ".join(trees.notes)
    assert chains.request.tree.is_chain
