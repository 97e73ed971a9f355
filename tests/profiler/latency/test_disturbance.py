"""Samples taken beside other programs: marked, timed again, left out where enough others are there, and told."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.profiler.pretended import draft_s, faults, verify_s
from tests.profiler.shared_machine import ALL, BLOCK_CALLS, NONE, SLOWER, shared_machine_and_pair
from treeopt.errors import TreeoptError
from treeopt.planner.certainty import Certainty
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.budget import NO_DEADLINE
from treeopt.profiler.latency.disturbance import OTHERS, LoadLog, Sample, SampleFilter, read_samples
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.load import Load
from treeopt.profiler.latency.passes import PROBE_TREES, ROOM_TOKENS, TimedPoint
from treeopt.profiler.latency.point import PointTimer
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Interference
from treeopt.records.timing_quality import MIN_SAMPLES
from treeopt.report.plan_warnings import times_warnings

CONTEXTS = (30,)
SETTINGS = Settings(context_tokens=CONTEXTS, max_tokens=8, rounds=12)
KEYS = 8 + 8 + 1 + sum(tree.nodes <= 8 for tree in PROBE_TREES)
"""Times of a round: every count is timed, plain steps, and every probe tree that is small enough."""
CALLS = SETTINGS.rounds * KEYS
EVER = range(10**9)


def measured(make_model, busy, settings=SETTINGS, *, checkpoint=None, watched=True):
    """Return the machine, the grid's one latency, and the checkpoint."""
    machine, target, draft = shared_machine_and_pair(make_model, CONTEXTS, busy)
    checkpoint = checkpoint or Checkpoint(None, "")
    load = (lambda: machine) if watched else None
    grid = LatencyGrid(target, draft, [1, 2], settings, clock=machine, checkpoint=checkpoint, load=load)
    (latency,) = grid.measure(lambda: None)
    return machine, latency, checkpoint


def counts(latency):
    return {len(timing.samples_s) for table in (latency.verify, latency.draft) for timing in table.timings}


def exact(latency):
    return faults([latency], verify_s, draft_s) == []


class TestBurst:
    """Other programs compute for a while, and are gone before the rounds end."""

    BURST = range(40, 40 + 12 * BLOCK_CALLS)

    def test_its_samples_are_timed_again_and_left_out(self, make_model):
        machine, latency, _ = measured(make_model, self.BURST)
        assert exact(latency)
        assert counts(latency) == {SETTINGS.rounds}
        assert machine.timed == CALLS + len(self.BURST)
        assert latency.interference == Interference(calls=len(self.BURST) / machine.timed, samples=0.0, processors=1.0)
        assert times_warnings([latency]) == []

    def test_steps_are_told_apart_too(self, make_model):
        _, latency, _ = measured(make_model, self.BURST)
        for timed in latency.steps[0].trees:
            assert len(set(timed.steps.samples_s.round(9))) == 1

    def test_without_a_look_at_the_machine_they_spoil_the_profile(self, make_model):
        """Negative control: the burst is one that would be seen in the profile."""
        _, latency, _ = measured(make_model, self.BURST, watched=False)
        assert not exact(latency)
        assert latency.interference is None

    def test_a_resumed_profile_still_knows_which_they_are(self, make_model, tmp_path):
        class Until:
            def __contains__(self, call):
                if call == 200:
                    raise KeyboardInterrupt
                return call in TestBurst.BURST

        path = tmp_path / "checkpoint"
        with pytest.raises(KeyboardInterrupt):
            measured(make_model, Until(), checkpoint=Checkpoint(path, "h"))
        spoiled = tmp_path / "spoiled"
        spoiled.write_text("".join(line for line in path.read_text().splitlines(True) if OTHERS not in line))
        machine, latency, _ = measured(make_model, (), checkpoint=Checkpoint(path, "h", resume=True))
        assert exact(latency)
        assert counts(latency) == {SETTINGS.rounds}
        assert machine.timed + 200 == CALLS + len(self.BURST)
        _, latency, _ = measured(make_model, (), checkpoint=Checkpoint(spoiled, "h", resume=True))
        assert not exact(latency)


class TestForEver:
    """Other programs never stop."""

    def test_all_samples_stay_and_a_warning_says_so(self, make_model):
        machine, latency, _ = measured(make_model, EVER)
        assert machine.timed == CALLS  # where no moment was quiet no more are tried
        assert latency.interference.samples == latency.interference.calls > 0.95  # the last calls: nobody knows
        (warning,) = times_warnings([latency])
        assert "other programs used 100 % of the processors during" in str(warning)
        assert "became" not in str(warning)

    def test_from_late_on_the_undisturbed_rounds_are_enough(self, make_model):
        machine, latency, _ = measured(make_model, range(10 * KEYS, 10**9))
        assert machine.timed <= CALLS + 5 * KEYS
        assert exact(latency)
        assert MIN_SAMPLES < min(counts(latency)) < SETTINGS.rounds
        assert 0 < latency.interference.calls < 0.6
        assert latency.interference.samples == 0

    def test_from_early_on_what_is_undisturbed_is_too_little(self, make_model):
        _, latency, _ = measured(make_model, range(CALLS // 8, 10**9))
        assert not exact(latency)
        assert latency.interference.samples > 0.5
        assert "and profile again" in str(times_warnings([latency])[0])


class TestBudget:
    """Other programs compute while every size is timed first, and are gone when the sizes that decide are refined."""

    @pytest.mark.parametrize("decides", [8, 4])
    def test_sizes_up_to_those_that_decide_are_timed_again(self, make_model, decides):
        class Busy:
            now = True

            def __contains__(self, call):
                return self.now

        busy = Busy()
        machine, target, draft = shared_machine_and_pair(make_model, CONTEXTS, busy)
        point = TimedPoint(context_tokens=CONTEXTS[0], batch_size=1, sampling=Sampling(0.0))
        tokens = [1, 2] * (CONTEXTS[0] + ROOM_TOKENS)
        recorder = Recorder(machine, Checkpoint(None, ""))
        timer = PointTimer(target, draft, tokens, point, SETTINGS, recorder, load=machine)
        timer.coarse(lambda _: nullcontext(), NO_DEADLINE)
        first = timer.latency().verify
        assert first.seconds(1) == pytest.approx(SLOWER * verify_s(1, CONTEXTS[0], 1))
        busy.now = False
        certainty = Certainty(
            probability=0.5, gains={}, verify_tokens=frozenset({1, decides}), draft_widths=frozenset()
        )
        for _ in range(3):
            timer.refine("verify", certainty, NO_DEADLINE, 12)
        verify = timer.latency().verify
        for count in (count for count in verify.tokens.tolist() if count <= decides):
            assert verify.seconds(count) == pytest.approx(verify_s(count, CONTEXTS[0], 1), rel=1e-3)


class TestEffort:
    def test_no_more_extra_rounds_than_were_asked_for(self, make_model):
        machine, latency, _ = measured(make_model, range(BLOCK_CALLS, CALLS))
        assert machine.timed <= 2 * CALLS
        assert exact(latency)
        now_and_then = {call for call in range(10**5) if call // BLOCK_CALLS % 3}
        machine, _, _ = measured(make_model, now_and_then)
        assert CALLS < machine.timed <= 2 * CALLS + 5 * KEYS

    def test_few_rounds_are_enough_where_no_more_were_asked_for(self, make_model):
        settings = replace(SETTINGS, rounds=2)
        _, latency, _ = measured(make_model, range(KEYS), settings)
        assert exact(latency)
        assert latency.interference.samples == 0

    def test_a_quiet_machine_costs_nothing(self, make_model):
        machine, latency, checkpoint = measured(make_model, ())
        assert machine.timed == CALLS
        assert latency.interference == Interference(calls=0.0, samples=0.0)
        lines = sum(
            1 for what in ("verify", "draft", "step") for _ in checkpoint.entries(f"{OTHERS}{what} 30x1 greedy")
        )
        assert lines < CALLS / BLOCK_CALLS + 50


class TestCheckpoint:
    @pytest.fixture
    def checkpoint(self):
        checkpoint = Checkpoint(None, "")
        for seconds in (1.0, 2.0, 3.0):
            for key in (1, 4):
                checkpoint.append("verify", key, (seconds * key,))
        return checkpoint

    def test_a_block_is_what_came_since_the_last(self, checkpoint):
        loads = iter([None, ALL, None, NONE, ALL])
        reader = type("Reader", (), {"read": lambda _: next(loads)})()
        watch = LoadLog(checkpoint, ["verify", "draft"], reader)
        for _ in range(5):
            watch.update()
            checkpoint.append("verify", 4, (9.0,))
            checkpoint.append("draft", 1, (5.0,))
        assert [entry.values[0] for entry in checkpoint.entries(OTHERS + "verify")] == [1, 2, 1]
        found = read_samples(checkpoint, "verify")
        assert [each.load for each in found[1]] == [None] * 3  # from before
        assert [each.load for each in found[4]] == [None, None, None, ALL, NONE, NONE, ALL, None]
        assert [each.load for each in read_samples(checkpoint, "draft")[1]] == [ALL, NONE, NONE, ALL, None]
        assert list(found) == [1, 4]
        assert found[1][0] == Sample(1.0, None)

    def test_what_is_kept_follows_from_how_many_are_undisturbed(self, checkpoint):
        checkpoint.append(OTHERS + "verify", 1, (3.0, 2.0, 2.0, 2.0))  # key 4 twice, key 1 once
        for enough, kept in ((1, {1: [1.0, 3.0], 4: [12.0]}), (2, {1: [1.0, 3.0], 4: [4.0, 8.0, 12.0]})):
            watched = SampleFilter(checkpoint, threads=2, enough=enough)
            assert watched.usable("verify") == kept
            assert watched.undisturbed("verify") == {1: [1.0, 3.0], 4: [12.0]}
            assert watched.min_undisturbed("verify", [1, 4]) == 1
            assert watched.min_undisturbed("verify", [1, 7]) == 0
            assert watched.count_undisturbed(["verify"]) == 0  # of the others nobody knows
            disturbed = 0 if enough == 1 else 2
            assert watched.interference(["verify"]) == Interference(
                calls=0.5, samples=disturbed / sum(map(len, kept.values())), processors=1.0
            )

    def test_where_nobody_looked_nobody_knows(self, checkpoint):
        assert SampleFilter(checkpoint).interference(["verify", "draft"]) is None
        assert SampleFilter(checkpoint, enough=9).usable("verify") == checkpoint.samples("verify")

    def test_blocks_that_are_none_are_refused(self, checkpoint):
        checkpoint.append(OTHERS + "verify", 1, (10**9, 0.0, 2.0, 2.0))  # longer than there are samples
        assert [each.load for each in read_samples(checkpoint, "verify")[4]] == [NONE, NONE, NONE]
        infinite, nothing = float("inf"), float("nan")
        for key, values in (
            (0, ()),
            (0, (1.0, 0.0, 2.0)),
            (0, (1.0, 0.0, 0.0, 1.0)),
            (0, (1.0, 3.0, 2.0, 2.0)),
            (0, (1.0, nothing, 2.0, 2.0)),
            (0, (infinite, 0.0, 2.0, 2.0)),
            (0, (nothing, 0.0, 2.0, 2.0)),
            (-1, (1.0, 0.0, 2.0, 2.0)),
            (0, (0.0, 0.0, 2.0, 2.0)),
        ):
            broken = Checkpoint(None, "")
            broken.append("verify", 1, (1.0,))
            broken.append(OTHERS + "verify", key, values)
            with pytest.raises(
                TreeoptError, match=r"checkpoint: expected a block .* start over with --force in place of --resume"
            ):
                read_samples(broken, "verify")


def test_the_load_of_a_block_is_kept_as_it_was():
    checkpoint, load = Checkpoint(None, ""), Load(1.25, 8, 4)
    reader = type("Reader", (), {"read": lambda _: load})()
    watch = LoadLog(checkpoint, ["draft"], reader)
    checkpoint.append("draft", 2, (0.5,))
    watch.update()
    assert read_samples(checkpoint, "draft") == {2: [Sample(0.5, load)]}
