"""Several rules in one profile: each has its own acceptance and overhead, and resuming changes nothing."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock, interrupt, measure_profile, undated
from treeopt.errors import InvalidValueError
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.acceptance.incremental import random_groups
from treeopt.profiler.budget import SPENT
from treeopt.profiler.latency.disturbance import BLOCK
from treeopt.profiler.latency.passes import DecodingSteps
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
TREES = (chain(2), TokenTree([-1, 0, 0, 1, 1]), chain(3))


def measure(target, draft, prompts, settings=SETTINGS, **options):
    """Return a profile for which a planner chooses one tree after the other, then the last again."""
    trees = iter([*TREES, TREES[-1]])
    return measure_profile(target, draft, prompts, settings, fastest_tree=lambda _: next(trees), **options)


@pytest.fixture(scope="module")
def checkpoint():
    return Checkpoint(None, "")


@pytest.fixture(scope="module")
def profile(target, draft, prompts, checkpoint):
    return measure(target, draft, prompts, checkpoint=checkpoint)


class TestProfile:
    def test_every_rule_has_its_acceptance_in_the_requested_order(self, profile, tmp_path):
        assert [acceptance.rule for acceptance in profile.acceptances] == list(RULES)
        for acceptance in profile.acceptances:
            assert acceptance.sampling == Sampling(0.8)
            assert (acceptance.draft_sampling, acceptance.prompts, acceptance.positions) == (None, 6, 150)
        tables = [acceptance.table.p[0].tolist() for acceptance in profile.acceptances]
        assert all(table not in tables[:number] for number, table in enumerate(tables) if number != 3)
        assert tables[3] == pytest.approx(tables[1], rel=0.1)  # sequoia and traversal are the same at depth 1
        profile.save(tmp_path / "a.yaml")
        Profile.load(tmp_path / "a.yaml").save(tmp_path / "b.yaml")
        assert (tmp_path / "b.yaml").read_bytes() == (tmp_path / "a.yaml").read_bytes()

    def test_every_rule_has_the_overhead_of_its_own_steps(self, target, draft, prompts, monkeypatch):
        seconds, timers, prepare = count(1), [], DecodingSteps.prepare
        monkeypatch.setattr(DecodingSteps, "prepare", lambda self, tree: timers.append(self) or prepare(self, tree))
        clock = FakeClock(lambda: float(next(seconds)))
        latency = measure(target, draft, prompts, replace(SETTINGS, positions=30), clock=clock).latencies[0]
        assert {timer.decoder.rule.name for timer in timers} == set(RULES)
        assert [overhead.rule for overhead in latency.rule_overheads] == list(RULES)
        samples = [tuple(overhead.overhead.samples_s) for overhead in latency.rule_overheads]
        assert list(map(len, samples)) == [4] * 5
        assert len(set(samples)) == 5
        assert tuple(latency.overhead.samples_s) == samples[0]
        assert [tuple(latency.overhead_of(rule).samples_s) for rule in RULES] == samples

    @pytest.mark.parametrize("rule", ["typical", "target", "sequoia", "specinfer"])
    def test_rule_measured_alone_has_the_same_acceptance_and_one_overhead(self, target, draft, prompts, profile, rule):
        alone = measure(target, draft, prompts, replace(SETTINGS, rules=(rule,)))
        assert alone.latencies[0].rule_overheads == ()
        (acceptance,) = alone.acceptances
        # batches round differently
        np.testing.assert_allclose(acceptance.table.p, profile.acceptance(rule=rule).table.p, atol=1e-6)

    def test_traversal_is_sequoia_with_a_gain(self, profile):
        traversal, sequoia = (profile.acceptance(rule=rule) for rule in ("traversal", "sequoia"))
        assert traversal.sequences.reached.tolist() == sequoia.sequences.reached.tolist()
        ratio = traversal.table.p / sequoia.table.p
        np.testing.assert_allclose(ratio[0, :2], 1, atol=0.1)
        assert ratio[1, 0] > 1.02

    @pytest.mark.usefixtures("profile")  # which fills it
    def test_checkpoint_has_every_round_of_traversal(self, checkpoint):
        kinds = list(checkpoint.kinds())
        reach = [kind for kind in kinds if kind.startswith("reach")]
        assert reach == [f"reach 0.8 {turn} {tree.parents.tolist()}" for turn, tree in enumerate(TREES)]
        assert all(len(list(checkpoint.entries(kind))) == 6 for kind in reach)
        assert {kind for kind in kinds if kind.startswith("step")} == {"step 20x1 sampled"}
        counted = {kind for kind in kinds if kind.startswith("acceptance")}
        # without traversal, which is measured on trees
        assert counted == {f"acceptance on 25 positions, {rule} 0.8" for rule in {*RULES} - {"traversal"}}
        for kind in counted:  # sizes, sums and ranks
            assert {len(entry.values) for entry in checkpoint.entries(kind)} == {3 + 3 + 3 * 3 + 25}

    def test_every_sequence_of_a_round_has_its_own_seed(self, target, draft, prompts):
        checkpoint, settings = Checkpoint(None, ""), replace(SETTINGS, rules=("sequoia", "traversal"), lossy=False)
        measure(target, draft, prompts[:1] * 6, settings, checkpoint=checkpoint)
        for turn, tree in enumerate(TREES):
            entries = checkpoint.entries(f"reach 0.8 {turn} {tree.parents.tolist()}")
            assert len({entry.values for entry in entries}) == 6

    def test_draft_sampling_is_used_and_recorded(self, target, draft, prompts, profile, tmp_path):
        draft_sampling, sampling = Sampling(1.5, 0.9, 7), Sampling(0.8, 0.95, 20)
        settings = replace(
            SETTINGS, draft_sampling=draft_sampling, samplings=(sampling,), rules=("sequoia", "target"), positions=90
        )
        measure(target, draft, prompts, settings).save(tmp_path / "a.yaml")
        loaded = Profile.load(tmp_path / "a.yaml")
        for acceptance in loaded.acceptances:
            assert acceptance.draft_sampling == draft_sampling
            assert (acceptance.sampling.top_p, acceptance.sampling.top_k) == (0.95, 20)
        assert loaded.acceptance(rule="sequoia").table.p[0, 0] != profile.acceptance(rule="sequoia").table.p[0, 0]


@pytest.mark.parametrize(("name", "number"), [("continue_prompts", 1), ("count_reach", 0), ("count_reach", 10)])
def test_resumed_profile_equals_a_whole_one(
    target, draft, prompts, profile, checkpoint, tmp_path, monkeypatch, name, number
):
    path = tmp_path / "checkpoint"
    calls = {
        other: interrupt(monkeypatch, per_prompt, other, -1) for other in {"continue_prompts", "count_reach"} - {name}
    }
    calls[name] = interrupt(monkeypatch, per_prompt, name, number)
    with pytest.raises(KeyboardInterrupt):
        measure(target, draft, prompts, checkpoint=Checkpoint(path, "h"))
    resumed = measure(target, draft, prompts, checkpoint=Checkpoint(path, "h", resume=True))
    assert undated(resumed) == undated(profile)
    kinds = [kind.split()[0] for kind in checkpoint.kinds() for _ in checkpoint.entries(kind)]
    calls[name].pop()  # the interrupted one was made again
    assert {other: len(made) for other, made in calls.items()} == {
        "continue_prompts": len(random_groups(len(prompts))),
        "count_reach": kinds.count("reach"),
    }


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (
                {"rules": ("sequoia", "target"), "samplings": (GREEDY,)},
                "expected one at temperature 0.*Got sequoia, target",
            ),
            ({"rules": ("sequoia", "typical")}, "rule: expected a lossless one. Got 'typical'.*lossy=True"),
            ({"rules": ("sequoia", "best")}, "rule: expected one of sequoia, .*Got 'best'"),
            ({"rules": ("best",), "lossy": True}, "rule: expected one of sequoia, .*Got 'best'"),
            ({"rules": ()}, "rules: expected one or more, each once. Got none"),
            ({"rules": ("target", "target")}, "rules: expected one or more, each once. Got target, target"),
            ({"draft_sampling": GREEDY}, "draft_sampling: expected a temperature above 0"),
            (
                {"samplings": (GREEDY,), "draft_sampling": Sampling(0.5)},
                "draft_sampling: expected a temperature of 0, as the target has",
            ),
        ],
    )
    def test_rules_and_samplings_that_exclude_each_other_are_refused(self, options, reason):
        with pytest.raises(InvalidValueError, match=reason):
            Settings(**{"samplings": (Sampling(1.0),)} | options)


@pytest.mark.parametrize("rule", ["traversal", "typical"])
def test_every_rule_accepts_the_same_at_temperature_0(target, draft, prompts, rule):
    settings = replace(SETTINGS, rules=("sequoia",), samplings=(GREEDY,), positions=60)
    checkpoint, plain = Checkpoint(None, ""), measure(target, draft, prompts, settings)
    other = measure(target, draft, prompts, replace(settings, rules=(rule,)), checkpoint=checkpoint)
    passes = [f"{call} 20x1 greedy" for call in ("verify", "draft", "step", "host")]
    kinds = {kind for kind in checkpoint.kinds() if not kind.startswith((SPENT, BLOCK))}
    assert kinds == {*passes, "prefill target", "prefill draft", f"acceptance on 10 positions, {rule} 0"}
    assert other.acceptance().rule == rule
    assert other.acceptance().table.p.tolist() == plain.acceptance().table.p.tolist()
