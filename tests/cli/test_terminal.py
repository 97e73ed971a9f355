"""Progress output and diagrams: a bar, one line or nothing, as wide as the terminal."""

import fcntl
import io
import os
import pty
import struct
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import NOISY, TABLE, invented, solved, succeed
from treeopt.cli import terminal
from treeopt.cli.terminal import diagram_width
from treeopt.compiling import is_compiling, watch_compilation
from treeopt.planner import PlanRequest
from treeopt.planner.scheduling import count_scheduled_points, schedule_if_measured
from treeopt.trees import TreeFile, chain
from treeopt.trees.text_diagram import MIN_WIDTH, WIDTH


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def show_progress(monkeypatch: pytest.MonkeyPatch):
    """Return a function that shows two of three steps on a stream until it contains a text, and returns its content."""
    monkeypatch.setattr(terminal, "SILENT_S", 0.02)

    def show(stream: io.StringIO, text: str) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.progress("solving", unit="condition", total=3) as tick:
            tick()
            tick()
            for _ in range(500):
                if text in stream.getvalue():
                    break
                time.sleep(0.01)
        return stream.getvalue()

    return show


def test_quick_work_shows_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SILENT_S", 60.0)
    with terminal.progress("solving") as tick:
        tick()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("compiles", "line"), [(False, "solving…\n"), (True, "solving… (compiling, once after installation)\n")]
)
def test_one_line_without_a_terminal(show_progress, monkeypatch, compiles: bool, line: str) -> None:
    monkeypatch.setattr(terminal, "is_compiling", lambda: compiles)
    assert show_progress(io.StringIO(), "\n") == line


@pytest.mark.parametrize("compiles", [False, True])
def test_a_bar_on_a_terminal(show_progress, monkeypatch, compiles: bool) -> None:
    monkeypatch.setattr(terminal, "is_compiling", lambda: compiles)
    text = show_progress(Terminal(), terminal.COMPILING if compiles else "2/3")
    assert "solving" in text
    assert ("2/3" in text) or compiles
    assert (terminal.COMPILING in text) == compiles


def test_compilation_is_noticed_while_numba_compiles() -> None:
    from numba import njit
    from numba.core.event import Listener, register, unregister

    watch_compilation()
    during: list[bool] = []

    class Recorder(Listener):
        def on_start(self, event: object) -> None:
            during.append(event is not None and is_compiling())

        def on_end(self, event: object) -> None:
            pass

    recorder = Recorder()
    register("numba:compile", recorder)
    try:
        increment = njit(lambda x: x + 1)
        assert not is_compiling()
        assert increment(1) == 2
        assert not is_compiling()
        assert during
        assert all(during)
        during.clear()
        assert increment(2) == 3
        assert not during
    finally:
        unregister("numba:compile", recorder)


@pytest.mark.parametrize(
    ("profile", "points"),
    [
        (invented(conditions=[(256, 1), (256, 4), (4096, 1)]), 3),
        (invented(conditions=[(256, 1), (512, 1)], tables=[TABLE, NOISY]), 4),
        (invented(), 0),
    ],
)
def test_bar_is_as_long_as_the_schedule(profile, points: int) -> None:
    request, ticks = PlanRequest(max_nodes=8), []
    schedule = schedule_if_measured(profile, request, lambda: ticks.append(1))
    assert len(ticks) == count_scheduled_points(profile, request) == points
    assert points == (0 if schedule is None else len(schedule.plans))


@pytest.mark.parametrize(("columns", "width"), [(80, 80), (10, MIN_WIDTH), (250, 250), (0, WIDTH)], ids=str)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch, stream: str, columns: int, width: int) -> None:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(master), os.fdopen(terminal, "w") as opened:
        monkeypatch.setattr(sys, stream, opened)
        monkeypatch.setattr(sys, "stderr" if stream == "stdout" else "stdout", io.StringIO())
        assert diagram_width(err=stream == "stderr") == width
        assert diagram_width(err=stream == "stdout") == WIDTH


def test_commands_draw_at_that_width(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TreeFile(tree=chain(60), reach=0.9 ** np.arange(61)).save(folder / "chain.json")
    assert 92 < max(map(len, succeed("show", "chain.json").stdout.splitlines())) <= WIDTH
    for command in ("show", "solve"):
        monkeypatch.setattr(f"treeopt.cli.{command}.diagram_width", lambda **_: MIN_WIDTH)
    _, solve_diagram = solved(folder, invented(), "--budget", 32).split("\ndepth ")
    for diagram in (succeed("show", "chain.json").stdout, solve_diagram.partition("\nWritten")[0]):
        assert 18 < max(map(len, diagram.splitlines())) <= MIN_WIDTH
