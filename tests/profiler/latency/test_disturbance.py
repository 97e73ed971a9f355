"""Samples that other programs disturbed are timed again, left out if enough others remain, and reported."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.profiler.pretended import (
    ALL,
    BLOCK_CALLS,
    NONE,
    SLOWER,
    SharedMachine,
    draft_s,
    faults,
    machine_and_pair,
    measure_grid,
    verify_s,
)
from treeopt.planner import Confidence
from treeopt.planner.certainty import Certainty
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.budget import NO_DEADLINE
from treeopt.profiler.latency.disturbance import OTHERS, Sample, SampleFilter, read_samples
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.load import Load
from treeopt.profiler.latency.passes import PROBE_TREES, ROOM_TOKENS, TimedPoint
from treeopt.profiler.latency.point import PointTimer
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.sampling import GREEDY
from treeopt.records.step_latency import Interference
from treeopt.records.timing_quality import MIN_SAMPLES
from treeopt.report.plan_warnings import times_warnings

CONTEXTS = (30,)
SETTINGS = Settings(context_tokens=CONTEXTS, max_tokens=8, rounds=12)
KEYS = 8 + 8 + 1 + sum(tree.nodes <= 8 for tree in PROBE_TREES)
"""Samples of a round: every count of both models, plain steps, and every probe tree that fits."""
CALLS = SETTINGS.rounds * KEYS
ALWAYS = range(10**9)


def measure(make_model, busy, settings=SETTINGS, *, checkpoint=None, read_load=True):
    """Return the machine, the only latency of the grid, and the checkpoint."""
    machine, target, draft = machine_and_pair(make_model, CONTEXTS, SharedMachine, busy=busy)
    checkpoint = checkpoint or Checkpoint(None, "")
    load = (lambda: machine) if read_load else None
    grid = LatencyGrid(target, draft, [1, 2], settings, Recorder(machine, checkpoint), load=load)
    (latency,) = measure_grid(grid)
    return machine, latency, checkpoint


def sample_counts(latency):
    return {len(timing.samples_s) for table in (latency.verify, latency.draft) for timing in table.timings}


def is_exact(latency):
    return faults([latency], verify_s, draft_s) == []


class TestBurst:
    """Other programs compute for a while and end before the rounds do."""

    BURST = range(40, 40 + 12 * BLOCK_CALLS)

    def test_disturbed_samples_are_timed_again_and_left_out(self, make_model):
        machine, latency, _ = measure(make_model, self.BURST)
        assert is_exact(latency)
        assert sample_counts(latency) == {SETTINGS.rounds}
        assert machine.timed == CALLS + len(self.BURST)
        assert latency.interference == Interference(calls=len(self.BURST) / machine.timed, samples=0.0, processors=1.0)
        assert times_warnings([latency]) == []
        for timed in latency.steps[0].trees:
            assert len(set(timed.steps.samples_s.round(9))) == 1

    def test_unread_load_spoils_the_profile(self, make_model):
        """Negative control."""
        _, latency, _ = measure(make_model, self.BURST, read_load=False)
        assert not is_exact(latency)
        assert latency.interference is None

    def test_resumed_profile_leaves_out_disturbed_samples(self, make_model, tmp_path):
        class Until:
            def __contains__(self, call):
                if call == 200:
                    raise KeyboardInterrupt
                return call in TestBurst.BURST

        path = tmp_path / "checkpoint"
        with pytest.raises(KeyboardInterrupt):
            measure(make_model, Until(), checkpoint=Checkpoint(path, "h"))
        without_load = tmp_path / "without load"
        without_load.write_text("".join(line for line in path.read_text().splitlines(True) if OTHERS not in line))
        machine, latency, _ = measure(make_model, (), checkpoint=Checkpoint(path, "h", resume=True))
        assert is_exact(latency)
        assert sample_counts(latency) == {SETTINGS.rounds}
        assert machine.timed + 200 == CALLS + len(self.BURST)
        _, latency, _ = measure(make_model, (), checkpoint=Checkpoint(without_load, "h", resume=True))
        assert not is_exact(latency)


class TestLastingLoad:
    def test_all_samples_stay_with_a_warning_if_none_is_undisturbed(self, make_model):
        machine, latency, _ = measure(make_model, ALWAYS)
        assert machine.timed == CALLS  # nothing is repeated
        assert (
            latency.interference.samples == latency.interference.calls > 0.95
        )  # the load of the last calls is unknown
        (warning,) = times_warnings([latency])
        assert "other programs used 100 % of the processors during" in str(warning)
        assert "became" not in str(warning)

    def test_undisturbed_early_rounds_are_enough(self, make_model):
        machine, latency, _ = measure(make_model, range(10 * KEYS, 10**9))
        assert machine.timed <= CALLS + 5 * KEYS
        assert is_exact(latency)
        assert MIN_SAMPLES < min(sample_counts(latency)) < SETTINGS.rounds
        assert 0 < latency.interference.calls < 0.6
        assert latency.interference.samples == 0

    def test_too_few_undisturbed_samples_leave_disturbed_ones_in(self, make_model):
        _, latency, _ = measure(make_model, range(CALLS // 8, 10**9))
        assert not is_exact(latency)
        assert latency.interference.samples > 0.5
        assert "and profile again" in str(times_warnings([latency])[0])


def test_refining_times_sizes_up_to_the_deciding_ones_again(make_model):
    """Other programs compute while every size is timed first, and end before sizes are refined."""

    class Busy:
        now = True

        def __contains__(self, call):
            return self.now

    busy, decides = Busy(), 4
    machine, target, draft = machine_and_pair(make_model, CONTEXTS, SharedMachine, busy=busy)
    point = TimedPoint(context_tokens=CONTEXTS[0], batch_size=1, sampling=GREEDY)
    tokens = [1, 2] * (CONTEXTS[0] + ROOM_TOKENS)
    recorder = Recorder(machine, Checkpoint(None, ""))
    timer = PointTimer(target, draft, tokens, point, SETTINGS, recorder, load=machine)
    timer.coarse(lambda _: nullcontext(), NO_DEADLINE)
    assert timer.latency().verify.seconds(1) == pytest.approx(SLOWER * verify_s(1, CONTEXTS[0], 1))
    busy.now = False
    confidence = Confidence(probability=0.5, if_exact={"verify": 1.0})
    certainty = Certainty(confidence=confidence, verify_tokens=frozenset({1, decides}), draft_widths=frozenset())
    for _ in range(3):
        timer.refine("verify", certainty, NO_DEADLINE, 12)
    verify = timer.latency().verify
    for count in (count for count in verify.tokens.tolist() if count <= decides):
        assert verify.seconds(count) == pytest.approx(verify_s(count, CONTEXTS[0], 1), rel=1e-3)


class TestEffort:
    def test_repeated_rounds_are_at_most_those_of_the_settings(self, make_model):
        machine, latency, _ = measure(make_model, range(BLOCK_CALLS, CALLS))
        assert machine.timed <= 2 * CALLS
        assert is_exact(latency)
        often = {call for call in range(10**5) if call // BLOCK_CALLS % 3}
        machine, _, _ = measure(make_model, often)
        assert CALLS < machine.timed <= 2 * CALLS + 5 * KEYS

    def test_few_rounds_are_enough_if_the_settings_have_few(self, make_model):
        _, latency, _ = measure(make_model, range(KEYS), replace(SETTINGS, rounds=2))
        assert is_exact(latency)
        assert latency.interference.samples == 0

    def test_idle_machine_repeats_nothing(self, make_model):
        machine, latency, checkpoint = measure(make_model, ())
        assert machine.timed == CALLS
        assert latency.interference == Interference(calls=0.0, samples=0.0)
        kinds = [f"{OTHERS}{call} 30x1 greedy" for call in ("verify", "draft", "step")]
        assert sum(len(list(checkpoint.entries(kind))) for kind in kinds) < CALLS / BLOCK_CALLS + 50


class TestCheckpoint:
    @pytest.fixture
    def checkpoint(self):
        checkpoint = Checkpoint(None, "")
        for seconds in (1.0, 2.0, 3.0):
            for key in (1, 4):
                checkpoint.append("verify", key, (seconds * key,))
        return checkpoint

    def test_load_belongs_to_the_samples_since_the_last_one(self, checkpoint):
        partial = Load(1.25, 8, 4)
        loads = iter([None, ALL, None, NONE, partial])
        reader = type("Reader", (), {"read": lambda _: next(loads)})()
        sample_filter = SampleFilter(checkpoint, ["verify", "draft"], reader)
        for _ in range(5):
            sample_filter.update()
            checkpoint.append("verify", 4, (9.0,))
            checkpoint.append("draft", 1, (5.0,))
        assert [entry.values[0] for entry in checkpoint.entries(OTHERS + "verify")] == [1, 2, 1]
        samples = read_samples(checkpoint, "verify")
        assert list(samples) == [1, 4]
        assert samples[1] == [Sample(seconds, None) for seconds in (1.0, 2.0, 3.0)]  # from before
        assert [sample.load for sample in samples[4]] == [None, None, None, ALL, NONE, NONE, partial, None]
        drafts = read_samples(checkpoint, "draft")[1]
        assert [sample.load for sample in drafts] == [ALL, NONE, NONE, partial, None]

    @pytest.mark.parametrize(
        ("enough", "usable"), [(1, {1: [1.0, 3.0], 4: [12.0]}), (2, {1: [1.0, 3.0], 4: [4.0, 8.0, 12.0]})]
    )
    def test_disturbed_samples_are_left_out_if_enough_others_remain(self, checkpoint, enough, usable):
        checkpoint.append(OTHERS + "verify", 1, (3.0, 2.0, 2.0, 2.0))  # key 4 twice, key 1 once
        sample_filter = SampleFilter(checkpoint, ["verify"], threads=2, enough=enough)
        assert sample_filter.usable("verify") == usable
        assert sample_filter.undisturbed("verify") == {1: [1.0, 3.0], 4: [12.0]}
        disturbed = 0 if enough == 1 else 2
        assert sample_filter.interference() == Interference(
            calls=0.5, samples=disturbed / sum(map(len, usable.values())), processors=1.0
        )

    def test_samples_of_unknown_load_are_usable(self, checkpoint):
        assert SampleFilter(checkpoint, ["verify", "draft"]).interference() is None
        assert SampleFilter(checkpoint, enough=9).usable("verify") == checkpoint.samples("verify")
