"""What other programs use: the policy and the arithmetic by hand, the reader on pretended counts, and once for real."""

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


class Times(NamedTuple):
    """What a system that counts little tells of a processor."""

    user: float
    idle: float


START = CpuTimes(now_s=100.0, counted_s=1000.0, idle_s=500.0, own_s=7.0, processors=2, cores=2)


def later(span_s, *, idle_s, own_s, counted_s=None, **changes):
    """Return the counts after so many seconds, in which the processors were idle and this process computed so long."""
    counted_s = span_s * START.processors if counted_s is None else counted_s
    return replace(
        START,
        now_s=START.now_s + span_s,
        counted_s=START.counted_s + counted_s,
        idle_s=START.idle_s + idle_s,
        own_s=START.own_s + own_s,
        **changes,
    )


class TestPolicy:
    def test_what_disturbs_so_many_threads(self):
        for others, processors, cores, threads, disturbed in (
            (0.0, 2, 2, 2, False),
            (0.19, 2, 2, 2, False),
            (0.21, 2, 2, 2, True),
            (1.0, 2, 2, 1, False),  # there is a core for each
            (1.33, 2, 2, 1, True),  # two programs and this one share two cores
            (0.09, 1, 1, 1, False),
            (0.11, 1, 1, 1, True),
            (15.0, 64, 64, 48, False),
            (16.2, 64, 64, 48, False),
            (16.3, 64, 64, 48, True),  # all threads wait for the one that shares its core
            (0.3, 16, 8, 8, True),  # its two hardware threads share a core
            (7.2, 16, 8, 1, True),
            (0.3, 4, 4, 16, True),  # more threads than cores
        ):
            assert Load(others, processors, cores).disturbs(threads) is disturbed, (others, processors, cores, threads)

    def test_a_share_is_of_all_processors(self):
        assert Load(1.5, 2, 1).share == 0.75

    def test_a_sight_of_nothing_disturbs_nobody(self):
        assert not LoadReport(None, ()).disturbs(1)
        assert LoadReport(Load(2.0, 2, 2), ()).disturbs(1)


class TestLoad:
    def test_it_is_what_was_neither_idle_nor_ones_own(self):
        assert load_between(START, later(2.0, idle_s=1.0, own_s=0.5)) == Load(1.25, 2, 2)
        assert load_between(START, later(2.0, idle_s=4.0, own_s=0.0)) == Load(0.0, 2, 2)
        assert load_between(START, later(2.0, idle_s=0.0, own_s=0.0)) == Load(2.0, 2, 2)

    def test_rounding_makes_it_neither_negative_nor_more_than_all(self):
        assert load_between(START, later(1.0, idle_s=1.0, own_s=1.02)).used == 0.0
        assert load_between(START, later(1.0, idle_s=-0.02, own_s=0.0)).used == 2.0

    def test_counts_that_stand_still_tell_nothing(self):
        """Some sandboxes give counts that never change: nothing was idle, but nothing was busy either."""
        assert load_between(START, later(2.0, idle_s=0.0, own_s=1.0, counted_s=0.0)) is None

    def test_nor_do_those_of_other_processors(self):
        assert load_between(START, later(2.0, idle_s=2.0, own_s=1.0, processors=4)) is None

    def test_those_of_this_machine(self):
        first, second = read_cpu_times(), read_cpu_times()
        assert 1 <= first.cores <= first.processors == second.processors <= psutil.cpu_count()
        assert first.now_s < second.now_s
        assert first.own_s < second.own_s
        assert first.idle_s <= second.idle_s < second.counted_s

    def test_processors_that_the_process_may_not_use_do_not_count(self, monkeypatch):
        every = [Times(3.0, idle) for idle in (1.0, 2.0, 4.0, 8.0)]
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: every if percpu else None)
        monkeypatch.setattr(psutil, "cpu_count", lambda logical: 4 if logical else 2)
        for usable, idle_s, cores in (([1, 2], 6.0, 1), ([0, 1, 2, 3], 15.0, 2), ([0, 9], 15.0, 2), ([], 15.0, 2)):
            load_module._usable_processors.cache_clear()
            process = type("Process", (), {"cpu_affinity": lambda _, usable=usable: usable})
            with monkeypatch.context() as patch:
                patch.setattr(psutil, "Process", process)
                found = read_cpu_times()
            assert (found.idle_s, found.cores) == (idle_s, cores)
        with monkeypatch.context() as patch:  # macOS does not say
            load_module._usable_processors.cache_clear()
            patch.setattr(psutil, "Process", type("Process", (), {}))
            assert read_cpu_times().processors == 4
        load_module._usable_processors.cache_clear()


class TestReader:
    def test_it_answers_after_half_a_second_and_of_that_time(self, monkeypatch):
        now_s = [START.now_s]
        counts = iter([START, later(0.6, idle_s=0.6, own_s=0.0), later(1.2, idle_s=1.8, own_s=0.0)])
        monkeypatch.setattr(load_module, "read_cpu_times", lambda: next(counts))
        monkeypatch.setattr(load_module.time, "monotonic", lambda: now_s[0])
        reader, found = CpuLoadReader(), []
        for second in (0.0, 0.3, 0.6, 0.7, 1.0, 1.2):
            now_s[0] = START.now_s + second
            found.append(reader.read())
        assert [None if load is None else round(load.used, 9) for load in found] == [None, None, 1.0, None, None, 0.0]


class TestSight:
    def test_it_is_told_in_one_line(self):
        seen = (Program("python", 123, 1.0), Program("cc1", 77, 0.904))
        assert (
            str(LoadReport(Load(1.9, 2, 2), seen))
            == "95 % of 2 processors: python (pid 123, 100 %), cc1 (pid 77, 90 %)"
        )
        many = [Program(f"p{number}", number, 0.5) for number in range(1, 7)]
        assert str(LoadReport(Load(3.0, 4, 4), tuple(many))).endswith(
            "p1 (pid 1, 50 %), p2 (pid 2, 50 %), p3 (pid 3, 50 %), 3 more"
        )

    def test_programs_that_cannot_be_seen_are_said_to_be_none(self):
        assert str(LoadReport(Load(8.0, 64, 64), ())) == "12 % of 64 processors: none seen from here"
        assert str(LoadReport(Load(0.5, 1, 1), ())) == "50 % of 1 processor: none seen from here"
        assert "unknown" in str(LoadReport(None, ()))

    def test_a_name_does_not_reach_the_terminal_raw(self):
        assert str(Program("evil\x1b[2J\nError: x", 5, 0.5)) == "evil?[2J?Error: x (pid 5, 50 %)"


class TestLook:
    def test_ones_own_and_idle_processes_are_no_others(self, monkeypatch):
        me = os.getpid()
        before = {(0, "Idle"): 0.0, (me, "python"): 5.0, (11, "child"): 1.0, (12, "cc1"): 2.0, (13, "sshd"): 3.0}
        after = {(0, "Idle"): 1.0, (me, "python"): 5.5, (11, "child"): 1.5, (12, "cc1"): 2.4, (13, "sshd"): 3.01}
        used = iter([before, {**after, (14, "new"): 9.0}])
        counts = iter([START, later(1.0, idle_s=0.59, own_s=0.5)])
        monkeypatch.setattr(load_module, "_process_seconds", lambda: next(used))
        monkeypatch.setattr(load_module, "_process_tree", lambda _: {me, 11})
        monkeypatch.setattr(load_module, "read_cpu_times", lambda: next(counts))
        waited = []
        sight = report_load(sleep=waited.append)
        assert waited == [LOAD_WINDOW_S]
        assert [(each.name, each.pid) for each in sight.programs] == [("cc1", 12)]
        assert sight.programs[0].processors == pytest.approx(0.4)
        assert sight.load.used == pytest.approx(2 - 0.59 - 0.5 - 0.5)  # less the child's

    def test_the_tree_of_a_process(self):
        assert load_module._process_tree(os.getpid()) >= {os.getpid()}
        assert load_module._process_tree(2**22 + 1) == {2**22 + 1, os.getpid()}  # gone meanwhile

    @pytest.mark.slow
    @pytest.mark.process
    def test_a_program_that_computes_is_seen_and_ones_own_children_are_not(self):
        compute = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
        started = [subprocess.Popen([sys.executable, "-c", compute]) for _ in range(psutil.cpu_count())]
        try:
            for root_pid, seen in ((None, False), (started[0].pid, len(started) > 1)):
                named = {each.pid for each in report_load(root_pid).programs}
                assert (not named.isdisjoint(each.pid for each in started)) is seen
            reader = CpuLoadReader()
            time.sleep(LOAD_WINDOW_S + 0.1)
            load = reader.read()
            assert load is not None
            assert load.share > 0.5
            assert load.disturbs(load.cores)
        finally:
            for each in started:
                each.kill()
                each.wait()


class TestWait:
    BUSY, QUIET = LoadReport(Load(2.0, 2, 2), ()), LoadReport(Load(0.0, 2, 2), ())

    def wait(self, sights, wait_s):
        """Look once a second; return what was seen last, what was told and the seconds waited."""
        seen, told, now_s = iter(sights), [], [0.0]

        def see():
            now_s[0] += 1.0
            return next(seen)

        last = wait_until_idle(see, 2, wait_s, lambda sight, left_s: told.append((sight, left_s)), lambda: now_s[0])
        return last, told, now_s[0]

    def test_it_goes_on_at_once_where_it_is_quiet(self):
        assert self.wait([self.QUIET], 60.0) == (self.QUIET, [], 1.0)

    def test_it_goes_on_as_soon_as_it_becomes_quiet(self):
        last, told, waited_s = self.wait([self.BUSY, self.BUSY, self.QUIET], 60.0)
        assert (last, waited_s) == (self.QUIET, 3.0)
        assert told == [(self.BUSY, 59.0), (self.BUSY, 58.0)]

    def test_after_the_time_it_says_what_still_runs(self):
        last, told, waited_s = self.wait([self.BUSY] * 99, 5.0)
        assert (last, waited_s, len(told)) == (self.BUSY, 5.0, 4)

    def test_without_time_it_looks_once(self):
        assert self.wait([self.BUSY], 0.0) == (self.BUSY, [], 1.0)

    def test_where_nobody_knows_it_does_not_wait(self):
        assert self.wait([LoadReport(None, ())], 60.0)[2] == 1.0
