"""Latencies of drafters with heads, on a clock that counts the passes of the heads."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.cli.invented import invented
from tests.profiler.pretended import FakeClock
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.drafters.times import STEP_ROUNDS, DrafterTimer
from treeopt.profiler.latency.passes import TimedPoint
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.sampling import GREEDY
from treeopt.records.step_latency import StepLatency
from treeopt.runtime.drafters.dflash import DFlashHead
from treeopt.runtime.drafters.dflash.head import MarkovHead
from treeopt.runtime.drafters.eagle import EagleHead
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.trees import chain

CONDITIONS = ((20, 1), (40, 3))
SETTINGS = Settings(context_tokens=(20, 40), batch_sizes=(1, 3), max_tokens=16, rounds=2, depth=4)


PLAIN_S = 1e-3


class CountingClock(FakeClock):
    """A call takes a second for each of its passes of the heads, and 1 ms."""

    def __init__(self):
        super().__init__(lambda: 1.0)
        self.passes = []

    def time_s(self, work):
        self.passes.clear()
        work()
        return len(self.passes) + PLAIN_S


def target_latencies() -> tuple[StepLatency, ...]:
    """Return passes of the target that take as long as a plain step."""
    return invented(conditions=CONDITIONS, verify=lambda *_: PLAIN_S).latencies


def measure(drafter, monkeypatch, latencies: tuple[StepLatency, ...], settings=SETTINGS, deadline=NO_DEADLINE):
    clock = CountingClock()
    for kind, method in ((EagleHead, "forward"), (MedusaHeads, "logits"), (DFlashHead, "draft"), (MarkovHead, "bias")):
        original = getattr(kind, method)

        def counted(self, *args, original=original, **options):
            clock.passes.append(args)
            return original(self, *args, **options)

        monkeypatch.setattr(kind, method, counted)
    times = DrafterTimer(drafter, list(range(9)), settings, Recorder(clock, Checkpoint(None, "")))
    return times.measure(latencies, deadline)


@pytest.mark.parametrize("name", ["eagle", "medusa", "dflash", "p-eagle"])
def test_levels_blocks_and_steps_are_timed_at_every_operating_point(name, loaded, monkeypatch):
    latencies = target_latencies()
    measured = measure(loaded(name), monkeypatch, latencies)
    assert [(latency.context_tokens, latency.batch_size, latency.sampled) for latency in measured] == [
        (*condition, False) for condition in CONDITIONS
    ]
    for latency in measured:
        assert latency.per_block == (name != "eagle")
        np.testing.assert_allclose(latency.draft.medians_s, 1 + 1e-3)  # one pass, whatever the width
        assert latency.draft.max_tokens == (16 if name == "eagle" else loaded(name).heads.levels)
        deepest = max(timed.tree.max_depth for timed in latency.steps)
        assert deepest == (4 if name == "eagle" else loaded(name).heads.levels)
        for timed in latency.steps:
            drafted = timed.tree.max_depth if name == "eagle" else 1
            np.testing.assert_allclose(timed.steps.samples_s, drafted + 1e-3)


def test_a_markov_head_is_timed_by_levels(loaded, monkeypatch):
    """The clock counts the block as one pass, and every level as one more."""
    drafter = loaded("dspark")
    for latency in measure(drafter, monkeypatch, target_latencies()):
        assert latency.per_block
        assert latency.draft.max_tokens == drafter.heads.levels
        np.testing.assert_allclose(latency.draft.medians_s, 1 + np.array(latency.draft.tokens) + 1e-3)
        for timed in latency.steps:
            np.testing.assert_allclose(timed.steps.samples_s, 1 + timed.tree.max_depth + 1e-3)
        np.testing.assert_allclose(latency.overhead.samples_s, 0, atol=0.1)


@pytest.mark.parametrize(("left_s", "samples"), [(math.inf, STEP_ROUNDS), (-1.0, 1)])
def test_a_time_budget_is_used_for_whole_steps(loaded, monkeypatch, left_s, samples):
    settings = replace(SETTINGS, time_budget_s=60.0)
    deadline = Deadline(lambda: 0.0, left_s)
    for latency in measure(loaded("eagle"), monkeypatch, target_latencies(), settings, deadline):
        assert {len(timed.steps.samples_s) for timed in latency.steps} == {samples}


def test_operating_points_beyond_memory_are_left_out(loaded, monkeypatch):
    from treeopt.errors import OutOfMemoryError
    from treeopt.profiler.drafters import times as module

    made = module.DrafterTimer._open_passes

    def passes(self, text, condition, most):
        if condition.batch_size > 1:
            raise OutOfMemoryError("out of memory")
        return made(self, text, condition, most)

    monkeypatch.setattr(module.DrafterTimer, "_open_passes", passes)
    latencies = target_latencies()
    (measured,) = measure(loaded("eagle"), monkeypatch, latencies)
    assert measured.batch_size == 1


@pytest.mark.parametrize("name", ["eagle", "p-eagle", "dflash", "dspark"])
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_steps_capture_the_passes_of_heads_as_they_were_loaded(loaded, name, cuda_graphs):
    drafter = replace(loaded(name), cuda_graphs=cuda_graphs)
    point, tokens = TimedPoint(context_tokens=20, batch_size=1, sampling=GREEDY), [3, 1, 4, 1] * 5
    timer = DrafterTimer(drafter, tokens, SETTINGS, Recorder(CountingClock(), Checkpoint(None, "")))
    decoder = timer._open_steps(tokens, [chain(2)], point).decoder
    list(decoder.generate([3, 1, 4], 6))
    assert bool(decoder._drafter._runner.captured) == cuda_graphs
