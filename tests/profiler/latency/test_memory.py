"""Running out of memory: what it looks like, and that it ends one branch of one curve only."""

import weakref

import pytest
import torch

from tests.profiler.pretended import FakeClock
from treeopt.profiler import Checkpoint
from treeopt.profiler.latency.curve import LIMIT, LatencyCurve, Passes
from treeopt.profiler.latency.memory import is_out_of_memory
from treeopt.profiler.latency.rounds import Recorder, first_points

ROUNDS, MOST, KIND = 4, 128, "verify 8x1 greedy"
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    RuntimeError("not enough memory: you tried to allocate 8 bytes"),
    MemoryError(),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_of_memory_are_known(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory"), KeyboardInterrupt()])
def test_other_errors_are_not(error):
    assert not is_out_of_memory(error)


class Machine:
    """Passes of `limit` tokens and more run out of memory, when they are made or from call `late` on."""

    def __init__(self, limit, error, *, in_call=False, late=0):
        self.limit, self.error, self.in_call, self.late = limit, error, in_call, late
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

    def table(self, checkpoint, extra=6):
        curve = LatencyCurve(
            KIND, lambda: Passes(self.make_work), MOST, Recorder(FakeClock(lambda: 1.0 + self.calls % 3), checkpoint)
        )
        curve.pilot(ROUNDS)
        while curve.added < extra and curve.bend(ROUNDS):
            pass
        curve.sample(ROUNDS)
        return curve, curve.table()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("in_call", [False, True])
class TestLimit:
    def test_smaller_counts_keep_all_samples_and_larger_ones_are_not_tried(self, error, in_call):
        machine, checkpoint = Machine(48, error, in_call=in_call), Checkpoint(None, "")
        curve, table = machine.table(checkpoint)
        assert table.max_tokens == 32
        assert set(first_points(32)) <= set(table.tokens.tolist())
        assert {len(timing.samples_s) for timing in table.timings} == {ROUNDS}
        assert machine.tried.count(48) == 1
        assert max(machine.tried) == 48
        assert curve.limit_tokens == 48
        assert [entry.key for entry in checkpoint.entries(LIMIT + KIND)] == [48]

    def test_a_resumed_curve_is_the_same_and_tries_nothing_larger(self, error, in_call, tmp_path):
        path = tmp_path / "checkpoint"
        _, table = Machine(48, error, in_call=in_call).table(Checkpoint(path, "h"))
        machine = Machine(48, error, in_call=in_call)
        _, resumed = machine.table(Checkpoint(path, "h", resume=True))
        assert machine.calls == 0
        assert machine.tried == []
        assert resumed.tokens.tolist() == table.tokens.tolist()
        assert resumed.medians_s.tolist() == table.medians_s.tolist()


def test_memory_that_ends_later_ends_the_largest_counts():
    machine = Machine(100, ERRORS[0], in_call=True, late=56)  # in the last round
    _, table = machine.table(Checkpoint(None, ""), extra=0)
    assert table.max_tokens == 96
    assert {len(timing.samples_s) for timing in table.timings} == {ROUNDS}


@pytest.mark.parametrize("in_call", [False, True])
def test_a_single_token_that_does_not_fit_is_no_limit(in_call):
    checkpoint = Checkpoint(None, "")
    with pytest.raises(MemoryError):
        Machine(1, MemoryError(), in_call=in_call).table(checkpoint)
    assert list(checkpoint.entries(LIMIT + KIND)) == []


def test_another_error_is_passed_on():
    checkpoint = Checkpoint(None, "")
    with pytest.raises(RuntimeError, match="shapes differ"):
        Machine(48, RuntimeError("shapes differ")).table(checkpoint)
    assert list(checkpoint.entries(LIMIT + KIND)) == []


class Activations:
    """What a pass allocates; weakly referenced to see when it is gone."""


@pytest.mark.parametrize("late", [0, 60])  # in the first attempt, in the rounds
def test_a_failed_pass_is_gone_before_memory_is_given_back_and_passes_go_on(monkeypatch, late):
    allocated, alive, calls = [], [], [0]

    def make_work(tokens):
        def work():
            calls[0] += 1
            activations = Activations()
            if tokens >= 100 and calls[0] > late:
                allocated.append(weakref.ref(activations))
                raise MemoryError
            alive.extend(each() for each in allocated)

        return work

    monkeypatch.setattr(
        "treeopt.profiler.latency.curve.release_memory", lambda: alive.extend(each() for each in allocated)
    )
    curve = LatencyCurve(KIND, lambda: Passes(make_work), MOST, Recorder(FakeClock(lambda: 1.0), Checkpoint(None, "")))
    curve.pilot(ROUNDS)
    curve.sample(ROUNDS)
    assert len(allocated) == 1
    assert alive
    assert set(alive) == {None}
