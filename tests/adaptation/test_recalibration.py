"""Re-calibration compared with an enumeration of all trees."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.solver.oracles import paths_of
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
from tests.support.planner_oracles import every_speedup, speedup, step_s, tokens
from tests.support.simulated_decoding import SimulatedDecoder
from treeopt.adaptation import Recalibration, candidates
from treeopt.adaptation.averages import apply_shift, conditional, joint
from treeopt.adaptation.profile_update import update_latency, update_profile
from treeopt.adaptation.recalibration import HEAD_START_S, MAX_CHECK_FRACTION
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner import PlanRequest, plan
from treeopt.records.latency import Timing
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import RuleSteps, TimedTree
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.solver import solve
from treeopt.trees import chain, level_widths

GOOD = [[0.8, 0.08, 0.03, 0.01]] * DEPTH
BAD = [[0.15, 0.1, 0.06, 0.04]] * DEPTH
MIDDLE = [[0.5, 0.2, 0.1, 0.05]] * DEPTH
WIDE = level_widths([2])
NEVER = [[0.005] * 4] * DEPTH
MACHINE = seconds(lambda n: 0.9 + 0.05 * n, lambda w: 0.12 + 0.01 * w, 0.05)
SLOW_DRAFT = MACHINE._replace(draft=[4 * s for s in MACHINE.draft])
NOW = "2026-11-22T00:00:00Z"


def start(
    profile, table, machine, *, seed=0, tree=None, temperature=0.0, measured_at=None, kind=Recalibration, **options
):
    """Return a decoder with a plan's tree, and its re-calibration; checks take no time.

    A single acceptance of a profile counts as measured at the decoder's temperature, or at `measured_at`.
    """
    if len(profile.acceptances) == 1:
        profile = at_temperature(profile, temperature if measured_at is None else measured_at)
    tree = tree or plan(profile, NODES).choice.tree
    decoder = SimulatedDecoder(tree, table, machine, max_nodes=NODES, temperature=temperature, seed=seed)
    recalibration = kind(profile, now_s=lambda: 0.0, **options)
    recalibration.attach(decoder)
    return decoder, recalibration


best_speedups = {}


def relative_speed(tree, table, machine):
    """Return the speed of a tree as a fraction of the fastest tree's."""
    key = str((table, machine))
    if key not in best_speedups:
        best_speedups[key] = every_speedup(table, machine, NODES, DEPTH).max()
    return speedup(tree.parents.tolist(), table, machine) / best_speedups[key]


@pytest.mark.parametrize(("before", "after"), [(GOOD, BAD), (GOOD, MIDDLE), (BAD, GOOD), (BAD, MIDDLE)])
def test_a_change_of_acceptance_leads_to_a_tree_as_fast_as_any(before, after):
    decoder, recalibration = start(profile_of(MACHINE, before), before, MACHINE)
    first = decoder.tree
    decoder.decode(recalibration, 200)
    assert decoder.tree == first
    decoder.table = after
    decoder.decode(recalibration, 1000)
    assert relative_speed(first, after, MACHINE) < 0.93
    assert relative_speed(decoder.tree, after, MACHINE) > 0.95, recalibration.changes


@pytest.mark.parametrize("table", [GOOD, MIDDLE, BAD])
def test_without_a_change_switches_are_rare_and_cost_at_most_1_percent(table):
    decoder, recalibration = start(profile_of(MACHINE, table), table, MACHINE)
    weighted_s = 0.0
    for _ in range(50):
        start_s = decoder.now_s
        decoder.decode(recalibration, 50)
        weighted_s += (decoder.now_s - start_s) * relative_speed(decoder.tree, table, MACHINE)
    assert len(recalibration.changes) <= 2
    assert weighted_s / decoder.now_s > 0.99


def test_sequences_that_differ_cost_at_most_half_a_percent():
    """Speed of the used trees relative to the plan's, on sequences whose log odds of acceptance have a deviation of 1."""
    p, changes = conditional(np.array(MIDDLE)), 0
    for seed in (2, 3, 4):
        generator, (used, planned) = np.random.default_rng(seed), np.zeros((2, 2))  # tokens and seconds
        decoder, recalibration = start(profile_of(MACHINE, MIDDLE), MIDDLE, MACHINE, seed=2)
        plan_tree = decoder.tree
        for _ in range(60):
            decoder.table = joint(apply_shift(p, np.full(p.shape, generator.standard_normal()))).tolist()
            for _ in range(10):
                for tree, totals in ((decoder.tree, used), (plan_tree, planned)):
                    paths = paths_of(tree.parents.tolist())
                    totals += tokens(paths, decoder.table), step_s(paths, MACHINE)
                decoder.decode(recalibration, 7)
        changes += len(recalibration.changes)
        assert (used[0] / used[1]) / (planned[0] / planned[1]) > 0.995, seed
    assert changes


def test_the_strategy_of_an_unusual_sequence_ends_with_it():
    decoder, recalibration = start(profile_of(MACHINE, MIDDLE), MIDDLE, MACHINE)
    plan_tree = decoder.tree
    for decoder.number in range(1, 6):
        decoder.decode(recalibration, 120)
    decoder.number, decoder.table = 6, [[0.95, 0.02, 0.01, 0.01]] * DEPTH
    decoder.decode(recalibration, 250)
    assert decoder.tree.max_depth > plan_tree.max_depth
    decoder.number, decoder.table = 7, MIDDLE
    decoder.decode(recalibration, 8)
    assert decoder.tree == plan_tree


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_useless_draft_is_not_used_until_it_is_restored(batch_size):
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)

    def observe(event):
        recalibration(event)
        for number in range(1, batch_size):
            recalibration(event._replace(sequence=event.sequence + number, seconds=None))

    first = decoder.tree
    decoder.decode(observe, 200)
    decoder.table = NEVER
    decoder.decode(observe, 400)
    changes = len(decoder.trees)
    decoder.decode(observe, 800)
    assert decoder.tree.nodes == 1
    assert len(decoder.trees) == changes, "the draft was tried again although probes show that it is useless"
    decoder.table = GOOD
    decoder.decode(observe, 1000)
    assert relative_speed(decoder.tree, GOOD, MACHINE) > 0.95
    assert decoder.tree.max_depth >= first.max_depth - 1


def test_slower_drafting_leads_to_fewer_drafts():
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    first = decoder.tree
    decoder.decode(recalibration, 200)
    decoder.machine = SLOW_DRAFT
    decoder.decode(recalibration, 1000)
    assert relative_speed(first, GOOD, SLOW_DRAFT) < 0.93
    assert relative_speed(decoder.tree, GOOD, SLOW_DRAFT) > 0.95


def test_a_uniform_slowdown_changes_nothing():
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.decode(recalibration, 200)
    decoder.machine = Seconds([2 * s for s in MACHINE.verify], [2 * s for s in MACHINE.draft], 2 * MACHINE.overhead)
    decoder.decode(recalibration, 1000)
    assert len(decoder.trees) == 1


def test_overhead_of_levels_is_not_taken_for_slower_drafting():
    overhead_s = 0.15  # of a level
    machine = MACHINE._replace(draft=[overhead_s + s for s in MACHINE.draft])
    timed = [
        TimedTree(tree=tree, steps=Timing([step_s(paths_of(tree.parents.tolist()), machine)] * 9))
        for tree in (chain(1), chain(3), chain(5), level_widths([2, 2, 1]))
    ]
    steps = RuleSteps(rule="sequoia", trees=tuple(timed))
    decoder, recalibration = start(
        profile([replace(latency(MACHINE), steps=(steps,))], [acceptance(GOOD)]), GOOD, machine
    )
    decoder.decode(recalibration, 1000)
    assert recalibration.changes == []


@pytest.mark.parametrize(("level_s", "catch_up_s", "p"), [(0.05, 0.6, 0.7), (0.1, 0.6, 0.8), (0.2, 0.3, 0.7)])
def test_a_catch_up_pass_is_not_taken_for_slower_drafting(level_s, catch_up_s, p):
    machine = MACHINE._replace(draft=[level_s] * NODES, overhead=catch_up_s)
    table = [[p, 0.05, 0.02, 0.01]] * DEPTH
    decoder, recalibration = start(profile_of(machine, table), table, machine)

    def seconds() -> StepSeconds:
        drafted, verify, overhead = SimulatedDecoder.seconds(decoder)
        return StepSeconds(drafted + overhead, verify, 0.0)

    decoder.seconds = seconds
    decoder.decode(recalibration, 600)
    assert recalibration.changes == []


def test_most_of_the_gain_is_realised_including_the_time_to_notice():
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    fixed = SimulatedDecoder(decoder.tree, BAD, MACHINE, max_nodes=NODES).decode(None, 1000)
    best = every_speedup(BAD, MACHINE, NODES, DEPTH).max() / MACHINE.verify[0]
    decoder.decode(recalibration, 200)
    decoder.table = BAD
    assert decoder.decode(recalibration, 1000) / fixed - 1 > 0.75 * (best / fixed - 1)


def test_a_change_has_its_reason_and_prediction():
    reported = []
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE, on_change=reported.append)
    decoder.decode(recalibration, 200)
    decoder.table = BAD
    decoder.decode(recalibration, 400)
    assert reported == recalibration.changes
    line = reported[0].to_json()
    assert list(line)[:5] == ["step", "why", "from", "to", "predicted_gain"]
    assert 200 < line["step"] < 330
    assert "of first children accepted, 0." in line["why"]
    assert line["from"]["parents"] == decoder.trees[0].parents.tolist()
    assert line["predicted_gain"] >= 0.05


def test_checks_take_at_most_their_fraction_of_the_time():
    clock = itertools.count(0.0, 0.5)  # half a second passes between two readings
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    recalibration._now_s = lambda: next(clock)
    decoder.decode(recalibration, 1500)
    assert recalibration.check_s < MAX_CHECK_FRACTION * recalibration.decoding_s + HEAD_START_S + 2  # the last check


def test_trees_are_solved_again_only_after_a_change(monkeypatch):
    solved = []

    def counting_solve(*arguments):
        solved.append(decoder.steps)
        return solve(*arguments)

    conditions = [latency(MACHINE, context_tokens=length, batch_size=1) for length in (64, 1024)]
    decoder, recalibration = start(profile(conditions, [acceptance(MIDDLE)]), MIDDLE, MACHINE)
    monkeypatch.setattr(candidates, "solve", counting_solve)

    def decode(rounds):
        for length in rounds * (64, 256, 512, 1024):
            decoder.text = [1] * length
            decoder.decode(recalibration, 32)

    decode(rounds=5)
    first = len(solved)
    decode(rounds=20)
    assert len(solved) - first <= 12  # of 80 checks; acceptance changes by noise, too
    decoder.table = BAD
    decode(rounds=4)
    assert solved[-1] > decoder.steps - 16 * 32


def test_unsuitable_decoders_and_profiles_are_refused():
    decoder, _ = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.takes_trees = False
    recalibration = Recalibration(profile_of(MACHINE, GOOD))
    with pytest.raises(InvalidValueError, match="on_step: expected a decoder whose draft model fills static trees"):
        recalibration.attach(decoder)
    with pytest.raises(InvalidValueError, match="profile: "):
        Recalibration("profile.yaml")


def test_another_decoder_continues_with_the_tree_and_the_averages():
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    first = decoder.tree
    decoder.decode(recalibration, 200)
    decoder.table = BAD
    decoder.decode(recalibration, 600)
    tried = recalibration._acceptance.outcomes.tried.sum()
    other = SimulatedDecoder(first, BAD, MACHINE, max_nodes=NODES)
    assert other.number == decoder.number
    recalibration.attach(other)
    assert other.tree == decoder.tree != first
    assert recalibration._acceptance.outcomes.tried.sum() == tried
    other.decode(recalibration, 20)
    assert recalibration.sequences == 2, "equal numbers in two decoders are different sequences"


@pytest.mark.parametrize(("draft", "temperature"), [(True, 0.0), (False, 1.0)])
def test_another_draft_or_sampling_resets_the_averages(draft, temperature):
    decoder, recalibration = start(profile_of(MACHINE, GOOD), GOOD, MACHINE)
    decoder.decode(recalibration, 200)
    other = SimulatedDecoder(decoder.tree, BAD, MACHINE, max_nodes=NODES, temperature=temperature)
    other.draft_model = object() if draft else decoder.draft_model
    recalibration.attach(other)
    assert not recalibration._acceptance.outcomes.tried.any()
    other.decode(recalibration, 50)
    assert relative_speed(other.tree, BAD, MACHINE) > relative_speed(decoder.tree, BAD, MACHINE)


class TestUpdatedProfile:
    def updated(self, table, steps=1500, machine=MACHINE):
        profile = profile_of(MACHINE, GOOD)
        decoder, recalibration = start(profile, GOOD, MACHINE, temperature=0.6)
        decoder.table, decoder.machine = table, machine
        decoder.decode(recalibration, steps)
        return recalibration.updated_profile(created=NOW, tool="test", machine=profile.machine), decoder

    def test_it_contains_the_counts_and_gives_a_fast_plan(self, tmp_path):
        updated, _ = self.updated(MIDDLE)
        updated.save(tmp_path / "updated.yaml")
        again = Profile.load(tmp_path / "updated.yaml")
        p = again.acceptances[0].table.p
        assert np.allclose(p[:, 0], 0.5, atol=0.12)
        assert again.acceptances[0].table.counts[0] > 100
        tree = plan(again, NODES).choice.tree
        assert relative_speed(tree, MIDDLE, MACHINE) > 0.95

    def test_times_are_those_of_the_steps(self):
        slow = Seconds([3 * s for s in MACHINE.verify], [3 * s for s in MACHINE.draft], 3 * MACHINE.overhead)
        updated, decoder = self.updated(GOOD, 400, slow)
        nodes = decoder.tree.nodes
        assert float(updated.latencies[0].verify.seconds(nodes)) == pytest.approx(slow.verify[nodes - 1])
        assert float(updated.latencies[0].verify.seconds(NODES)) == pytest.approx(MACHINE.verify[NODES - 1])

    def test_times_of_other_batch_sizes_are_kept(self):
        several = replace(latency(MACHINE), batch_size=4)
        measured = at_temperature(profile([several], [acceptance(GOOD)]), 0.0)
        samples = {chain(2): [StepSeconds(1.0, 9.0, 0.0)] * 64}
        for batch_size, kept in ((4, False), (1, True)):
            decoder, recalibration = start(measured, GOOD, MACHINE, request=PlanRequest(batch_size=4))
            decoder.decode(recalibration, 400)
            updated = update_profile(
                measured,
                decoder,
                recalibration._acceptance.outcomes,
                samples,
                rule="sequoia",
                sequences=1,
                context_tokens=256,
                batch_size=batch_size,
            )
            assert (updated.latencies == measured.latencies) is kept

    def test_trees_of_one_size_are_timed_together(self):
        samples = {tree: [StepSeconds(1.0, verify_s, 0.0)] * 64 for tree, verify_s in ((chain(2), 2.0), (WIDE, 4.0))}
        verify = update_latency(latency(MACHINE), samples, "sequoia").verify
        assert float(verify.seconds(3)) == pytest.approx(3.0)

    def test_an_acceptance_of_another_sampling_is_added(self, tmp_path):
        profile = profile_of(MACHINE, GOOD)
        profile = replace(profile, latencies=tuple(replace(item, sampled=True) for item in profile.latencies))
        decoder, recalibration = start(profile, BAD, MACHINE, measured_at=0.6)
        decoder.decode(recalibration, 1500)
        updated = recalibration.updated_profile(created=NOW, tool="test", machine=profile.machine)
        updated.save(tmp_path / "updated.yaml")
        before, decoded = Profile.load(tmp_path / "updated.yaml").acceptances
        assert before == profile.acceptances[0]
        assert decoded.sampling == Sampling(0.0)
        assert np.allclose(decoded.table.p[:, 0], 0.12, atol=0.1)
        assert updated.latencies == profile.latencies  # latencies of sampled steps are kept

    def test_counts_of_one_sampling_are_not_saved_for_another(self):
        profile = profile_of(MACHINE, GOOD)
        decoder, recalibration = start(profile, BAD, MACHINE, temperature=0.6)
        decoder.decode(recalibration, 400)
        other = SimulatedDecoder(decoder.tree, GOOD, MACHINE, max_nodes=NODES, temperature=0.0)
        recalibration.attach(other)
        other.decode(recalibration, 400)
        updated = recalibration.updated_profile(created=NOW, tool="test", machine=profile.machine)
        assert updated.acceptances[0] == profile.acceptances[0]
        assert np.allclose(updated.acceptances[1].table.p[:, 0], 0.8, atol=0.1)
        assert updated.acceptances[1].prompts == 1

    def test_without_drafts_there_is_no_profile(self):
        profile = profile_of(MACHINE, GOOD)
        decoder, recalibration = start(profile, GOOD, MACHINE)
        decoder.decode(recalibration, 4)
        with pytest.raises(TreeoptError, match="decode more text"):
            recalibration.updated_profile(created="", tool="", machine=profile.machine)


def test_another_measured_sampling_starts_with_its_plan():
    greedy = replace(acceptance(GOOD), sampling=Sampling())
    measured = profile([latency(MACHINE)], [greedy, acceptance(BAD)])
    planned = [plan(measured, NODES, temperature=t).choice.tree for t in (0.0, 0.6)]
    assert planned[0] != planned[1]
    decoder, recalibration = start(measured, GOOD, MACHINE, tree=planned[0])
    decoder.decode(recalibration, 200)
    for number, temperature in enumerate((0.6, 0.0, 0.6)):
        table = BAD if temperature else GOOD
        other = SimulatedDecoder(planned[0], table, MACHINE, max_nodes=NODES, temperature=temperature)
        recalibration.attach(other)
        assert other.tree == recalibration.strategy
        assert relative_speed(other.tree, table, MACHINE) > 0.97
        assert recalibration.changes[number].why == f"sampling: the profile contains temperature {temperature:g}"
        other.decode(recalibration, 300)
        assert len(recalibration.changes) == number + 1


def test_a_tree_deeper_than_the_new_samplings_measurement_is_replaced():
    greedy = replace(acceptance(GOOD), sampling=Sampling())
    measured = profile([latency(MACHINE)], [greedy, acceptance(GOOD[:1])])
    decoder, recalibration = start(measured, GOOD, MACHINE, tree=chain(4))
    decoder.decode(recalibration, 20)
    other = SimulatedDecoder(decoder.tree, GOOD, MACHINE, max_nodes=NODES, temperature=0.6)
    recalibration.attach(other)
    assert other.tree == recalibration.strategy
    assert other.tree.max_depth == 1
    other.decode(recalibration, 100)


def test_re_calibration_starts_from_the_acceptance_at_the_planned_context():
    short, long = (
        replace(acceptance(p), context_tokens=at, sampling=Sampling()) for p, at in ((GOOD, 100), (BAD, 300))
    )
    measured = profile([latency(MACHINE, context_tokens=at) for at in (100, 300)], [short, long])
    decoder = SimulatedDecoder(chain(3), BAD, MACHINE, max_nodes=NODES)
    decoder.text = [1] * 300
    recalibration = Recalibration(measured, PlanRequest(context_tokens=300), now_s=lambda: 0.0)
    recalibration.attach(decoder)
    decoder.decode(recalibration, 600)
    assert relative_speed(decoder.tree, BAD, MACHINE) > 0.95
    updated = recalibration.updated_profile(created=NOW, tool="test", machine=measured.machine)
    assert updated.acceptances[0] == short
    assert updated.acceptances[1].context_tokens == 300
    assert updated.acceptances[1].table.p[0, 0] == pytest.approx(0.15, abs=0.08)
    assert updated.latencies[0] == measured.latencies[0] != updated.latencies[1]


def test_a_chain_may_be_deeper_than_the_candidates_of_a_table_with_one_row():
    machine, p = seconds(lambda n: 0.9 + 0.001 * n, lambda _: 0.01, nodes=40), [0.95, 0.02]
    decoder = SimulatedDecoder(chain(30), [p] * 30, machine, max_nodes=40, temperature=0.6, seed=0)
    recalibration = Recalibration(profile_of(machine, p), now_s=lambda: 0.0)
    recalibration.attach(decoder)
    decoder.decode(recalibration, 200)
    assert decoder.tree.max_depth >= 20


def test_a_tree_may_be_larger_than_the_passes_that_were_timed_at_a_longer_context():
    short, long = latency(MACHINE), latency(MACHINE, context_tokens=2048, counts=range(1, 4))
    decoder, recalibration = start(
        profile([short, long], [acceptance(GOOD)]), GOOD, MACHINE, request=PlanRequest(context_tokens=256)
    )
    assert decoder.tree.nodes > 3
    first = decoder.tree
    decoder.text = [1] * 2000
    decoder.decode(recalibration, 200)
    assert relative_speed(first, GOOD, MACHINE) > 0.9
