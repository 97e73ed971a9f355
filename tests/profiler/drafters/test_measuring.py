"""A whole profile of small models with every drafter: its content, and resuming."""

from dataclasses import replace

import pytest

from tests.profiler.pretended import FakeClock, interrupt, measure_profile
from treeopt.planner import best_drafter, drafter_choices, requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.latency.passes import probe_trees
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import chain
from treeopt.trees.drafter_setting import parameter_names

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=36, depth=3, branching=3)
PER_BLOCK = ("medusa", "dflash", "dspark", "p-eagle")
BUILDS_OWN_TREES = ("ddtree", "redrafter", "eagle2", "eagle2 with a head", "specexec", "lookahead", "prompt-lookup")

pytestmark = pytest.mark.usefixtures("few_trials")


@pytest.mark.parametrize("name", [*PER_BLOCK, "eagle", *BUILDS_OWN_TREES])
def test_every_drafter_is_measured_saved_planned_and_not_measured_again(
    name, target, draft, prompts, loaded, tmp_path, monkeypatch
):
    drafter = loaded(name.partition(" ")[0], with_head="with a head" in name)
    checkpoint = Checkpoint(tmp_path / "checkpoint", "")
    profile = measure_profile(target, draft, prompts, SETTINGS, drafters=[drafter], checkpoint=checkpoint)
    profile.save(tmp_path / "p.yaml")
    loaded_profile = Profile.load(tmp_path / "p.yaml")
    (measured,) = loaded_profile.drafters
    assert measured.setting == drafter.setting
    assert (measured.trees == ()) == (measured.decodes != ()) == (name in BUILDS_OWN_TREES)
    assert [latency.context_tokens for latency in measured.latencies] == [20] * bool(measured.trees)
    for latency in measured.latencies:
        assert {len(timed.steps.samples_s) for timed in latency.steps} == {SETTINGS.rounds}
        assert latency.per_block == (name in PER_BLOCK)
    for trees in measured.trees:
        assert 1 <= (trees.acceptance.table.max_depth or 0) <= (4 if name in PER_BLOCK[1:] else 3)
        assert trees.root_ranks is not None
    for decodes in measured.decodes:
        assert 1 <= len(decodes.settings) <= 3
        for setting in decodes.settings:
            assert setting.max_tokens <= 8
            assert sum(setting.decoded.tokens) >= SETTINGS.positions
            assert tuple(name for name, _ in setting.values) == parameter_names(measured.name)
    model, choice = drafter_choices(loaded_profile, PlanRequest())
    option = choice.option
    assert (model.option.drafter.name, option.drafter.name) == ("model", measured.name)
    if option.drafter.builds_own_trees:
        assert drafter.make_with_setting(option.drafter).max_tokens == option.max_nodes
    else:
        assert drafter.make_with_tree(option.tree).max_tokens == option.max_nodes

    monkeypatch.setattr(Decoder, "decode_steps", None)
    checkpoint = Checkpoint(tmp_path / "checkpoint", "", resume=True)
    resumed = measure_profile(target, draft, prompts, SETTINGS, drafters=[drafter], checkpoint=checkpoint)
    assert resumed.drafters == profile.drafters


def test_resumed_profile_equals_a_whole_one(target, draft, prompts, loaded, tmp_path, monkeypatch):
    options, path = {"drafters": [loaded("medusa"), loaded("prompt-lookup")]}, tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        calls = interrupt(patch, FakeClock, "time_s", -1)
        whole = measure_profile(target, draft, prompts, SETTINGS, **options)
        number = len(calls) - 8
    with monkeypatch.context() as patch:
        interrupt(patch, FakeClock, "time_s", number)
        with pytest.raises(KeyboardInterrupt):
            measure_profile(target, draft, prompts, SETTINGS, checkpoint=Checkpoint(path, ""), **options)
    assert "decode prompt-lookup" in path.read_text()
    resumed = measure_profile(target, draft, prompts, SETTINGS, checkpoint=Checkpoint(path, "", resume=True), **options)
    assert resumed.drafters == whole.drafters


def test_drafters_are_measured_at_every_temperature(target, draft, prompts, loaded):
    settings = replace(SETTINGS, samplings=(Sampling(0.0), Sampling(0.8)), rules=("target",))
    profile = measure_profile(target, draft, prompts, settings, drafters=[loaded("eagle"), loaded("lookahead")])
    eagle, lookahead = profile.drafters
    for temperature in (0.0, 0.8):
        assert len(eagle.trees_at(temperature)) == len(lookahead.decodes_at(temperature)) == 1
        choices = drafter_choices(profile, PlanRequest(temperature=temperature))
        assert [choice.option.drafter.name for choice in choices] == ["model", "eagle", "lookahead"]
        assert best_drafter(choices) in choices


def test_profile_without_drafters_plans_the_draft_model(target, draft, prompts):
    profile = measure_profile(target, draft, prompts, SETTINGS)
    (choice,) = drafter_choices(profile, PlanRequest())
    assert choice.option.drafter.name == "model"
    assert requested_plan(profile, PlanRequest()).choice.tree == choice.option.tree


@pytest.mark.parametrize(("depth", "widest", "most"), [(1, 2, 2), (1, 9, 64), (3, 3, 8), (4, 256, 64), (16, 256, 512)])
def test_probe_trees_differ_and_fit(depth, widest, most):
    trees = probe_trees(most, depth, widest)
    assert chain(1) in trees
    assert len(set(trees)) == len(trees)
    for tree in trees:
        assert 2 <= tree.nodes <= most
        assert tree.max_depth <= depth
        assert tree.child_counts.max() <= widest
