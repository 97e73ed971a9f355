"""Re-calibration beside an enumeration of all trees: a drift leads to what is fastest then, no drift to no change."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.support.invented_machines import (
    DEPTH,
    NODES,
    Seconds,
    acceptance,
    at_temperature,
    latency,
    profile,
    profile_of,
    seconds,
)
from tests.support.planner_oracles import every_speedup, speedup
from tests.support.simulated_decoding import SimulatedDecoder
from treeopt.adaptation import Recalibration
from treeopt.adaptation.candidates import Choice
from treeopt.adaptation.estimate import SHIFT_SD
from treeopt.adaptation.looks import FIRST_LOOK_STEPS, LOOK_STEPS, SOON_TEXTS
from treeopt.adaptation.own_time import HEAD_START_S, OWN_SHARE
from treeopt.adaptation.readings import READING_SHARE
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner import PlanRequest, Where, plan
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.rules import rule_named
from treeopt.trees import chain

GOOD = [[0.8, 0.08, 0.03, 0.01]] * DEPTH
BAD = [[0.15, 0.1, 0.06, 0.04]] * DEPTH
MIDDLE = [[0.5, 0.2, 0.1, 0.05]] * DEPTH
POOR = [[0.3, 0.15, 0.1, 0.05]] * DEPTH
NEVER, ALWAYS = [[0.005] * 4] * DEPTH, [[0.97, 0.01, 0.01, 0.005]] * DEPTH
MACHINE = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.12 + 0.01 * w, 0.05)
DRAFTS_DEAR = MACHINE._replace(draft=[4 * each for each in MACHINE.draft])


def begun(profile, table, machine, *, seed=0, tree=None, temperature=0.0, measured_at=None, **asked):
    """Return a decoder with a plan's tree, and its re-calibration on a clock that stands still.

    One acceptance of a profile is taken to be measured at the decoder's temperature, unless another is named.
    """
    if len(profile.acceptances) == 1:
        profile = at_temperature(profile, temperature if measured_at is None else measured_at)
    tree = tree or plan(profile, NODES).choice.tree
    decoder = SimulatedDecoder(tree, table, machine, max_nodes=NODES, temperature=temperature, seed=seed)
    recalibration = Recalibration(profile, now_s=lambda: 0.0, **asked)
    recalibration.attach(decoder)
    return decoder, recalibration


def share_of_best(tree, table, machine):
    """Return the speed of a tree as a share of the fastest's, over all trees there are."""
    return speedup(tree.parents.tolist(), table, machine) / every_speedup(table, machine, NODES, DEPTH).max()


@pytest.mark.parametrize(("before", "after"), [(GOOD, BAD), (GOOD, MIDDLE), (MIDDLE, GOOD), (BAD, GOOD), (BAD, MIDDLE)])
@pytest.mark.parametrize("seed", range(2))
def test_a_drift_of_acceptance_leads_to_a_tree_that_is_as_fast_as_any(before, after, seed):
    profile = profile_of(MACHINE, before)
    decoder, recalibration = begun(profile, before, MACHINE, seed=seed)
    first = decoder.tree
    decoder.decode(recalibration, 200)
    assert decoder.tree == first
    decoder.table = after
    decoder.decode(recalibration, 1500)
    assert share_of_best(first, after, MACHINE) < 0.93
    assert share_of_best(decoder.tree, after, MACHINE) > 0.95, recalibration.changes


@pytest.mark.parametrize("table", [GOOD, MIDDLE, BAD])
@pytest.mark.parametrize("seed", range(2))
def test_without_a_drift_nothing_changes(table, seed):
    decoder, recalibration = begun(profile_of(MACHINE, table), table, MACHINE, seed=seed)
    decoder.decode(recalibration, 3000)
    assert len(decoder.trees) == 1, recalibration.changes


def test_drafts_that_became_dear_lead_to_fewer_of_them():
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    first = decoder.tree
    decoder.decode(recalibration, 200)
    decoder.machine = DRAFTS_DEAR
    decoder.decode(recalibration, 1000)
    assert share_of_best(first, GOOD, DRAFTS_DEAR) < 0.93
    assert share_of_best(decoder.tree, GOOD, DRAFTS_DEAR) > share_of_best(first, GOOD, DRAFTS_DEAR) + 0.03


def test_a_machine_that_is_slower_as_a_whole_changes_nothing():
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.decode(recalibration, 200)
    decoder.machine = Seconds([2 * s for s in MACHINE.verify], [2 * s for s in MACHINE.draft], 2 * MACHINE.overhead)
    decoder.decode(recalibration, 1000)
    assert len(decoder.trees) == 1


def test_most_of_what_there_is_to_gain_is_gained_the_time_to_notice_included():
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    fixed = SimulatedDecoder(decoder.tree, BAD, MACHINE, max_nodes=NODES).decode(None, 1000)
    best = every_speedup(BAD, MACHINE, NODES, DEPTH).max() / MACHINE.verify[0]
    decoder.decode(recalibration, 200)
    decoder.table = BAD
    assert decoder.decode(recalibration, 1000) / fixed - 1 > 0.8 * (best / fixed - 1)


def test_a_change_is_told_with_its_reason_and_what_is_predicted():
    told = []
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE, on_change=told.append)
    decoder.decode(recalibration, 200)
    decoder.table = BAD
    decoder.decode(recalibration, 400)
    assert told == recalibration.changes
    line = told[0].to_json()
    assert list(line)[:5] == ["step", "why", "from", "to", "predicted_gain"]
    assert 200 < line["step"] < 330
    assert "of first children in place of" in line["why"]
    assert line["from"]["parents"] == decoder.trees[0].parents.tolist()
    assert line["predicted_gain"] > 0.02


@pytest.mark.parametrize("tree", [chain(0), chain(3)])
def test_what_is_noted_of_steps_is_forgotten_at_every_look(tree):
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE, tree=tree)
    for _ in range(50):
        decoder.decode(recalibration, 20)
        assert len(recalibration._taken) < LOOK_STEPS
        assert len(recalibration._visits.paths) < LOOK_STEPS


def test_a_change_that_takes_longer_than_it_saves_is_not_made():
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.decode(recalibration, 200)
    recalibration._ways.switch_s = 1e6
    decoder.table = BAD
    decoder.decode(recalibration, 1000)
    assert len(decoder.trees) == 1


@pytest.mark.parametrize("first", [chain(0), chain(2)])
def test_a_sure_tree_is_taken_where_the_fastest_is_uncertain(first):
    decoder, recalibration = begun(profile_of(MACHINE, BAD), MIDDLE, MACHINE, tree=first)
    uncertain = Choice(way=chain(4), gain=0.5, noise=0.6, tokens_per_step=3.0, step_s=1.0, speed=3.0)
    sure = Choice(way=chain(1), gain=0.2, noise=0.01, tokens_per_step=1.5, step_s=1.0, speed=1.5)
    recalibration._candidates.faster = lambda *_, **__: (1.0, iter([uncertain, sure]))
    while not recalibration.changes and decoder.steps < 400:
        decoder.decode(recalibration, 8)
    assert decoder.tree == chain(1)
    assert recalibration._ways.uncertain  # so that ways are compared again when twice as much is known


@pytest.mark.parametrize("interruption_s", [0.0, 50.0])
def test_a_reading_that_was_interrupted_does_not_put_off_the_next_ones(interruption_s):
    decoder, recalibration = begun(profile_of(MACHINE, BAD), BAD, MACHINE, tree=chain(0))
    read_at: list[int] = []
    taken = [0.0]

    def draft_logits(tokens):
        taken[0] += 0.5 + (interruption_s if not read_at else 0.0)
        read_at.append(decoder.steps)
        return SimulatedDecoder.draft_logits(decoder, tokens)

    decoder.draft_logits, recalibration._readings._now_s = draft_logits, lambda: taken[0]
    decoder.decode(recalibration, 1600)
    assert len(read_at) >= 6, read_at
    assert 0.5 * len(read_at) <= 2 * READING_SHARE * decoder.now_s  # the interruption aside, a share of the time


def test_looking_waits_where_it_has_taken_its_share():
    clock = itertools.count(0.0, 0.5)  # every reading of the clock is half a second later: looks take forever
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    recalibration._now_s = recalibration.time._now_s = lambda: next(clock)
    decoder.decode(recalibration, 3000)
    assert (
        recalibration.time.own_s < 2 * (OWN_SHARE * recalibration.time.decoding_s + HEAD_START_S) + 5
    )  # the last look's


def test_what_is_kept_does_not_grow():
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    sizes = []
    for turn in range(12):
        decoder.table = (GOOD, BAD, MIDDLE)[turn % 3]
        decoder.decode(recalibration, 300)
        sizes.append(
            len(
                pickle.dumps(
                    vars(recalibration)
                    | dict.fromkeys(("_decoder", "_readings", "_on_change", "_now_s", "time", "changes"))
                )
            )
        )
    assert max(sizes[8:]) < 1.3 * max(sizes[:8])


def test_a_decoder_whose_tree_cannot_be_changed_is_refused_and_what_is_no_profile():
    decoder, _ = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.takes_trees = False
    recalibration = Recalibration(profile_of(MACHINE, GOOD))
    with pytest.raises(InvalidValueError, match="on_step: expected a decoder whose draft model fills static trees"):
        recalibration.attach(decoder)
    with pytest.raises(InvalidValueError, match="profile: "):
        Recalibration("profile.yaml")


def test_another_decoder_goes_on_with_the_tree_and_what_was_learnt():
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    first = decoder.tree
    decoder.decode(recalibration, 200)
    decoder.table = BAD
    decoder.decode(recalibration, 600)
    other = SimulatedDecoder(first, BAD, MACHINE, max_nodes=NODES)
    recalibration.attach(other)
    assert other.tree == decoder.tree != first


def test_what_another_decoder_decodes_are_other_texts_and_what_was_counted_in_the_last_one_is_kept():
    for temperature, kept in ((0.0, True), (1.0, False)):
        decoder, recalibration = begun(profile_of(MACHINE, GOOD), BAD, MACHINE)
        decoder.decode(recalibration, 20)
        other = SimulatedDecoder(decoder.tree, BAD, MACHINE, max_nodes=NODES, temperature=temperature)
        assert other.number == decoder.number  # of the text
        recalibration.attach(other)
        of_all = recalibration._texts.all_texts(recalibration._ways.known)
        assert bool(of_all.outcomes.tried.any()) is kept
        assert recalibration._texts.of_text.tried.sum() == 0
        other.decode(recalibration, 20)
        assert recalibration.texts == 2


@pytest.mark.parametrize(
    ("temperature", "measured_at", "rule", "known"),
    [
        (0.0, 0.0, "specinfer", True),
        (0.6, 0.6, "sequoia", True),
        (0.0, 0.6, "sequoia", False),
        (0.6, 0.6, "target", False),
    ],
)
def test_of_what_was_not_measured_so_little_is_certain_from_the_first_step_on(temperature, measured_at, rule, known):
    measured = at_temperature(profile_of(MACHINE, GOOD), measured_at)
    decoder = SimulatedDecoder(chain(3), GOOD, MACHINE, max_nodes=NODES, temperature=temperature)
    decoder.rule = rule_named(rule)
    recalibration = Recalibration(measured, PlanRequest(rule="sequoia"), now_s=lambda: 0.0)
    recalibration.attach(decoder)
    assert (recalibration._texts._shift_sd == SHIFT_SD) is not known


@pytest.mark.parametrize("another", [False, True])
def test_with_another_draft_model_little_is_certain(another):
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.decode(recalibration, 200)
    other = SimulatedDecoder(decoder.tree, GOOD, MACHINE, max_nodes=NODES)
    other.draft_model = object() if another else decoder.draft_model
    recalibration.attach(other)
    assert (recalibration._texts._shift_sd == SHIFT_SD) is another
    assert recalibration._counted.outcomes.tried.any() != another
    assert (recalibration._looks.pause_steps == FIRST_LOOK_STEPS) is another


def test_the_first_texts_that_are_sampled_otherwise_are_looked_at_soon():
    decoder, recalibration = begun(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.decode(recalibration, 200)
    assert recalibration._looks.pause_steps == LOOK_STEPS
    other = SimulatedDecoder(decoder.tree, GOOD, MACHINE, max_nodes=NODES, temperature=1.0)
    recalibration.attach(other)
    for text in range(2 * SOON_TEXTS):
        other.number = text
        other.decode(recalibration, FIRST_LOOK_STEPS)  # and not one look more than that
        assert (recalibration._taken == []) is (text < SOON_TEXTS), text
        other.decode(recalibration, 200)


class TestLearntProfile:
    def learnt(self, table, steps=3000, machine=MACHINE):
        profile = profile_of(MACHINE, GOOD)
        decoder, recalibration = begun(profile, GOOD, MACHINE, temperature=0.6)
        decoder.table, decoder.machine = table, machine
        decoder.decode(recalibration, steps)
        return recalibration.learnt(created="2026-11-22T00:00:00Z", tool="test", machine=profile.machine), decoder

    def test_it_holds_what_was_counted_and_solves_to_what_is_fastest(self, tmp_path):
        found, _ = self.learnt(MIDDLE)
        found.save(tmp_path / "learnt.yaml")
        again = Profile.load(tmp_path / "learnt.yaml")
        p = again.acceptances[0].table.p
        assert np.allclose(p[:, 0], 0.5, atol=0.08)
        assert again.acceptances[0].table.counts[0] > 100
        tree = plan(again, NODES).choice.tree
        assert share_of_best(tree, MIDDLE, MACHINE) > 0.95

    def test_times_are_those_that_steps_took(self):
        slow = Seconds([3 * s for s in MACHINE.verify], [3 * s for s in MACHINE.draft], 3 * MACHINE.overhead)
        found, decoder = self.learnt(GOOD, 400, slow)
        nodes = decoder.tree.nodes
        assert float(found.latencies[0].verify.seconds(nodes)) == pytest.approx(slow.verify[nodes - 1])
        assert float(found.latencies[0].verify.seconds(NODES)) == pytest.approx(MACHINE.verify[NODES - 1])

    def test_what_was_sampled_otherwise_than_measured_stands_beside_what_was_measured(self, tmp_path):
        profile = profile_of(MACHINE, GOOD)
        profile = replace(profile, latencies=tuple(replace(each, sampled=True) for each in profile.latencies))
        decoder, recalibration = begun(profile, BAD, MACHINE, measured_at=0.6)
        decoder.decode(recalibration, 3000)
        found = recalibration.learnt(created="2026-11-22T00:00:00Z", tool="test", machine=profile.machine)
        found.save(tmp_path / "learnt.yaml")
        before, decoded = Profile.load(tmp_path / "learnt.yaml").acceptances
        assert before == profile.acceptances[0]
        assert decoded.sampling == Sampling(0.0)
        assert np.allclose(decoded.table.p[:, 0], 0.1, atol=0.06)
        assert found.latencies == profile.latencies  # of steps that sample: none of them was timed

    def test_what_was_counted_with_one_sampling_is_not_told_of_another(self):
        profile = profile_of(MACHINE, GOOD)
        decoder, recalibration = begun(profile, BAD, MACHINE, temperature=0.6)
        decoder.decode(recalibration, 400)
        other = SimulatedDecoder(decoder.tree, GOOD, MACHINE, max_nodes=NODES, temperature=0.0)
        recalibration.attach(other)
        other.decode(recalibration, 400)
        found = recalibration.learnt(created="2026-11-22T00:00:00Z", tool="test", machine=profile.machine)
        assert found.acceptances[0] == profile.acceptances[0]
        assert np.allclose(found.acceptances[1].table.p[:, 0], 0.8, atol=0.08)
        assert found.acceptances[1].prompts == 1

    def test_where_nothing_was_drafted_nothing_is_said(self):
        profile = profile_of(MACHINE, GOOD)
        decoder, recalibration = begun(profile, GOOD, MACHINE)
        decoder.decode(recalibration, 4)
        with pytest.raises(TreeoptError, match="decode more text"):
            recalibration.learnt(created="", tool="", machine=profile.machine)


def measured_at_two_temperatures():
    greedy = replace(acceptance(GOOD), temperature=0.0)
    return profile([latency(MACHINE)], [greedy, acceptance(BAD)])


def test_a_sampling_that_was_measured_too_has_its_plan_at_once():
    measured = measured_at_two_temperatures()
    planned = [plan(measured, NODES, temperature=each).choice.tree for each in (0.0, 0.6)]
    assert planned[0] != planned[1]
    decoder, recalibration = begun(measured, GOOD, MACHINE, tree=planned[0])
    decoder.decode(recalibration, 200)
    for number, temperature in enumerate((0.6, 0.0, 0.6)):
        table = BAD if temperature else GOOD
        other = SimulatedDecoder(planned[0], table, MACHINE, max_nodes=NODES, temperature=temperature)
        recalibration.attach(other)
        assert other.tree == recalibration.way == planned[temperature > 0]
        assert [each.why for each in recalibration.changes] == [
            f"sampling: temperature {each:g}, which was measured too" for each in (0.6, 0.0, 0.6)[: number + 1]
        ]
        other.decode(recalibration, 300)
        assert other.tree == planned[temperature > 0]


def test_a_tree_that_is_deeper_than_was_measured_with_another_sampling_is_left():
    greedy = replace(acceptance(GOOD), temperature=0.0)
    measured = profile([latency(MACHINE)], [greedy, acceptance(GOOD[:1])])
    decoder, recalibration = begun(measured, GOOD, MACHINE, tree=chain(4))
    decoder.decode(recalibration, 20)
    other = SimulatedDecoder(decoder.tree, GOOD, MACHINE, max_nodes=NODES, temperature=0.6)
    recalibration.attach(other)
    assert other.tree == recalibration.way
    assert other.tree.max_depth == 1
    other.decode(recalibration, 100)


def test_it_starts_from_the_acceptance_at_the_context_that_the_plan_is_for():
    short, long = (replace(acceptance(p), context_tokens=at, temperature=0.0) for p, at in ((GOOD, 100), (BAD, 300)))
    measured = profile([latency(MACHINE, context_tokens=at) for at in (100, 300)], [short, long])
    decoder = SimulatedDecoder(chain(1), BAD, MACHINE, max_nodes=NODES)
    decoder.text = [1] * 300
    recalibration = Recalibration(measured, PlanRequest(where=Where(context_tokens=300)), now_s=lambda: 0.0)
    recalibration.attach(decoder)
    decoder.decode(recalibration, 600)
    assert share_of_best(decoder.tree, BAD, MACHINE) > 0.95
    learnt = recalibration.learnt(created="2026-11-22T00:00:00Z", tool="test", machine=measured.machine)
    assert learnt.acceptances[0] == short
    assert learnt.acceptances[1].context_tokens == 300
    assert learnt.acceptances[1].table.p[0, 0] == pytest.approx(0.15, abs=0.05)
    assert learnt.latencies[0] == measured.latencies[0] != learnt.latencies[1]


@pytest.mark.parametrize("usual", [MIDDLE, POOR])
@pytest.mark.parametrize("seed", range(3))
def test_a_text_that_nothing_was_drafted_for_is_left_for_the_fastest_way_and_not_for_the_usual_one(usual, seed):
    decoder, recalibration = begun(profile_of(MACHINE, usual), usual, MACHINE, seed=seed)
    first = decoder.tree
    for table, steps in ((usual, 400), (NEVER, 200)):
        decoder.table = table
        decoder.decode(recalibration, steps)
        decoder.number += 1
    assert decoder.tree.nodes == 1  # in a text of its own, beside the usual tree
    changes = len(recalibration.changes)
    decoder.table = ALWAYS
    decoder.decode(recalibration, 200)
    taken = recalibration.changes[changes].after
    assert share_of_best(taken, ALWAYS, MACHINE) > share_of_best(first, ALWAYS, MACHINE) + 0.1
