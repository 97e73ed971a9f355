"""Prompt lookup as a candidate: used if decoding shows that it is the fastest, and never otherwise."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.support.invented_machines import DEPTH, NODES, at_temperature, profile_of, seconds
from tests.support.planner_oracles import every_speedup
from tests.support.simulated_decoding import VOCABULARY, TextDecoder
from treeopt.adaptation import Recalibration
from treeopt.adaptation.candidates import Candidates
from treeopt.adaptation.lookups import Lookups, measured_lookups, one_of_each_length
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, plan
from treeopt.planner.drafter_costs import point_of_decoding, predict_settings
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedSequences, MeasuredDrafter, MeasuredSetting, MeasuredSettings
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.drafters import lookup_replay
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import PromptLookupSetting
from treeopt.trees.drafter_setting import drafter_setting

GOOD = [[0.8, 0.08, 0.03, 0.01]] * DEPTH
MIDDLE = [[0.5, 0.2, 0.1, 0.05]] * DEPTH
BAD = [[0.1, 0.05, 0.02, 0.01]] * DEPTH
MACHINE = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.12 + 0.01 * w, 0.05)
OVERHEAD_S = 0.01
SAMPLING = GREEDY
SETTINGS = tuple(PromptLookupSetting(*values) for values in ((2, 2), (2, 8), (4, 4), (4, 8)))


def random_text(tokens, seed=0):
    return np.random.default_rng(seed).integers(VOCABULARY, size=tokens).tolist()


def repeating_text(tokens, period=61):
    return (random_text(period, 7) * (1 + tokens // period))[:tokens]


def decode(text, setting, machine, *, max_nodes, steps, overhead_s):
    """Return the tokens and the seconds of some steps along a text, and the sizes of the passes."""
    decoder = TextDecoder(chain(0), text, [[0.0]], machine, max_nodes=max_nodes, overhead_s=overhead_s)
    if setting is not None:
        decoder.change_drafter(PromptLookupDrafter(setting.ngram, setting.length))
    sizes = []
    decoder.decode(lambda event: sizes.append(event.proposal.tree.nodes), steps)
    return decoder.tokens, decoder.now_s, sizes


def with_lookups(profile, settings, outputs, machine, *, max_nodes, steps=60, overhead_s=0.01):
    """Return a profile with settings of prompt lookup, each decoded along some outputs."""

    def decode_all(setting):
        runs = [
            decode(text, setting, machine, max_nodes=max_nodes, steps=steps, overhead_s=overhead_s) for text in outputs
        ]
        tokens, seconds, sizes = zip(*runs, strict=True)
        pass_tokens = tuple(sorted({*itertools.chain(*sizes)}))
        return DecodedSequences(
            tokens=tokens,
            pass_tokens=pass_tokens,
            passes=tuple(tuple(row.count(size) for size in pass_tokens) for row in sizes),
            seconds=Timing(list(seconds)),
        )

    measured = [
        MeasuredSetting(
            values=drafter_setting("prompt-lookup", ngram=setting.ngram, length=setting.length).values,
            max_tokens=setting.max_nodes,
            decoded=decode_all(setting),
        )
        for setting in settings
    ]
    decodes = MeasuredSettings(
        sampling=profile.acceptances[0].sampling,
        context_tokens=256,
        plain=decode_all(None),
        settings=tuple(measured),
    )
    return replace(profile, drafters=(MeasuredDrafter(setting=drafter_setting("prompt-lookup"), decodes=(decodes,)),))


profiles = {}


def measured(table=MIDDLE):
    """Return a profile whose prompt lookup was measured along random text."""
    if str(table) not in profiles:
        sequences = [random_text(200, seed) for seed in range(1, 7)]
        profile = at_temperature(profile_of(MACHINE, table), 0.0)
        profiles[str(table)] = with_lookups(
            profile, SETTINGS, sequences, MACHINE, max_nodes=NODES, overhead_s=OVERHEAD_S
        )
    return profiles[str(table)]


def start(source, *, table=MIDDLE, profile=None, tree=None, **options):
    profile = profile or measured(table)
    tree = tree or plan(profile, NODES).choice.tree
    decoder = TextDecoder(tree, source, table, MACHINE, max_nodes=NODES, overhead_s=OVERHEAD_S)
    recalibration = Recalibration(profile, now_s=lambda: 0.0, **options)
    recalibration.attach(decoder)
    return decoder, recalibration


def measure_speed(setting, text, known, steps=100):
    """Return tokens per second of a setting after `known` tokens of a text, by decoding."""
    decoder = TextDecoder(chain(0), text, MIDDLE, MACHINE, prompt=known, max_nodes=NODES, overhead_s=OVERHEAD_S)
    decoder.change_drafter(PromptLookupDrafter(setting.ngram, setting.length))
    return decoder.decode(None, steps)


def fastest(text, known):
    """Return tokens per second of the fastest of all trees, and of each setting."""
    trees = every_speedup(MIDDLE, MACHINE, NODES, DEPTH).max() / MACHINE.verify[0]
    return trees, {setting: measure_speed(setting, text, known) for setting in SETTINGS}


def costs_of(profile):
    return Candidates(profile, PlanRequest(), chain(0), NODES).costs


def decode_to(decoder, recalibration, tokens):
    while len(decoder.text) < tokens:
        decoder.decode(recalibration, 1)


def test_prompt_lookup_is_used_only_while_the_sequence_repeats():
    text = random_text(700, 0) + repeating_text(4000) + random_text(6000, 50)
    decoder, recalibration = start(text)
    trees, settings = fastest(text, 900)
    assert max(settings.values()) > 1.2 * trees
    decode_to(decoder, recalibration, 690)
    assert recalibration.changes == []
    decode_to(decoder, recalibration, 1500)
    assert settings[recalibration.strategy] > 0.95 * max(settings.values())
    decode_to(decoder, recalibration, 6300)
    trees, settings = fastest(text, 5000)
    assert max(settings.values()) < 0.9 * trees
    assert recalibration.strategy == decoder.tree
    assert decoder.drafter is None
    assert decoder.tree.nodes > 1
    to_lookup, *_, back = (change.to_json() for change in recalibration.changes)
    assert to_lookup["to"].keys() >= {"drafter", "ngram", "length"}
    assert to_lookup["to"]["drafter"] == "prompt-lookup"
    assert back["to"]["drafter"] == "model"


@pytest.mark.parametrize("table", [GOOD, MIDDLE, BAD])
def test_a_random_sequence_never_uses_prompt_lookup(table):
    decoder, recalibration = start(random_text(9000, 20), table=table)
    decoder.decode(recalibration, 1500)
    assert not any(isinstance(strategy, PromptLookupSetting) for strategy in decoder.strategies)
    assert all(average.replayed > 500 for average in recalibration._lookups._averages.values())


def test_most_of_the_gain_is_realised():
    text = random_text(700) + repeating_text(4000)
    decoder, recalibration = start(text)
    decode_to(decoder, recalibration, 690)
    fixed = TextDecoder(decoder.tree, text, MIDDLE, MACHINE, prompt=690, max_nodes=NODES).decode(None, 500)
    best = max(measure_speed(setting, text, 690, steps=500) for setting in SETTINGS)
    before_s, before_tokens = decoder.now_s, len(decoder.text)
    decode_to(decoder, recalibration, 4000)
    adapted = (len(decoder.text) - before_tokens) / (decoder.now_s - before_s)
    assert adapted / fixed - 1 > 0.8 * (best / fixed - 1)


def test_a_plan_with_prompt_lookup_is_kept_unless_a_tree_is_faster():
    first = SETTINGS[1]
    decoder, recalibration = start(random_text(4000), begin_with=first, tree=chain(0))
    assert (decoder.strategies[-1], recalibration.strategy) == (first, first)
    decoder.decode(recalibration, 600)
    assert recalibration.strategy == decoder.tree
    assert decoder.tree.nodes > 1
    decoder, recalibration = start(repeating_text(9000), begin_with=first, tree=chain(0))
    decoder.decode(recalibration, 600)
    assert isinstance(recalibration.strategy, PromptLookupSetting)


def test_the_draft_model_is_probed_during_prompt_lookup():
    decoder, recalibration = start(repeating_text(20000), table=BAD)
    decoder.decode(recalibration, 600)
    assert isinstance(recalibration.strategy, PromptLookupSetting)
    decoder.table = [[0.97, 0.01, 0.005, 0.001]] * DEPTH
    decoder.decode(recalibration, 400)
    tried, accepted = recalibration._acceptance.outcomes
    assert accepted[0, 0] / tried[0, 0] > 0.8


def test_predictions_equal_the_plans_on_sequences_like_the_measured_ones():
    profile = measured()
    decodes = profile.drafters[0].decodes[0]
    at = point_of_decoding(profile, SAMPLING, decodes.context_tokens)
    options = predict_settings(profile, profile.drafters[0], [decodes], at, max_nodes=NODES)
    planned = {option.drafter.values: option for option, _ in options}
    costs = costs_of(profile)
    lookups = Lookups(measured_lookups(profile, costs, SAMPLING, NODES), costs)
    for counted in decodes.settings:
        setting = PromptLookupSetting(**dict(counted.values))
        decoded = counted.decoded
        drafted = decoded.total_passes[-1] if decoded.pass_tokens[-1] > 1 else 0
        steps = sum(decoded.tokens), sum(decoded.steps), drafted
        lookups._averages[setting].add(lookup_replay.ReplayedSteps(*(10**8 * count for count in steps)))
        prediction = lookups.prediction(setting, costs.planned)
        assert prediction.step_s == pytest.approx(planned[counted.values].step_s.value)
        assert prediction.tokens_per_step == pytest.approx(planned[counted.values].tokens_per_step.value)


def test_candidates_are_the_fastest_setting_of_each_length_and_the_first():
    profile = measured()
    equal = measured_lookups(profile, costs_of(profile), SAMPLING, NODES)
    lookups = [replace(lookup, step_s=lookup.step_s / (1 + number)) for number, lookup in enumerate(equal)]
    by_setting = {lookup.setting: lookup for lookup in lookups}
    overall = max(lookups, key=lambda lookup: lookup.tokens_per_s)
    for first in [None, *by_setting]:
        chosen = {lookup.setting: lookup for lookup in one_of_each_length(lookups, NODES, first)}
        assert first is None or first in chosen
        others = [setting for setting in chosen if setting != first]
        assert len(others) == len({setting.length for setting in others})
        assert {setting.length for setting in chosen} == {length for length in (2, 4, 8, 16) if length < NODES}
        for length in {setting.length for setting in by_setting}:
            fastest, best = (
                max(lookup.tokens_per_s for setting, lookup in group.items() if setting.length == length)
                for group in (by_setting, chosen)
            )
            assert best == fastest
        for setting in chosen.keys() - by_setting.keys():
            assert (setting.ngram, chosen[setting].overhead_s) == (overall.setting.ngram, overall.overhead_s)
    assert one_of_each_length((), NODES) == ()
    assert all(lookup.setting.max_nodes <= 5 for lookup in one_of_each_length(lookups[:1], 5))


@pytest.mark.parametrize(("temperature", "kept"), [(0.0, True), (1.0, False)])
def test_another_sampling_resets_the_averages(temperature, kept):
    decoder, recalibration = start(random_text(4000))
    decoder.decode(recalibration, 600)
    other = TextDecoder(chain(2), random_text(4000), MIDDLE, MACHINE, max_nodes=NODES, temperature=temperature)
    recalibration.attach(other)
    assert all((average.replayed > 0) is kept for average in recalibration._lookups._averages.values())


def test_settings_of_another_sampling_are_no_candidates():
    profile = measured()
    sampled = replace(profile.drafters[0].decodes[0], sampling=Sampling(top_k=5))
    other = replace(profile, drafters=(replace(profile.drafters[0], decodes=(sampled,)),))
    for changed in (other, replace(profile, drafters=())):
        decoder, recalibration = start(repeating_text(9000), profile=changed)
        decoder.decode(recalibration, 800)
        assert not any(isinstance(strategy, PromptLookupSetting) for strategy in decoder.strategies)
        with pytest.raises(InfeasibleError, match="no measurement of it for single sequences"):
            start(repeating_text(100), profile=changed, begin_with=SETTINGS[0])
    costs = costs_of(profile)
    assert len(measured_lookups(profile, costs, SAMPLING, NODES)) == 4
    assert [lookup.setting.length for lookup in measured_lookups(profile, costs, SAMPLING, 5)] == [2, 4]
    costs.batch_size = 2
    assert measured_lookups(profile, costs, SAMPLING, NODES) == ()


def test_steps_of_prompt_lookup_are_not_saved_as_times_of_trees():
    profile = measured()
    decoder, recalibration = start(repeating_text(9000), profile=profile, begin_with=SETTINGS[1], tree=chain(0))
    decoder.decode(recalibration, 300)
    updated = recalibration.updated_profile(created="2026-11-22T00:00:00Z", tool="test", machine=profile.machine)
    assert updated.drafters == profile.drafters
    assert updated.latencies == profile.latencies
