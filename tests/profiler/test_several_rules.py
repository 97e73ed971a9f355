"""Several rules in one profile: an acceptance and an overhead each, and the same however often it is interrupted."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.latency.passes import SequenceSteps
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.trees import TokenTree, chain

RULES = ("typical", "traversal", "target", "sequoia", "specinfer")
SETTINGS = Settings(
    rules=RULES,
    lossy=True,
    samplings=(Sampling(0.8),),
    context_tokens=(20,),
    max_tokens=4,
    rounds=2,
    positions=150,
    depth=3,
    branching=3,
)
ONE_SECOND = FakeClock(lambda: 1.0)
TREES = (chain(2), TokenTree([-1, 0, 0, 1, 1]), chain(3))
TIMED = 2 * (4 + 4 + len(RULES) * (1 + 2) + 2 * 2)
"""Calls: of five probe trees two have up to 4 nodes, each rule has plain steps too, and prompts of two lengths are read."""


def measured(target, draft, prompts, settings=SETTINGS, *, clock=ONE_SECOND, checkpoint=None):
    """Return a profile of which a planner finds one tree after the other the fastest, then the last again."""
    trees = iter([*TREES, TREES[-1]])
    checkpoint = checkpoint or Checkpoint(None, "")
    measurement = Measurement(
        target, draft, prompts, settings, clock=clock, checkpoint=checkpoint, fastest_tree=lambda _: next(trees)
    )
    return measurement.profile(show_progress=False)


def content(profile, folder):
    """Return a profile as it is written, without the time it was made."""
    replace(profile, created="").save(folder / "profile.yaml")
    return (folder / "profile.yaml").read_text()


@pytest.fixture(scope="module")
def checkpoint():
    return Checkpoint(None, "")


@pytest.fixture(scope="module")
def profile(target, draft, prompts, checkpoint):
    return measured(target, draft, prompts, checkpoint=checkpoint)


class TestProfile:
    def test_acceptances_come_in_the_order_asked_for(self, profile):
        assert [each.rule for each in profile.acceptances] == list(RULES)
        assert {(each.temperature, each.top_p, each.top_k, each.draft_sampling) for each in profile.acceptances} == {
            (0.8, 1.0, 0, None)
        }
        assert {(each.prompts, each.positions) for each in profile.acceptances} == {(6, 150)}
        tables = [each.table.p[0].tolist() for each in profile.acceptances]
        assert all(table not in tables[:number] for number, table in enumerate(tables) if number != 3)
        assert tables[3] == pytest.approx(
            tables[1], rel=0.1
        )  # sequoia and traversal, but for noise the same at depth 1

    def test_each_rule_has_an_overhead(self, target, draft, prompts):
        seconds = count(1)
        profile = measured(target, draft, prompts, clock=FakeClock(lambda: float(next(seconds))))
        latency = profile.latency()
        assert [each.rule for each in latency.rule_overheads] == list(RULES)
        samples = [each.overhead.samples_s for each in latency.rule_overheads]
        assert [len(each) for each in samples] == [4] * 5
        assert len(set(map(tuple, samples))) == 5
        assert tuple(latency.overhead.samples_s) == tuple(samples[0])
        assert all(
            tuple(latency.overhead_of(rule).samples_s) == tuple(own) for rule, own in zip(RULES, samples, strict=True)
        )

    def test_steps_are_timed_under_their_own_rule(self, target, draft, prompts, monkeypatch):
        made, prepare = [], SequenceSteps.prepare
        monkeypatch.setattr(SequenceSteps, "prepare", lambda self, tree: made.append(self) or prepare(self, tree))
        measured(target, draft, prompts)
        assert {timer._decoder.rule.name for timer in made} == set(RULES)

    def test_one_rule_has_the_plain_overhead_only(self, target, draft, prompts):
        for rule in ("target", "traversal"):
            profile = measured(target, draft, prompts, replace(SETTINGS, rules=(rule,)))
            assert profile.latency().rule_overheads == ()
            assert [each.rule for each in profile.acceptances] == [rule]

    def test_each_acceptance_is_that_of_the_rule_alone(self, target, draft, prompts, profile):
        for together in profile.acceptances:
            if together.rule != "traversal":
                (alone,) = measured(target, draft, prompts, replace(SETTINGS, rules=(together.rule,))).acceptances
                np.testing.assert_allclose(alone.table.p, together.table.p, atol=1e-6)  # batches round otherwise

    def test_traversal_is_sequoia_with_a_gain(self, profile):
        traversal, sequoia = (profile.acceptance(rule=rule) for rule in ("traversal", "sequoia"))
        assert traversal.texts.reached.tolist() == sequoia.texts.reached.tolist()
        ratio = traversal.table.p / sequoia.table.p
        np.testing.assert_allclose(ratio[0, :2], 1, atol=0.1)
        assert ratio[1, 0] > 1.02

    @pytest.mark.usefixtures("profile")  # which fills it
    def test_rounds_of_traversal_are_in_the_checkpoint(self, checkpoint):
        kinds = list(checkpoint._entries)
        reach = [kind for kind in kinds if kind.startswith("reach")]
        assert reach == [f"reach 0.8 {turn} {tree.parents.tolist()}" for turn, tree in enumerate(TREES)]
        assert all(len(list(checkpoint.entries(kind))) == 6 for kind in reach)
        assert {kind for kind in kinds if kind.startswith("step")} == {"step 20x1 sampled"}
        counted = list(checkpoint.entries("acceptance"))
        assert {len(entry.values) for entry in counted} == {
            4 * (3 + 3 * 3 + 1 + 25)
        }  # sums, and ranks behind their number, of four rules, since one is on trees

    def test_every_text_of_a_round_has_noise_of_its_own(self, target, draft, prompts):
        checkpoint = Checkpoint(None, "")
        measured(target, draft, prompts[:1] * 6, checkpoint=checkpoint)
        for turn, tree in enumerate(TREES):
            entries = checkpoint.entries(f"reach 0.8 {turn} {tree.parents.tolist()}")
            assert len({entry.values for entry in entries}) == 6

    def test_draft_sampling_is_used_and_kept(self, target, draft, prompts, profile, tmp_path):
        other = Sampling(1.5, 0.9, 7)
        settings = replace(
            SETTINGS, draft_sampling=other, samplings=(Sampling(0.8, 0.95, 20),), rules=("sequoia", "target")
        )
        found = measured(target, draft, prompts, settings)
        assert [each.draft_sampling for each in found.acceptances] == [other] * 2
        assert [(each.top_p, each.top_k) for each in found.acceptances] == [(0.95, 20)] * 2
        before = profile.acceptance(rule="sequoia").table.p
        assert found.acceptance(rule="sequoia").table.p[0].tolist() != before[0].tolist()
        found.save(tmp_path / "a.yaml")
        assert content(Profile.load(tmp_path / "a.yaml"), tmp_path) == content(found, tmp_path)

    def test_it_saves_and_loads(self, profile, tmp_path):
        profile.save(tmp_path / "a.yaml")
        assert content(Profile.load(tmp_path / "a.yaml"), tmp_path) == content(profile, tmp_path)


def interrupted_call(monkeypatch, place, name, number):
    """Raise KeyboardInterrupt in the call of that number, from 0; return the list of calls let through."""
    calls, numbers, true = [], count(), getattr(place, name)

    def call(*arguments, **keywords):
        if next(numbers) == number:
            raise KeyboardInterrupt
        calls.append(1)
        return true(*arguments, **keywords)

    monkeypatch.setattr(place, name, call)
    return calls


class TestResuming:
    @pytest.mark.parametrize(
        ("place", "name", "number"),
        [
            (FakeClock, "time_s", TIMED - 3),
            (per_prompt, "continue_prompt", 4),
            (per_prompt, "count_reach", 0),
            (per_prompt, "count_reach", 10),
            (per_prompt, "count_reach", 17),
        ],
    )
    def test_a_resumed_profile_equals_a_whole_one(
        self, target, draft, prompts, profile, checkpoint, tmp_path, monkeypatch, place, name, number
    ):
        conditions = SETTINGS.conditions(target, draft, prompts)
        path = tmp_path / "checkpoint"
        with monkeypatch.context() as patch:
            interrupted_call(patch, place, name, number)
            with pytest.raises(KeyboardInterrupt):
                measured(target, draft, prompts, checkpoint=Checkpoint(path, conditions))
        with monkeypatch.context() as patch:
            places = ((FakeClock, "time_s"), (per_prompt, "continue_prompt"), (per_prompt, "count_reach"))
            made = {each[1]: interrupted_call(patch, *each, -1) for each in places}
            resumed = measured(target, draft, prompts, checkpoint=Checkpoint(path, conditions, resume=True))
        assert content(resumed, tmp_path) == content(profile, tmp_path)
        kinds = [kind.split()[0] for kind, entries in checkpoint._entries.items() for _ in entries]
        in_all = {"time_s": TIMED, "continue_prompt": kinds.count("acceptance"), "count_reach": kinds.count("reach")}
        order = list(in_all)
        for each, calls in made.items():
            done = order.index(each) < order.index(name)
            missing = 0 if done else in_all[each] - (number if each == name else 0)
            assert len(calls) == missing

    @pytest.mark.parametrize(
        "changes",
        [
            {"rules": RULES[:-1]},
            {"rules": RULES[::-1]},
            {"samplings": (Sampling(0.8, 0.9),)},
            {"draft_sampling": Sampling(1.0)},
        ],
    )
    def test_other_rules_are_refused(self, target, draft, prompts, tmp_path, changes):
        conditions = (each.conditions(target, draft, prompts) for each in (SETTINGS, replace(SETTINGS, **changes)))
        Checkpoint(tmp_path / "checkpoint", next(conditions))
        with pytest.raises(TreeoptError, match="other conditions"):
            Checkpoint(tmp_path / "checkpoint", next(conditions), resume=True)


class TestRefusals:
    def test_several_at_temperature_0(self):
        with pytest.raises(InvalidValueError, match=r"rules: expected one at temperature 0.*Got sequoia, target"):
            Settings(rules=("sequoia", "target"))

    def test_a_lossy_one(self):
        with pytest.raises(InvalidValueError, match=r"rule: expected a lossless one. Got 'typical'.*lossy=True"):
            Settings(rules=("sequoia", "typical"), samplings=(Sampling(1.0),))
        assert Settings(rules=("sequoia", "typical"), samplings=(Sampling(1.0),), lossy=True).lossy

    @pytest.mark.parametrize("lossy", [False, True])
    def test_an_unknown_one(self, lossy):
        with pytest.raises(InvalidValueError, match=r"rule: expected one of sequoia, .*Got 'best'"):
            Settings(rules=("sequoia", "best"), samplings=(Sampling(1.0),), lossy=lossy)

    @pytest.mark.parametrize(("rules", "got"), [((), "none"), (("target", "target"), "target, target")])
    def test_none_and_one_twice(self, rules, got):
        with pytest.raises(InvalidValueError, match=f"rules: expected one or more, each once. Got {got}"):
            Settings(rules=rules, samplings=(Sampling(1.0),))

    @pytest.mark.parametrize(
        ("sampling", "draft_sampling", "expected"),
        [(GREEDY, Sampling(0.5), "of 0, as the target has"), (Sampling(0.5), GREEDY, "above 0")],
    )
    def test_a_draft_that_is_greedy_where_the_target_is_not(self, sampling, draft_sampling, expected):
        with pytest.raises(InvalidValueError, match=f"draft_sampling: expected a temperature {expected}"):
            Settings(samplings=(sampling,), draft_sampling=draft_sampling)

    def test_traversal_without_a_planner(self, target, draft, prompts):
        with pytest.raises(InvalidValueError, match=r"fastest_tree: expected a planner.*Got None"):
            self.without_a_planner(target, draft, prompts, SETTINGS)
        self.without_a_planner(target, draft, prompts, replace(SETTINGS, rules=("target",)))
        self.without_a_planner(target, draft, prompts, replace(SETTINGS, rules=("traversal",), samplings=(GREEDY,)))

    def without_a_planner(self, target, draft, prompts, settings):
        Measurement(target, draft, prompts, settings, clock=ONE_SECOND, checkpoint=Checkpoint(None, ""))


@pytest.mark.parametrize("rule", RULES)
def test_at_temperature_0_every_rule_accepts_the_same(target, draft, prompts, rule):
    checkpoint = Checkpoint(None, "")
    plain = measured(target, draft, prompts, replace(SETTINGS, rules=("sequoia",), samplings=(GREEDY,)))
    found = measured(
        target, draft, prompts, replace(SETTINGS, rules=(rule,), samplings=(GREEDY,)), checkpoint=checkpoint
    )
    assert set(checkpoint._entries) == {
        "verify 20x1 greedy",
        "draft 20x1 greedy",
        "step 20x1 greedy",
        "host 20x1 greedy",
        "prefill target",
        "prefill draft",
        "acceptance",
    }
    assert found.acceptance().rule == rule
    assert found.acceptance().table.p.tolist() == plain.acceptance().table.p.tolist()
