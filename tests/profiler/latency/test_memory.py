"""Running out of memory ends one curve before the count that failed, and nothing else."""

import weakref

import pytest
import torch

from tests.profiler.pretended import FakeClock
from treeopt.profiler import Checkpoint
from treeopt.profiler.budget import NO_DEADLINE
from treeopt.profiler.latency.curve import LIMIT, SMALL_COUNTS, LatencyCurve, Passes
from treeopt.profiler.latency.memory import is_out_of_memory
from treeopt.profiler.latency.rounds import Recorder, coarse_points

ROUNDS, MOST, KIND = 4, 128, "verify 8x1 greedy"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            True,
        ),
        (RuntimeError("not enough memory: you tried to allocate 8 bytes"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_of_memory_are_recognised(error, expected):
    assert is_out_of_memory(error) is expected


class Machine:
    """Passes of `limit` tokens and more raise `error`, when they are made, or in calls after the first `late` ones."""

    def __init__(self, limit=48, error=None, *, in_call=False, late=0):
        self.limit, self.error, self.in_call, self.late = limit, error or MemoryError(), in_call, late
        self.tried, self.calls = [], 0

    def make_work(self, tokens):
        self.tried.append(tokens)
        if tokens >= self.limit and not self.in_call:
            raise self.error

        def work():
            self.calls += 1
            if tokens >= self.limit and self.in_call and self.calls > self.late:
                raise self.error

        return work

    def measure(self, checkpoint):
        clock = FakeClock(lambda: 1.0 + self.calls % 3)
        curve = LatencyCurve(KIND, lambda: Passes(self.make_work), MOST, Recorder(clock, checkpoint))
        curve.coarse(MOST, NO_DEADLINE)
        curve.add_counts(NO_DEADLINE)
        curve.sample(ROUNDS)
        return curve


@pytest.mark.parametrize("in_call", [False, True])
def test_smaller_counts_keep_all_samples_and_larger_ones_are_not_tried(in_call, tmp_path):
    machine, checkpoint = Machine(in_call=in_call), Checkpoint(tmp_path / "checkpoint", "h")
    curve = machine.measure(checkpoint)
    table = curve.table()
    assert table.max_tokens == 32
    assert {*SMALL_COUNTS, *coarse_points(32)} <= set(table.tokens.tolist())
    assert {len(timing.samples_s) for timing in table.timings} == {ROUNDS}
    assert (machine.tried.count(48), max(machine.tried), curve.limit_tokens) == (1, 48, 48)
    assert [entry.key for entry in checkpoint.entries(LIMIT + KIND)] == [48]
    machine = Machine(in_call=in_call)
    resumed = machine.measure(Checkpoint(tmp_path / "checkpoint", "h", resume=True)).table()
    assert (machine.calls, machine.tried) == (0, [])
    assert resumed.tokens.tolist() == table.tokens.tolist()
    assert resumed.medians_s.tolist() == table.medians_s.tolist()


def test_memory_that_runs_out_later_ends_the_largest_counts():
    table = Machine(100, in_call=True, late=56).measure(Checkpoint(None, "")).table()  # in the last round
    assert table.max_tokens == 96
    assert {len(timing.samples_s) for timing in table.timings} == {ROUNDS}


@pytest.mark.parametrize(
    ("machine", "error"),
    [
        (Machine(1), MemoryError),
        (Machine(1, in_call=True), MemoryError),
        (Machine(48, RuntimeError("shapes differ")), RuntimeError),
    ],
)
def test_first_token_without_memory_and_other_errors_are_raised(machine, error):
    checkpoint = Checkpoint(None, "")
    with pytest.raises(error):
        machine.measure(checkpoint)
    assert list(checkpoint.entries(LIMIT + KIND)) == []


class Activations:
    """What a pass allocates; weakly referenced to see when it is freed."""


@pytest.mark.parametrize("late", [0, 56])  # in the first attempt, in the rounds
def test_failed_pass_is_freed_before_memory_is_released_and_passes_continue(monkeypatch, late):
    allocated, alive, calls = [], [], [0]

    def make_work(tokens):
        def work():
            calls[0] += 1
            activations = Activations()
            if tokens >= 100 and calls[0] > late:
                allocated.append(weakref.ref(activations))
                raise MemoryError
            alive.extend(reference() for reference in allocated)

        return work

    monkeypatch.setattr(
        "treeopt.profiler.latency.curve.release_memory",
        lambda: alive.extend(reference() for reference in allocated),
    )
    curve = LatencyCurve(KIND, lambda: Passes(make_work), MOST, Recorder(FakeClock(), Checkpoint(None, "")))
    curve.coarse(MOST, NO_DEADLINE)
    curve.sample(ROUNDS)
    assert len(allocated) == 1
    assert alive
    assert set(alive) == {None}
