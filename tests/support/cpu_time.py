"""Where the tests' CPU time goes: a fast test that takes too much of it fails the run.

Only the call of a test counts, with the processes that it started and waited for; fixtures are shared and do not.
With `--cpu-limit` a test that is not marked slow fails beyond so many CPU seconds.
"""

import os
from collections.abc import Generator
from typing import Any

import pytest

LISTED_S = 1.0
"""Fast tests beyond are named at the end of a run."""
CPU_S = "cpu_s"


def spent_s() -> float:
    """Return the CPU seconds of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTime:
    """Measures each test, where it runs, and tells the sums, where reports come together.

    Args:
        limit_s: what a fast test may take, None for any time.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._fast: dict[str, float] = {}
        self._processes: list[float] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note what a test takes where its report will carry it to the process that prints."""
        before_s = spent_s()
        try:
            return (yield)
        finally:
            item.user_properties.append((CPU_S, spent_s() - before_s))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Let a test fail that passed, but takes too much to be a fast one."""
        report: pytest.TestReport = yield
        taken_s = dict(report.user_properties).get(CPU_S, 0.0)
        limited = self._limit_s is not None and call.when == "call" and "slow" not in report.keywords
        if limited and report.passed and taken_s > self._limit_s:
            report.outcome = "failed"
            report.longrepr = (
                f"{report.nodeid} takes {taken_s:.1f} CPU seconds, a fast test at most {self._limit_s:g}: "
                "mark it slow or make it smaller."
            )
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what fast tests took."""
        if report.when == "call" and "slow" not in report.keywords:
            self._fast[report.nodeid] = dict(report.user_properties).get(CPU_S, 0.0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect what a worker took in all."""
        self._processes.append(getattr(node, "workeroutput", {}).get(CPU_S, 0.0))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the controller what this worker took in all."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[CPU_S] = spent_s()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the fast tests that take longest, and print the sum over all processes."""
        long = sorted(((taken_s, name) for name, taken_s in self._fast.items() if taken_s > LISTED_S), reverse=True)
        if long:
            terminalreporter.section(f"fast tests over {LISTED_S:g} CPU second")
            for taken_s, name in long:
                terminalreporter.line(f"{taken_s:6.2f} s  {name}")
        workers = f" by {len(self._processes)} workers" if self._processes else ""
        terminalreporter.line(f"{sum(self._processes) or spent_s():.0f} CPU seconds{workers}")
