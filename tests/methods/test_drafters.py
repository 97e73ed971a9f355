"""Drafters of `bench methods`: from the profile if it contains them, else measured."""

from dataclasses import replace

import pytest

from tests.cli.invented import TABLE, invented
from tests.methods.toys import pair_of
from tests.support import eagle_heads
from treeopt.errors import InfeasibleError
from treeopt.methods import drafters as module
from treeopt.methods.drafters import plan_drafter
from treeopt.methods.method import Inputs, Method
from treeopt.methods.running import plan_methods
from treeopt.planner import PlanRequest, best_drafter, drafter_choices
from treeopt.profiler.drafters.measuring import DrafterMeasurement
from treeopt.records.results import NotRun
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.registry import load_drafter
from treeopt.trees import chain
from treeopt.trees.drafter_setting import DrafterSetting


@pytest.fixture(scope="module")
def inputs(target, draft, prompts) -> Inputs:
    return Inputs(
        pair=pair_of(target, draft),
        profile=invented(conditions=[(64, 1)], tables=(TABLE, TABLE)),
        sampling=Sampling(0.0),
        prompts=prompts[:3],
        positions=10,
        rounds=2,
    )


@pytest.fixture(scope="module")
def head(target, tmp_path_factory):
    """Return the folder of a random EAGLE head of the toy target."""
    head = eagle_heads.make_head(target, layer_ids=(1, 1), seed=3)
    return eagle_heads.save_head(eagle_heads.specforge, tmp_path_factory.mktemp("head"), head, target)


@pytest.fixture(scope="module")
def measured(inputs, head):
    """Return the inputs with a profile that contains an EAGLE head and prompt lookup."""
    drafters = []
    for name, source, layers in (("eagle", str(head), (1, 0)), ("prompt-lookup", None, ())):
        loaded = load_drafter(DrafterSetting(name=name, source=source, layers=layers), inputs.pair)
        drafters.append(module._measure(loaded, inputs))
    return replace(inputs, profile=replace(inputs.profile, drafters=tuple(drafters)))


@pytest.fixture
def nothing_measured(monkeypatch):
    def never(*_, **__):
        raise AssertionError("a profiled drafter must not be measured")

    monkeypatch.setattr(DrafterMeasurement, "measure", never)


def text_of(decoder, prompt):
    return [token for tokens in decoder.stream(prompt, 10) for token in tokens]


def test_unprofiled_drafters_are_measured_and_lossless(inputs, target):
    method = plan_drafter("prompt-lookup", inputs)
    assert (method.name, method.option.rule, method.assumed) == ("prompt-lookup", "target", ())
    assert method.option.speedup.value > 0
    plain = Decoder(target, None, chain(0), temperature=0.0)
    for prompt in inputs.prompts:
        assert text_of(method.build(), prompt) == text_of(plain, prompt)


def test_times_have_the_requested_number_of_samples(measured):
    (latency,) = measured.profile.drafters[0].latencies
    assert {len(timed.steps.samples_s) for timed in latency.steps} == {measured.rounds}


@pytest.mark.usefixtures("nothing_measured")
def test_profiled_drafters_keep_their_heads(measured, target):
    options = [choice.option for choice in drafter_choices(measured.profile, PlanRequest(temperature=0.0))]
    choices = {option.drafter.name: option for option in options}
    plain = Decoder(target, None, chain(0), temperature=0.0)
    for name in ("eagle", "prompt-lookup"):
        method = plan_drafter(name, measured)
        assert (method.setting, method.option.speedup) == (choices[name].shape, choices[name].speedup)
        assert method.assumed == ()
        assert text_of(method.build(), measured.prompts[0]) == text_of(plain, measured.prompts[0])


@pytest.mark.usefixtures("nothing_measured")
def test_head_keeps_its_measured_layers(measured, monkeypatch):
    loaded = []

    def spy(*arguments, **options):
        loaded.append(load_drafter(*arguments, **options))
        return loaded[-1]

    monkeypatch.setattr(module, "load_drafter", spy)
    plan_drafter("eagle", measured)
    assert measured.profile.drafters[0].setting.layers == (1, 0)
    assert loaded[0].heads.requested_states.layer_ids == (1, 0)


@pytest.mark.usefixtures("nothing_measured")
def test_unmeasured_temperature_is_measured(measured):
    warm = replace(measured, sampling=Sampling(0.2))
    with pytest.raises(AssertionError, match="must not be measured"):
        plan_drafter("eagle", warm)


@pytest.mark.usefixtures("nothing_measured")
def test_treeopt_is_the_choice_of_solve(measured):
    *_, chosen = plan_methods(measured, ("plain", "prompt-lookup", "eagle", "treeopt"))
    best = best_drafter(drafter_choices(measured.profile, PlanRequest(temperature=0.0)))
    assert isinstance(chosen, Method)
    assert chosen.name == "treeopt"
    assert chosen.option.speedup == best.option.speedup
    slow = replace(measured, profile=replace(invented(draft=lambda *_: 1.0), drafters=measured.profile.drafters))
    last = plan_methods(slow, ("plain", "prompt-lookup", "treeopt"))[-1]
    assert isinstance(last, Method)
    assert last.setting.startswith(("prompt-lookup: ", "plain decoding")), "a draft pass of one second is too slow"


def test_missing_heads_and_untimed_settings_are_refused(inputs, measured):
    for name in ("medusa", "dflash", "dspark", "ddtree", "redrafter", "eagle", "p-eagle"):
        with pytest.raises(InfeasibleError, match=r"heads: .*--drafter"):
            plan_drafter(name, inputs)
    lookup = measured.profile.drafters[1]
    (decodes,) = lookup.decodes
    large = replace(decodes, settings=tuple(replace(setting, max_tokens=999) for setting in decodes.settings))
    profile = replace(measured.profile, drafters=(replace(lookup, decodes=(large,)),))
    (_, row) = plan_methods(replace(measured, profile=profile), ("plain", "prompt-lookup"))
    assert isinstance(row, NotRun)
    assert row.reason.endswith("profile with a larger --max-tokens.")
