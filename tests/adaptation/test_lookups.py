"""Prompt lookup beside trees: chosen where an enumeration says that it is the fastest, and never where it is not."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.support.invented_machines import DEPTH, NODES, at_temperature, profile_of, seconds
from tests.support.measured_lookup import SETTINGS, with_lookups
from tests.support.planner_oracles import every_speedup
from tests.support.simulated_decoding import VOCABULARY, TextDecoder
from treeopt.adaptation import Recalibration
from treeopt.adaptation.context_costs import ContextCosts
from treeopt.adaptation.estimate import SHIFT_SD
from treeopt.adaptation.lookups import Lookups, lookups_of_each_length, measured_lookups
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, Where, plan
from treeopt.planner.drafted import decoded_at
from treeopt.planner.drafter_models import setting_predictions
from treeopt.records.sampling import GREEDY
from treeopt.runtime.drafters import lookup_replay
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain
from treeopt.trees.own_trees import PromptLookupSetting

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
    texts = [ordinary(200, seed) for seed in range(1, 7)]
    profile = at_temperature(profile_of(machine, table), 0.0)
    return with_lookups(profile, SETTINGS, texts, machine, max_nodes=NODES, beside_s=BESIDE_S)


def begun(source, *, table=MIDDLE, profile=None, tree=None, seed=0, **asked):
    profile = profile or measured(table)
    tree = tree or plan(profile, NODES).choice.tree
    decoder = TextDecoder(tree, source, table, MACHINE, max_nodes=NODES, beside_s=BESIDE_S, seed=seed)
    recalibration = Recalibration(profile, now_s=lambda: 0.0, **asked)
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


@pytest.mark.parametrize("seed", range(2))
def test_text_that_repeats_itself_is_looked_up_and_drafted_again_where_it_does_not(seed):
    text = ordinary(700, seed) + repeating(4000) + ordinary(6000, seed + 50)
    decoder, recalibration = begun(text, seed=seed)
    trees, settings = fastest(text, 900, MIDDLE)
    assert max(settings.values()) > 1.2 * trees
    while len(decoder.text) < 690:
        decoder.decode(recalibration, 1)
    assert recalibration.changes == []
    while len(decoder.text) < 1500:
        decoder.decode(recalibration, 1)
    assert settings[recalibration.way] > 0.95 * max(settings.values())
    while len(decoder.text) < 6300:
        decoder.decode(recalibration, 1)
    trees, settings = fastest(text, 5000, MIDDLE)
    assert max(settings.values()) < 0.9 * trees
    assert recalibration.way == decoder.tree
    assert decoder.drafter is None
    assert decoder.tree.nodes > 1
    to_lookup, *_, back = (change.to_json() for change in recalibration.changes)
    assert to_lookup["to"].keys() >= {"drafter", "ngram", "length"}
    assert to_lookup["to"]["drafter"] == "prompt-lookup"
    assert "tokens a step along it with prompt-lookup, ngram" in to_lookup["why"]
    assert back["to"]["drafter"] == "model"


def test_what_is_looked_up_is_compared_where_it_becomes_slower_also_if_its_steps_take_less_than_was_measured(
    monkeypatch,
):
    decoder, recalibration = begun(repeating(2000) + ordinary(4000, 50))
    while len(decoder.text) < 1900:
        decoder.decode(recalibration, 1)
    assert isinstance(recalibration.way, PromptLookupSetting)
    monkeypatch.setattr(recalibration._times, "own", lambda way: 1.0 if way == decoder.tree else 0.5)
    assert recalibration._ways.for_text(0.1, anew=False) is None
    monkeypatch.undo()
    solved_speed = recalibration._lookups._solved_speed
    while len(decoder.text) < 2100:
        decoder.decode(recalibration, 1)
    assert recalibration._lookups._solved_speed < 0.9 * solved_speed


def test_a_lookup_that_became_slower_is_noticed_however_fast_its_own_steps_are():
    decoder, recalibration = begun(repeating(2000))
    while len(decoder.text) < 1900:
        decoder.decode(recalibration, 1)
    assert isinstance(recalibration.way, PromptLookupSetting)
    ways = recalibration._ways
    now = max(each.speed for each in ways._lookups.in_this_text(ways.context_tokens))
    ways._lookups._solved_speed, ways._speed = 1.5 * now, 3 * now
    assert "times as fast as before" in ways.moved()


@pytest.mark.parametrize("table", [GOOD, MIDDLE, BAD])
@pytest.mark.parametrize("seed", range(2))
def test_ordinary_text_is_never_looked_up(table, seed):
    decoder, recalibration = begun(ordinary(9000, seed + 20), table=table, seed=seed)
    decoder.decode(recalibration, 2000)
    assert recalibration.changes == []
    assert decoder.ways == [decoder.tree]
    assert all(rate.walked > 500 for rate in recalibration._lookups._walked.values())  # they were looked at


def test_nearly_all_that_there_is_to_gain_is_gained():
    text = ordinary(700) + repeating(4000)
    decoder, recalibration = begun(text)
    while len(decoder.text) < 690:
        decoder.decode(recalibration, 1)
    fixed = TextDecoder(decoder.tree, text, MIDDLE, MACHINE, prompt=690, max_nodes=NODES).decode(None, 500)
    best = max(speed_of(setting, text, 690, steps=500) for setting in SETTINGS)
    start_s, start = decoder.now_s, len(decoder.text)
    while len(decoder.text) < 4000:
        decoder.decode(recalibration, 1)
    adapted = (len(decoder.text) - start) / (decoder.now_s - start_s)
    assert adapted / fixed - 1 > 0.8 * (best / fixed - 1)


def test_a_plan_that_is_prompt_lookup_is_left_where_a_tree_is_faster_and_kept_where_not():
    first = SETTINGS[1]
    decoder, recalibration = begun(ordinary(4000), begin_with=first, tree=chain(0))
    assert (decoder.ways[-1], recalibration.way) == (first, first)
    decoder.decode(recalibration, 600)
    assert recalibration.way == decoder.tree
    assert decoder.tree.nodes > 1
    decoder, recalibration = begun(repeating(9000), begin_with=first, tree=chain(0))
    decoder.decode(recalibration, 600)
    assert isinstance(recalibration.way, PromptLookupSetting)


def test_while_text_is_looked_up_it_is_known_what_the_draft_model_is_worth():
    decoder, recalibration = begun(repeating(20000), table=BAD)
    decoder.decode(recalibration, 600)
    assert isinstance(recalibration.way, PromptLookupSetting)
    decoder.table = [[0.97, 0.01, 0.005, 0.001]] * DEPTH
    decoder.machine = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.001 * w, 0.0)
    decoder.decode(recalibration, 400)
    recent = recalibration._texts.of_text
    assert recent.accepted[0, 0] / recent.tried[0, 0] > 0.9


def test_a_change_that_takes_longer_than_it_saves_is_not_made():
    decoder, recalibration = begun(ordinary(700) + repeating(4000))
    recalibration._ways.switch_s = 1e6
    decoder.decode(recalibration, 900)
    assert decoder.ways == [decoder.tree]


def test_what_the_first_step_behind_a_change_takes_is_part_of_the_change():
    decoder, recalibration = begun(ordinary(700) + repeating(4000))
    while not recalibration.changes:
        decoder.decode(recalibration, 1)
    slow = decoder.lookup_seconds
    decoder.lookup_seconds = lambda proposal: slow(proposal)._replace(draft=100.0)  # as where much is to be read
    decoder.decode(recalibration, 1)
    assert recalibration._ways.switch_s == pytest.approx(100, rel=0.05)
    assert recalibration._taken == []


def test_walking_along_the_text_waits_where_it_has_taken_its_share_and_is_told():
    clock = itertools.count(0.0, 0.01)  # every reading of the clock is so much later
    decoder, recalibration = begun(ordinary(9000))
    recalibration._now_s = recalibration.time._now_s = lambda: next(clock)
    decoder.decode(recalibration, 2000)
    assert 0 < recalibration.time.replay_s <= 0.004 * recalibration.time.decoding_s + 0.1
    assert recalibration.time.own_s >= recalibration.time.replay_s


def test_what_is_kept_does_not_grow(monkeypatch):
    monkeypatch.setattr(lookup_replay, "MOST_TOKENS", 512)
    monkeypatch.setattr(lookup_replay, "KEPT_TOKENS", 256)
    decoder, recalibration = begun(list(itertools.chain(*([*ordinary(400, n), *repeating(400)] for n in range(12)))))
    sizes = []
    left_out = dict.fromkeys(("_decoder", "_readings", "_on_change", "_now_s", "time", "changes"))
    while len(decoder.text) < 9000:
        decoder.decode(recalibration, 50)
        sizes.append(len(pickle.dumps(vars(recalibration) | left_out)))
    assert len(recalibration.changes) > 2
    assert max(sizes[len(sizes) // 2 :]) < 1.3 * max(sizes[: len(sizes) // 2])


def test_seconds_are_those_that_a_plan_has_where_text_is_as_it_was_measured():
    profile = measured()
    decodes = profile.drafters[0].decodes[0]
    at = decoded_at(profile, SAMPLING.temperature, decodes.context_tokens)
    planned = {each.setting.values: each for each in setting_predictions(profile, [decodes], at, max_nodes=NODES)}
    costs = ContextCosts(profile, "sequoia", SAMPLING.temperature, Where())
    lookups = Lookups(measured_lookups(profile, costs, SAMPLING, NODES), costs)
    for counted in decodes.settings:
        setting = PromptLookupSetting(**{value.name: value.value for value in counted.values})
        drafted = counted.passes[-1] if counted.pass_tokens[-1] > 1 else 0
        times = sum(counted.decoded.tokens), sum(counted.decoded.steps), drafted
        walk = lookup_replay.Walked(*(10**8 * each for each in times))  # so much that nothing else counts
        lookups._walked[setting].add(walk)
        rated = next(each for each in lookups.in_this_text(None) if each.way == setting)
        assert rated.step_s == pytest.approx(planned[counted.values].step_s.value)
        assert rated.tokens_per_step == pytest.approx(planned[counted.values].tokens_per_step.value)


def test_of_every_usual_length_the_fastest_setting_is_walked_along_and_what_drafts_at_first():
    profile = measured()
    costs = ContextCosts(profile, "sequoia", SAMPLING.temperature, Where())
    found = measured_lookups(profile, costs, SAMPLING, NODES)
    fastest = max(found, key=lambda each: each.speed)
    for first in [None, *(each.setting for each in found)]:
        walked = {each.setting: each for each in lookups_of_each_length(found, NODES, first)}
        lengths = [setting.length for setting in walked if setting != first]
        assert len(lengths) == len(set(lengths))
        assert set(lengths) >= {each for each in (2, 4, 8, 16) if each < NODES} - {first and first.length}
        assert first is None or first in walked
        for length in {each.setting.length for each in found}:
            rivals = [each.speed for each in found if each.setting.length == length]
            speeds = [each.speed for setting, each in walked.items() if setting.length == length]
            assert max(speeds) == max(rivals)
        others = [each for setting, each in walked.items() if setting not in {one.setting for one in found}]
        assert all((each.setting.ngram, each.beside_s) == (fastest.setting.ngram, fastest.beside_s) for each in others)
    assert lookups_of_each_length((), NODES) == ()
    assert all(each.setting.max_nodes <= 5 for each in lookups_of_each_length(found[:1], 5))


def test_another_sampling_has_what_was_counted_before_forgotten_and_the_same_one_not():
    for temperature, forgotten in ((0.0, False), (1.0, True)):
        decoder, recalibration = begun(ordinary(4000))
        decoder.decode(recalibration, 600)
        recalibration._begin_text(None)  # as another decoder does
        before = recalibration._lookups._walked[SETTINGS[0]].all_texts
        other = TextDecoder(chain(2), ordinary(4000), MIDDLE, MACHINE, max_nodes=NODES, temperature=temperature)
        recalibration.attach(other)
        after = recalibration._lookups._walked[SETTINGS[0]].all_texts
        assert (after.noise > 1) is forgotten
        assert (after == before) is not forgotten
        assert (recalibration._texts._shift_sd == SHIFT_SD) is forgotten


def test_what_was_not_measured_so_is_left_alone():
    profile = measured()
    sampled = replace(profile.drafters[0].decodes[0], top_k=5)
    other = replace(profile, drafters=(replace(profile.drafters[0], decodes=(sampled,)),))
    for changed in (other, replace(profile, drafters=())):
        decoder, recalibration = begun(repeating(9000), profile=changed)
        decoder.decode(recalibration, 800)
        assert decoder.ways == [decoder.tree]
        with pytest.raises(InfeasibleError, match="nothing was measured of it that suits"):
            begun(repeating(100), profile=changed, begin_with=SETTINGS[0])
    costs = ContextCosts(profile, "sequoia", SAMPLING.temperature, Where())
    assert len(measured_lookups(profile, costs, SAMPLING, NODES)) == 4
    assert [each.setting.length for each in measured_lookups(profile, costs, SAMPLING, 5)] == [2, 4]
    costs.batch_size = 2
    assert measured_lookups(profile, costs, SAMPLING, NODES) == ()


def test_another_decoder_goes_on_with_what_drafts():
    decoder, recalibration = begun(ordinary(700) + repeating(4000))
    while not recalibration.changes:
        decoder.decode(recalibration, 10)
    other = TextDecoder(chain(0), ordinary(100), MIDDLE, MACHINE, max_nodes=NODES)
    recalibration.attach(other)
    assert other.ways[-1] == recalibration.way != decoder.ways[0]


def test_what_is_learnt_of_steps_that_were_looked_up_is_not_taken_for_trees():
    profile = measured()
    decoder, recalibration = begun(repeating(9000), profile=profile, begin_with=SETTINGS[1], tree=chain(0))
    decoder.decode(recalibration, 300)
    found = recalibration.learnt(created="2026-11-22T00:00:00Z", tool="test", machine=profile.machine)
    assert found.drafters == profile.drafters
    assert found.latencies == profile.latencies


def test_a_request_for_batches_has_no_lookups():
    recalibration = Recalibration(
        measured(), PlanRequest(where=Where(batch_size=2, extrapolate=True)), begin_with=SETTINGS[0]
    )
    decoder = TextDecoder(chain(0), ordinary(100), MIDDLE, MACHINE, max_nodes=NODES)
    with pytest.raises(InfeasibleError, match="single texts"):
        recalibration.attach(decoder)
