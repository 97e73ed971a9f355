"""The load of other programs: when it disturbs, how it is computed, and one real reading."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import NamedTuple

import psutil
import pytest

from treeopt.profiler.latency import load as load_module
from treeopt.profiler.latency.load import (
    LOAD_WINDOW_S,
    CpuLoadReader,
    CpuTimes,
    Load,
    LoadReport,
    Program,
    load_between,
    read_cpu_times,
    report_load,
    wait_until_idle,
)

START = CpuTimes(now_s=100.0, counted_s=1000.0, idle_s=500.0, own_s=7.0, processors=2, cores=2)


def later(span_s, *, idle_s, own_s, counted_s=None, **changes):
    """Return the counters after `span_s`, in which the processors were idle and this process computed for some time."""
    counted_s = span_s * START.processors if counted_s is None else counted_s
    return replace(
        START,
        now_s=START.now_s + span_s,
        counted_s=START.counted_s + counted_s,
        idle_s=START.idle_s + idle_s,
        own_s=START.own_s + own_s,
        **changes,
    )


@pytest.mark.parametrize(
    ("used", "processors", "cores", "threads", "disturbed"),
    [
        (0.19, 2, 2, 2, False),
        (0.21, 2, 2, 2, True),
        (1.0, 2, 2, 1, False),  # there is a core for each
        (1.33, 2, 2, 1, True),  # two programs and this one share two cores
        (16.2, 64, 64, 48, False),
        (16.3, 64, 64, 48, True),  # all threads wait for the one that shares its core
        (0.3, 16, 8, 8, True),  # its two hardware threads share a core
        (0.3, 4, 4, 16, True),  # more threads than cores
    ],
)
def test_load_disturbs_threads_without_a_core_of_their_own(used, processors, cores, threads, disturbed):
    load = Load(used, processors, cores)
    assert load.disturbs(threads) is LoadReport(load, ()).disturbs(threads) is disturbed
    assert load.share == used / processors


class TestLoadBetween:
    @pytest.mark.parametrize(
        ("span_s", "idle_s", "own_s", "used"),
        [
            (2.0, 1.0, 0.5, 1.25),
            (2.0, 4.0, 0.0, 0.0),
            (2.0, 0.0, 0.0, 2.0),
            (1.0, 1.0, 1.02, 0.0),
            (1.0, -0.02, 0.0, 2.0),
        ],
    )
    def test_load_is_neither_idle_nor_of_this_process(self, span_s, idle_s, own_s, used):
        assert load_between(START, later(span_s, idle_s=idle_s, own_s=own_s)) == Load(used, 2, 2)

    def test_load_is_unknown_if_counters_stand_still_or_processors_change(self):
        assert load_between(START, later(2.0, idle_s=0.0, own_s=1.0, counted_s=0.0)) is None  # as in some sandboxes
        assert load_between(START, later(2.0, idle_s=2.0, own_s=1.0, processors=4)) is None


class TestReadCpuTimes:
    def test_counters_of_this_machine_ascend(self):
        first, second = read_cpu_times(), read_cpu_times()
        assert 1 <= first.cores <= first.processors == second.processors <= psutil.cpu_count()
        assert first.now_s < second.now_s
        assert first.own_s < second.own_s
        assert first.idle_s <= second.idle_s < second.counted_s

    @pytest.mark.parametrize(
        ("usable", "idle_s", "cores"),
        [([1, 2], 6.0, 1), ([0, 1, 2, 3], 15.0, 2), ([0, 9], 15.0, 2), ([], 15.0, 2), (None, 15.0, 2)],
    )
    def test_only_usable_processors_count(self, monkeypatch, usable, idle_s, cores):
        class Times(NamedTuple):
            user: float
            idle: float

        processors = [Times(3.0, idle) for idle in (1.0, 2.0, 4.0, 8.0)]
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: processors if percpu else None)
        monkeypatch.setattr(psutil, "cpu_count", lambda logical: 4 if logical else 2)
        methods = {} if usable is None else {"cpu_affinity": lambda _: usable}  # macOS has none
        monkeypatch.setattr(psutil, "Process", type("Process", (), methods))
        load_module._usable_processors.cache_clear()
        times = read_cpu_times()
        load_module._usable_processors.cache_clear()
        assert (times.idle_s, times.cores) == (idle_s, cores)


def test_reader_returns_the_load_of_each_half_second(monkeypatch):
    now_s = [START.now_s]
    times = iter([START, later(0.6, idle_s=0.6, own_s=0.0), later(1.2, idle_s=1.8, own_s=0.0)])
    monkeypatch.setattr(load_module, "read_cpu_times", lambda: next(times))
    monkeypatch.setattr(load_module.time, "monotonic", lambda: now_s[0])
    reader, loads = CpuLoadReader(), []
    for second in (0.0, 0.3, 0.6, 0.7, 1.0, 1.2):
        now_s[0] = START.now_s + second
        loads.append(reader.read())
    assert [None if load is None else round(load.used, 9) for load in loads] == [None, None, 1.0, None, None, 0.0]


class TestReport:
    @pytest.mark.parametrize(
        ("report", "line"),
        [
            (
                LoadReport(Load(1.9, 2, 2), (Program("python", 123, 1.0), Program("cc1", 77, 0.904))),
                "95 % of 2 processors: python (pid 123, 100 %), cc1 (pid 77, 90 %)",
            ),
            (
                LoadReport(Load(3.0, 4, 4), tuple(Program(f"p{number}", number, 0.5) for number in range(1, 7))),
                "75 % of 4 processors: p1 (pid 1, 50 %), p2 (pid 2, 50 %), p3 (pid 3, 50 %), 3 more",
            ),
            (LoadReport(Load(0.5, 1, 1), ()), "50 % of 1 processor: none seen from here"),
            (LoadReport(None, ()), "an unknown share of the processors"),
            (Program("evil\x1b[2J\nError: x", 5, 0.5), "evil?[2J?Error: x (pid 5, 50 %)"),
        ],
    )
    def test_report_is_one_printable_line(self, report, line):
        assert str(report) == line

    def test_own_idle_and_new_processes_are_left_out(self, monkeypatch):
        own = os.getpid()
        before = {(0, "Idle"): 0.0, (own, "python"): 5.0, (11, "child"): 1.0, (12, "cc1"): 2.0, (13, "sshd"): 3.0}
        after = {(0, "Idle"): 1.0, (own, "python"): 5.5, (11, "child"): 1.5, (12, "cc1"): 2.4, (13, "sshd"): 3.01}
        seconds = iter([before, {**after, (14, "new"): 9.0}])
        times = iter([START, later(1.0, idle_s=0.59, own_s=0.5)])
        monkeypatch.setattr(load_module, "_process_seconds", lambda: next(seconds))
        monkeypatch.setattr(load_module, "_process_tree", lambda _: {own, 11})
        monkeypatch.setattr(load_module, "read_cpu_times", lambda: next(times))
        waits = []
        report = report_load(sleep=waits.append)
        assert waits == [LOAD_WINDOW_S]
        assert [(program.name, program.pid) for program in report.programs] == [("cc1", 12)]
        assert report.programs[0].processors == pytest.approx(0.4)
        assert report.load.used == pytest.approx(2 - 0.59 - 0.5 - 0.5)  # without the child

    def test_process_tree_contains_this_process(self):
        assert load_module._process_tree(os.getpid()) >= {os.getpid()}
        assert load_module._process_tree(2**22 + 1) == {2**22 + 1, os.getpid()}  # ended meanwhile

    @pytest.mark.slow
    @pytest.mark.process
    def test_real_programs_are_seen_and_own_children_are_not(self):
        compute = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
        programs = [subprocess.Popen([sys.executable, "-c", compute]) for _ in range(psutil.cpu_count())]
        try:
            for root_pid, seen in ((None, False), (programs[0].pid, len(programs) > 1)):
                reported = {program.pid for program in report_load(root_pid).programs}
                assert (not reported.isdisjoint(program.pid for program in programs)) is seen
            reader = CpuLoadReader()
            time.sleep(LOAD_WINDOW_S + 0.1)
            load = reader.read()
            assert load is not None
            assert load.share > 0.5
            assert load.disturbs(load.cores)
        finally:
            for program in programs:
                program.kill()
                program.wait()


BUSY, IDLE, UNKNOWN = LoadReport(Load(2.0, 2, 2), ()), LoadReport(Load(0.0, 2, 2), ()), LoadReport(None, ())


@pytest.mark.parametrize(
    ("reports", "wait_s", "left_s"),
    [
        ([IDLE], 60.0, []),
        ([UNKNOWN], 60.0, []),
        ([BUSY, BUSY, IDLE], 60.0, [59.0, 58.0]),
        ([BUSY] * 5, 5.0, [4.0, 3.0, 2.0, 1.0]),
        ([BUSY], 0.0, []),
    ],
)
def test_waiting_ends_when_the_machine_is_idle_or_the_time_is_over(reports, wait_s, left_s):
    remaining, waits, now_s = iter(reports), [], [0.0]

    def read_report():
        now_s[0] += 1.0
        return next(remaining)

    last = wait_until_idle(
        read_report, 2, wait_s, lambda report, left_s: waits.append((report, left_s)), lambda: now_s[0]
    )
    assert last == reports[-1]
    assert waits == [(BUSY, seconds) for seconds in left_s]
    assert now_s[0] == len(reports)
