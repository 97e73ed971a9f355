"""A whole profile of small models with every drafter: what is in it, how it resumes, and that nothing is invented."""

from dataclasses import replace

import pytest

from tests.profiler.pretended import FakeClock
from treeopt.planner import best_drafter, drafter_choices, requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.drafters import one_drafter
from treeopt.profiler.latency.passes import probe_trees
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import chain
from treeopt.trees.drafter_setting import parameter_names

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=60, depth=3, branching=3)
NAMES = (
    "medusa",
    "dflash",
    "dspark",
    "ddtree",
    "redrafter",
    "eagle",
    "p-eagle",
    "eagle2",
    "specexec",
    "lookahead",
    "prompt-lookup",
)


def measured(target, draft, prompts, drafters, checkpoint=None, settings=SETTINGS, seconds=lambda: 1.0):
    measurement = Measurement(
        target,
        draft,
        prompts,
        settings,
        clock=FakeClock(seconds),
        checkpoint=checkpoint or Checkpoint(None, ""),
        drafters=drafters,
    )
    return measurement.profile(show_progress=False)


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    """Let candidates be found on little."""
    monkeypatch.setattr(one_drafter, "TRIAL_PROMPTS", 1)
    monkeypatch.setattr(one_drafter, "TRIAL_POSITIONS", 4)


@pytest.mark.parametrize("name", [*NAMES, "eagle2 with a head"])
def test_every_drafter_is_measured_saved_planned_and_not_measured_again(
    name, target, draft, prompts, loaded, tmp_path, monkeypatch
):
    drafter = loaded(name.partition(" ")[0], with_head="with a head" in name)
    checkpoint = Checkpoint(tmp_path / "checkpoint", "")
    profile = measured(target, draft, prompts, [drafter], checkpoint)
    profile.save(tmp_path / "p.yaml")
    again = Profile.load(tmp_path / "p.yaml")
    (found,) = again.drafters
    assert (found.name, found.digest) == (drafter.name, drafter.digest)
    assert [each.context_tokens for each in found.latencies] == [20] * bool(found.trees)
    for each in found.latencies:
        assert {len(tree.steps.samples_s) for tree in each.steps} == {SETTINGS.rounds}
        assert each.per_block == (name in ("medusa", "dflash", "dspark", "p-eagle"))
    for trees in found.trees:
        assert 1 <= (trees.acceptance.table.max_depth or 0) <= (4 if name in ("dflash", "dspark", "p-eagle") else 3)
        assert trees.ranks is not None
    for decodes in found.decodes:
        assert 1 <= len(decodes.settings) <= 3
        for each in decodes.settings:
            assert each.max_tokens <= 8
            assert sum(each.decoded.tokens) >= 60
            assert tuple(value.name for value in each.values) == parameter_names(found.name)
    model, choice = drafter_choices(again, PlanRequest())
    assert model.option.drafter.name == "model"
    option = choice.option
    assert option.drafter.name == found.name
    made = (
        drafter.make_with_setting(option.drafter)
        if option.drafter.builds_own_trees
        else drafter.make_with_tree(option.tree)
    )
    assert made.max_tokens == option.max_nodes

    def never(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(Decoder, "decode_steps", never)
    resumed = measured(target, draft, prompts, [drafter], Checkpoint(tmp_path / "checkpoint", "", resume=True))
    assert resumed.drafters == profile.drafters


def test_an_interrupted_profile_goes_on_as_if_it_never_was(target, draft, prompts, loaded, tmp_path):
    drafters, calls, interrupted = [loaded("medusa"), loaded("prompt-lookup")], 0, 0

    def ticking():
        nonlocal calls
        calls += 1
        if calls == interrupted:
            raise KeyboardInterrupt
        return 1.0

    whole = measured(target, draft, prompts, drafters, seconds=ticking)
    interrupted, calls = calls - 8, 0
    with pytest.raises(KeyboardInterrupt):
        measured(target, draft, prompts, drafters, Checkpoint(tmp_path / "checkpoint", ""), seconds=ticking)
    assert "decode prompt-lookup" in (tmp_path / "checkpoint").read_text()
    resumed = measured(target, draft, prompts, drafters, Checkpoint(tmp_path / "checkpoint", "", resume=True))
    assert resumed.drafters == whole.drafters


def test_at_every_temperature(target, draft, prompts, loaded):
    settings = replace(SETTINGS, samplings=(Sampling(0.0), Sampling(0.8)), rules=("target",))
    profile = measured(target, draft, prompts, [loaded("eagle"), loaded("lookahead")], settings=settings)
    eagle, lookahead = profile.drafters
    for temperature in (0.0, 0.8):
        assert len(eagle.trees_at(temperature)) == 1
        assert len(lookahead.decodes_at(temperature)) == 1
        choices = drafter_choices(profile, PlanRequest(temperature=temperature))
        assert [each.option.drafter.name for each in choices] == ["model", "eagle", "lookahead"]
        assert best_drafter(choices) in choices


def test_without_drafters_a_profile_is_what_it_was(target, draft, prompts, tmp_path):
    profile = measured(target, draft, prompts, [])
    profile.save(tmp_path / "p.yaml")
    assert "version: 1" in (tmp_path / "p.yaml").read_text()
    assert [each.option.drafter.name for each in drafter_choices(profile, PlanRequest())] == ["model"]
    assert requested_plan(profile, PlanRequest()).choice.tree == drafter_choices(profile, PlanRequest())[0].option.tree


def test_probe_trees_differ_and_fit():
    for depth, widest, most in ((1, 2, 2), (1, 9, 64), (3, 3, 8), (4, 256, 64), (16, 256, 512)):
        trees = probe_trees(most, depth, widest)
        assert chain(1) in trees
        assert len(set(trees)) == len(trees)
        for tree in trees:
            assert 2 <= tree.nodes <= most
            assert tree.max_depth <= depth
            assert tree.child_counts.max() <= widest
