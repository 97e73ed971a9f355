"""What those who wait are told: nothing at first, how far it is, and of compiling only while something is compiled."""

import io
import sys
import time

import pytest

from tests.cli.invented import NOISY, TABLE, invented
from treeopt.cli import terminal
from treeopt.cli.options.plan import PlanOptions
from treeopt.compiling import is_compiling, watch_compilation
from treeopt.planner.scheduling import count_scheduled_points, schedule_if_measured

DEFAULTS = dict.fromkeys(PlanOptions.__dataclass_fields__) | {
    "objective": "speed",
    "raw": False,
    "lossy": False,
    "extrapolate": False,
}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SILENT_S", 0.02)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, enough: str) -> str:
    """Return what stands on standard error once it holds a text, after two of three steps of some work."""
    monkeypatch.setattr(sys, "stderr", stream)
    with terminal.progress("solving", unit="condition", total=3) as tick:
        tick()
        tick()
        for _ in range(500):
            if enough in stream.getvalue():
                break
            time.sleep(0.01)
    return stream.getvalue()


def test_what_is_quick_is_not_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SILENT_S", 60.0)
    with terminal.progress("too quick to be said") as tick:
        tick()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("compiles", "line"), [(False, "solving…\n"), (True, "solving… (compiling, once after installation)\n")]
)
def test_without_a_terminal_one_line_says_what_is_so(monkeypatch, compiles, line) -> None:
    monkeypatch.setattr(terminal, "is_compiling", lambda: compiles)
    assert shown(monkeypatch, io.StringIO(), "\n") == line


@pytest.mark.usefixtures("soon")
def test_on_a_terminal_a_bar_says_how_far_it_is(monkeypatch) -> None:
    text = shown(monkeypatch, Terminal(), "2/3")
    assert "solving" in text
    assert "2/3" in text
    assert terminal.COMPILING not in text


@pytest.mark.usefixtures("soon")
def test_on_a_terminal_the_bar_says_when_something_is_compiled(monkeypatch) -> None:
    monkeypatch.setattr(terminal, "is_compiling", lambda: True)
    assert terminal.COMPILING in shown(monkeypatch, Terminal(), terminal.COMPILING)


@pytest.mark.usefixtures("soon")
def test_an_error_inside_is_let_through() -> None:
    with pytest.raises(ZeroDivisionError), terminal.progress("solving"):
        raise ZeroDivisionError


def test_compiling_is_told_while_numba_compiles_and_only_then() -> None:
    from numba import njit
    from numba.core.event import Listener, register, unregister

    watch_compilation()
    seen: list[bool] = []

    class Noted(Listener):
        def on_start(self, event: object) -> None:
            seen.append(event is not None and is_compiling())

        def on_end(self, event: object) -> None:
            pass

    noted = Noted()
    register("numba:compile", noted)
    try:
        loop = njit(lambda x: x + 1)
        assert not is_compiling()
        assert loop(1) == 2
        assert not is_compiling()
        assert seen
        assert all(seen)
        seen.clear()
        assert loop(2) == 3
        assert not seen
    finally:
        unregister("numba:compile", noted)


def test_the_bar_is_as_long_as_the_schedule() -> None:
    for profile in (
        invented(conditions=[(256, 1), (256, 4), (4096, 1)]),
        invented(conditions=[(256, 1), (512, 1)], tables=[TABLE, NOISY]),
        invented(),
    ):
        request, ticks = PlanOptions(**DEFAULTS).request, []
        schedule = schedule_if_measured(profile, request, lambda ticks=ticks: ticks.append(1))
        assert (
            len(ticks) == count_scheduled_points(profile, request) == (0 if schedule is None else len(schedule.plans))
        )
