"""Prompt lookup as a candidate: taken where decoding shows it is the fastest, and never where it is not."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.adaptation.test_memory import held_bytes
from tests.support.invented_machines import DEPTH, NODES, at_temperature, profile_of, seconds
from tests.support.measured_lookup import SETTINGS, with_lookups
from tests.support.planner_oracles import every_speedup
from tests.support.simulated_decoding import VOCABULARY, TextDecoder
from treeopt.adaptation import Recalibration
from treeopt.adaptation.candidates import Candidates
from treeopt.adaptation.lookups import Lookups, measured_lookups, one_of_each_length
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, plan
from treeopt.planner.drafter_costs import point_of_decoding, predict_settings
from treeopt.records.sampling import GREEDY
from treeopt.runtime.drafters import lookup_replay
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import PromptLookupSetting

GOOD = [[0.8, 0.08, 0.03, 0.01]] * DEPTH
MIDDLE = [[0.5, 0.2, 0.1, 0.05]] * DEPTH
BAD = [[0.1, 0.05, 0.02, 0.01]] * DEPTH
MACHINE = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.12 + 0.01 * w, 0.05)
BESIDE_S = 0.01
SAMPLING = GREEDY


def ordinary(tokens, seed=0):
    return np.random.default_rng(seed).integers(VOCABULARY, size=tokens).tolist()


def repeating(tokens, period=61):
    return (ordinary(period, 7) * (1 + tokens // period))[:tokens]


def measured(table=MIDDLE, machine=MACHINE):
    """Return a profile whose prompt lookup was measured along ordinary text."""
    sequences = [ordinary(200, seed) for seed in range(1, 7)]
    profile = at_temperature(profile_of(machine, table), 0.0)
    return with_lookups(profile, SETTINGS, sequences, machine, max_nodes=NODES, beside_s=BESIDE_S)


def begun(source, *, table=MIDDLE, profile=None, tree=None, seed=0, **options):
    profile = profile or measured(table)
    tree = tree or plan(profile, NODES).choice.tree
    decoder = TextDecoder(tree, source, table, MACHINE, max_nodes=NODES, beside_s=BESIDE_S, seed=seed)
    recalibration = Recalibration(profile, now_s=lambda: 0.0, **options)
    recalibration.attach(decoder)
    return decoder, recalibration


def speed_of(setting, text, known, steps=100):
    """Return tokens per second of a setting from a place in a text on, by decoding there."""
    decoder = TextDecoder(chain(0), text, MIDDLE, MACHINE, prompt=known, max_nodes=NODES, beside_s=BESIDE_S)
    decoder.change_drafter(PromptLookupDrafter(setting.ngram, setting.length))
    return decoder.decode(None, steps)


def fastest(text, known, table):
    """Return tokens per second of the fastest of all trees, and of every setting."""
    trees = every_speedup(table, MACHINE, NODES, DEPTH).max() / MACHINE.verify[0]
    return trees, {setting: speed_of(setting, text, known) for setting in SETTINGS}


def costs_of(profile):
    return Candidates(profile, PlanRequest(), chain(0), NODES).costs


def decode_to(decoder, recalibration, tokens):
    while len(decoder.text) < tokens:
        decoder.decode(recalibration, 1)


@pytest.mark.parametrize("seed", range(2))
def test_a_sequence_that_repeats_itself_is_looked_up_and_drafted_again_where_it_does_not(seed):
    text = ordinary(700, seed) + repeating(4000) + ordinary(6000, seed + 50)
    decoder, recalibration = begun(text, seed=seed)
    trees, settings = fastest(text, 900, MIDDLE)
    assert max(settings.values()) > 1.2 * trees
    decode_to(decoder, recalibration, 690)
    assert recalibration.changes == []
    decode_to(decoder, recalibration, 1500)
    assert settings[recalibration.strategy] > 0.95 * max(settings.values())
    decode_to(decoder, recalibration, 6300)
    trees, settings = fastest(text, 5000, MIDDLE)
    assert max(settings.values()) < 0.9 * trees
    assert recalibration.strategy == decoder.tree
    assert decoder.drafter is None
    assert decoder.tree.nodes > 1
    to_lookup, *_, back = (change.to_json() for change in recalibration.changes)
    assert to_lookup["to"].keys() >= {"drafter", "ngram", "length"}
    assert to_lookup["to"]["drafter"] == "prompt-lookup"
    assert back["to"]["drafter"] == "model"


@pytest.mark.parametrize("table", [GOOD, MIDDLE, BAD])
@pytest.mark.parametrize("seed", range(2))
def test_an_ordinary_sequence_is_never_looked_up(table, seed):
    decoder, recalibration = begun(ordinary(9000, seed + 20), table=table, seed=seed)
    decoder.decode(recalibration, 1500)
    assert not any(isinstance(each, PromptLookupSetting) for each in decoder.ways)
    assert all(each.replayed > 500 for each in recalibration._lookups._averages.values())


def test_most_of_the_gain_is_realised():
    text = ordinary(700) + repeating(4000)
    decoder, recalibration = begun(text)
    decode_to(decoder, recalibration, 690)
    fixed = TextDecoder(decoder.tree, text, MIDDLE, MACHINE, prompt=690, max_nodes=NODES).decode(None, 500)
    best = max(speed_of(setting, text, 690, steps=500) for setting in SETTINGS)
    start_s, start = decoder.now_s, len(decoder.text)
    decode_to(decoder, recalibration, 4000)
    adapted = (len(decoder.text) - start) / (decoder.now_s - start_s)
    assert adapted / fixed - 1 > 0.8 * (best / fixed - 1)


def test_a_plan_of_prompt_lookup_is_left_for_a_faster_tree_and_kept_otherwise():
    first = SETTINGS[1]
    decoder, recalibration = begun(ordinary(4000), begin_with=first, tree=chain(0))
    assert (decoder.ways[-1], recalibration.strategy) == (first, first)
    decoder.decode(recalibration, 600)
    assert recalibration.strategy == decoder.tree
    assert decoder.tree.nodes > 1
    decoder, recalibration = begun(repeating(9000), begin_with=first, tree=chain(0))
    decoder.decode(recalibration, 600)
    assert isinstance(recalibration.strategy, PromptLookupSetting)


def test_the_draft_model_is_probed_during_prompt_lookup():
    decoder, recalibration = begun(repeating(20000), table=BAD)
    decoder.decode(recalibration, 600)
    assert isinstance(recalibration.strategy, PromptLookupSetting)
    decoder.table = [[0.97, 0.01, 0.005, 0.001]] * DEPTH
    decoder.decode(recalibration, 400)
    tried, accepted = recalibration._acceptance.outcomes
    assert accepted[0, 0] / tried[0, 0] > 0.8


def test_predicted_seconds_are_the_plans_for_sequences_like_the_measured_ones():
    profile = measured()
    decodes = profile.drafters[0].decodes[0]
    at = point_of_decoding(profile, SAMPLING, decodes.context_tokens)
    options = predict_settings(profile, profile.drafters[0], [decodes], at, max_nodes=NODES)
    planned = {option.drafter.values: option for option, _ in options}
    costs = costs_of(profile)
    lookups = Lookups(measured_lookups(profile, costs, SAMPLING, NODES), costs)
    for counted in decodes.settings:
        setting = PromptLookupSetting(**{value.name: value.value for value in counted.values})
        drafted = counted.passes[-1] if counted.pass_tokens[-1] > 1 else 0
        walked = sum(counted.decoded.tokens), sum(counted.decoded.steps), drafted
        lookups._averages[setting].add(lookup_replay.ReplayedSteps(*(10**8 * each for each in walked)))
        prediction = lookups.prediction(setting, costs.planned)
        assert prediction.step_s == pytest.approx(planned[counted.values].step_s.value)
        assert prediction.tokens_per_step == pytest.approx(planned[counted.values].tokens_per_step.value)


def test_the_fastest_setting_of_each_length_and_the_first_one_are_candidates():
    profile = measured()
    lookups = measured_lookups(profile, costs_of(profile), SAMPLING, NODES)
    fastest = max(lookups, key=lambda each: each.tokens_per_s)
    for first in [None, *(each.setting for each in lookups)]:
        chosen = {each.setting: each for each in one_of_each_length(lookups, NODES, first)}
        lengths = [setting.length for setting in chosen if setting != first]
        assert len(lengths) == len(set(lengths))
        assert set(lengths) >= {each for each in (2, 4, 8, 16) if each < NODES} - {first and first.length}
        assert first is None or first in chosen
        for length in {each.setting.length for each in lookups}:
            rivals = [each.tokens_per_s for each in lookups if each.setting.length == length]
            assert max(rivals) == max(each.tokens_per_s for key, each in chosen.items() if key.length == length)
        others = [each for each in chosen.values() if each.setting not in {one.setting for one in lookups}]
        assert all(
            (each.setting.ngram, each.overhead_s) == (fastest.setting.ngram, fastest.overhead_s) for each in others
        )
    assert one_of_each_length((), NODES) == ()
    assert all(each.setting.max_nodes <= 5 for each in one_of_each_length(lookups[:1], 5))


@pytest.mark.parametrize(("temperature", "kept"), [(0.0, True), (1.0, False)])
def test_another_sampling_starts_the_averages_again(temperature, kept):
    decoder, recalibration = begun(ordinary(4000))
    decoder.decode(recalibration, 600)
    other = TextDecoder(chain(2), ordinary(4000), MIDDLE, MACHINE, max_nodes=NODES, temperature=temperature)
    recalibration.attach(other)
    assert all((each.replayed > 0) is kept for each in recalibration._lookups._averages.values())


def test_settings_measured_otherwise_are_no_candidates():
    profile = measured()
    sampled = replace(profile.drafters[0].decodes[0], top_k=5)
    other = replace(profile, drafters=(replace(profile.drafters[0], decodes=(sampled,)),))
    for changed in (other, replace(profile, drafters=())):
        decoder, recalibration = begun(repeating(9000), profile=changed)
        decoder.decode(recalibration, 800)
        assert not any(isinstance(each, PromptLookupSetting) for each in decoder.ways)
        with pytest.raises(InfeasibleError, match="no measurement of it for single sequences"):
            begun(repeating(100), profile=changed, begin_with=SETTINGS[0])
    costs = costs_of(profile)
    assert len(measured_lookups(profile, costs, SAMPLING, NODES)) == 4
    assert [each.setting.length for each in measured_lookups(profile, costs, SAMPLING, 5)] == [2, 4]
    costs.batch_size = 2
    assert measured_lookups(profile, costs, SAMPLING, NODES) == ()


def test_another_decoder_continues_with_the_strategy():
    decoder, recalibration = begun(ordinary(700) + repeating(4000))
    while not recalibration.changes:
        decoder.decode(recalibration, 10)
    other = TextDecoder(chain(0), ordinary(100), MIDDLE, MACHINE, max_nodes=NODES)
    recalibration.attach(other)
    assert other.ways[-1] == recalibration.strategy != decoder.ways[0]


def test_steps_of_prompt_lookup_are_not_saved_as_times_of_trees():
    profile = measured()
    decoder, recalibration = begun(repeating(9000), profile=profile, begin_with=SETTINGS[1], tree=chain(0))
    decoder.decode(recalibration, 300)
    learnt = recalibration.updated_profile(created="2026-11-22T00:00:00Z", tool="test", machine=profile.machine)
    assert learnt.drafters == profile.drafters
    assert learnt.latencies == profile.latencies


def test_batches_have_no_lookups():
    recalibration = Recalibration(measured(), PlanRequest(batch_size=2, extrapolate=True), begin_with=SETTINGS[0])
    decoder = TextDecoder(chain(0), ordinary(100), MIDDLE, MACHINE, max_nodes=NODES)
    with pytest.raises(InfeasibleError, match="single sequences"):
        recalibration.attach(decoder)


def test_the_memory_does_not_grow(monkeypatch):
    monkeypatch.setattr(lookup_replay, "MAX_STORED_TOKENS", 512)
    monkeypatch.setattr(lookup_replay, "MIN_STORED_TOKENS", 256)
    decoder, recalibration = begun(list(itertools.chain(*([*ordinary(400, n), *repeating(400)] for n in range(12)))))
    sizes = []
    while len(decoder.text) < 9000:
        decoder.decode(recalibration, 50)
        sizes.append(held_bytes(recalibration, [decoder, recalibration.profile, recalibration.changes]))
    assert len(recalibration.changes) > 2
    assert max(sizes[len(sizes) // 2 :]) < 1.3 * max(sizes[: len(sizes) // 2])
