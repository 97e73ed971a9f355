"""benchmarks/recalibration.py with toy models."""

from dataclasses import replace

import pytest
import torch

from tests.methods.toys import pair_of
from tests.scripts import together
from treeopt.runtime import load_model
from treeopt.trees import TokenTree

streams, recalibration = together("benchmarks", "streams", "recalibration")
TEXT = torch.tensor([3, 1, 4, 1, 5])
LITTLE = streams.Effort(tokens=48, new_tokens=8, time_budget_s=1, max_nodes=8, positions=80, branching=3, depth=3)
pytestmark = pytest.mark.filterwarnings("ignore:acceptance. decoding two sequences:treeopt.errors.TreeoptWarning")


@pytest.fixture(scope="module")
def stream(target, draft, prompts):
    before = streams.Part(name="draft", draft=draft, measured_prompts=prompts, prompts=prompts, context_tokens=16)
    return streams.Stream(name="another draft", before=before, after=replace(before, name="target", draft=target))


@pytest.fixture(scope="module")
def profiles(target, draft, stream):
    return recalibration.Profiles(pair_of(target, draft), LITTLE, None).of(stream, 0)


def test_every_strategy_decodes_every_sequence_and_outputs_are_equal(target, draft, stream, profiles):
    models = pair_of(target, draft)
    plans = [TokenTree([-1, 0]), TokenTree([-1, 0, 1])]
    builders = recalibration.strategy_builders(models, stream, profiles[stream.before.name], plans, [])
    decoded = recalibration.decode(stream, builders, LITTLE, 2)
    assert {len(strategy.tokens) for strategy in decoded.values()} == {LITTLE.sequences}
    assert len({str(strategy.tokens) for strategy in decoded.values()}) == 1
    assert recalibration.compare_outputs(models, stream, decoded, 2) == "identical"
    decoded[recalibration.BEST].tokens = [[1] * 8] * LITTLE.sequences
    assert recalibration.compare_outputs(models, stream, decoded, 2) == "DIFFER"


def test_a_line_has_the_rate_of_every_strategy(target, draft, stream, profiles, capsys):
    gains = recalibration.run(pair_of(target, draft), stream, profiles, LITTLE, 2)
    first, plan, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("another draft")
    assert len(first.split()) == 2 + 4 + 2 + 1 + 1
    assert f"{gains.best:+.1%}" in first
    assert plan.startswith("  plan: ")


def test_the_times_of_a_profile_do_not_depend_on_the_machine(target, draft, stream, profiles, capsys):
    def lines():
        recalibration.run(pair_of(target, draft), stream, profiles, LITTLE, 1, profiles)
        return capsys.readouterr().out

    assert lines() == lines()


def test_profiles_of_a_folder_are_not_measured_again(target, draft, stream, tmp_path, monkeypatch):
    def measured():
        return recalibration.Profiles(pair_of(target, draft), LITTLE, tmp_path).of(stream, 3)

    first = measured()
    monkeypatch.setattr(recalibration, "measure_profile", None)
    again = measured()
    assert {path.name for path in tmp_path.iterdir()} == {"draft-3.yaml", "target-3.yaml"}
    assert [again[name].created for name in first] == [first[name].created for name in first]


def test_a_profile_clock_adds_up_the_predicted_steps(target, draft, stream, profiles):
    clock = recalibration.ProfileClock(profiles)
    seen = []
    decoder = recalibration.build_decoder(
        pair_of(target, draft), stream.before, TokenTree([-1, 0]), seen.append, clock=clock
    )
    for _ in decoder.generate([1, 2, 3], 8):
        pass
    assert clock() > 0
    assert clock() == pytest.approx(sum(sum(event.seconds) for event in seen))


def test_each_sequence_takes_the_median_of_its_repeats():
    def repeat(*seconds):
        return {recalibration.FIXED: recalibration.Decoded([[1, 2], [3, 4]], list(seconds))}

    decoded = recalibration.take_median_times([repeat(1.0, 5.0), repeat(3.0, 4.0), repeat(9.0, 6.0)])
    assert decoded[recalibration.FIXED].seconds == [3.0, 5.0]
    assert decoded[recalibration.FIXED].tokens_per_s(1) == 0.4


def test_reused_prompts_are_shorter(draft):
    part = streams.Part(name="a", draft=draft, measured_prompts=[], prompts=[[1] * 12, [2] * 12], context_tokens=12)
    assert [len(part.prompt(number)) for number in range(5)] == [12, 12, 7, 7, 2]


def test_noise_changes_logits_by_its_size_and_is_reproducible(target_folder):
    plain = load_model(target_folder).forward_uncached(TEXT)
    differences = [
        float((streams.perturbed_model(target_folder, noise).forward_uncached(TEXT) - plain).abs().mean())
        for noise in (1e-6, 0.1, 1)
    ]
    assert differences[0] < 1e-3 < differences[1] < differences[2]
    first, same, other = (
        streams.perturbed_model(target_folder, 0.5, seed=seed).forward_uncached(TEXT) for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
