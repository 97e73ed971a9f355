"""`treeopt profile` next to other programs, and with the checkpoint of another version."""

import json
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.invented import call, succeed
from treeopt import Profile
from treeopt.errors import TreeoptError
from treeopt.profiler.latency import load as load_module
from treeopt.profiler.latency.load import CpuLoadReader, Load, LoadReport, Program
from treeopt.records.step_latency import Interference, StepLatency
from treeopt.records.timing_quality import other_programs_warning

LITTLE = ("--max-tokens", "4", "--rounds", "2", "--positions", "240", "--context-tokens", "16")
BUSY = LoadReport(Load(1.9, 2, 2), (Program("python", 123, 1.0), Program("cc1", 77, 0.9)))
QUIET = LoadReport(Load(0.0, 2, 2), ())
PROGRAMS = "other programs use 95 % of 2 processors: python (pid 123, 100 %), cc1 (pid 77, 90 %)"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[LoadReport]:
    """Return a list of the next loads; the last is repeated."""
    reports: list[LoadReport] = []
    monkeypatch.setattr(load_module, "report_load", lambda *_: reports.pop(0) if len(reports) > 1 else reports[0])
    return reports


@pytest.mark.usefixtures("folder")
class TestBefore:
    @pytest.fixture
    def timing_error(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """End a profile at the first timed call; return the error line."""
        from treeopt.profiler import MonotonicClock

        def fail(*_: object) -> float:
            raise TreeoptError("timing began")

        monkeypatch.setattr(MonotonicClock, "time_s", fail)
        return "Error: timing began"

    @pytest.mark.parametrize(
        ("options", "end"),
        [
            ((), ". Close them, or wait for quiet with --wait 60s."),
            (("--wait", "0.1s"), "or wait longer."),
        ],
    )
    def test_busy_machine_is_a_warning_before_anything_is_timed(
        self, loads: list[LoadReport], timing_error: str, options: tuple[str, ...], end: str
    ) -> None:
        loads.append(BUSY)
        *_, warning, error = call("profile", *LITTLE, *options).stderr.splitlines()
        assert warning.startswith(f"Warning: {PROGRAMS}. Times measured now are too long. ")
        assert warning.endswith(end)
        assert error == timing_error

    @pytest.mark.parametrize(("reports", "messages"), [([QUIET], 0), ([BUSY, BUSY, QUIET], 1)])
    def test_waiting_ends_when_the_machine_is_quiet(
        self, loads: list[LoadReport], timing_error: str, reports: list[LoadReport], messages: int
    ) -> None:
        loads += reports
        result = call("profile", *LITTLE, "--wait", "60s")
        assert result.stderr.count("Waiting at most 60 s for idle processors: " + PROGRAMS) == messages
        assert "Warning: other programs" not in result.stderr
        assert timing_error in result.stderr

    def test_interrupted_wait_keeps_the_checkpoint(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        def interrupted(*_: object) -> LoadReport:
            raise KeyboardInterrupt

        checkpoint = folder / "profile.yaml.partial"
        before = '{"conditions": "others"}\nmeasured before\n'
        checkpoint.write_text(before)
        monkeypatch.setattr(load_module, "report_load", interrupted)
        result = call("profile", *LITTLE, "--wait", "1h")
        assert result.exit_code != 0
        assert "interrupted" in result.stderr
        assert checkpoint.read_text() == before

    def test_imported_times_need_no_quiet_machine(self, folder: Path, loads: list[LoadReport]) -> None:
        loads.append(BUSY)
        (folder / "c.csv").write_text("tokens,seconds\n1,0.010\n8,0.011\n")
        (folder / "a.json").write_text('{"conditional": [0.7, 0.6, 0.5]}')
        curves = ("--latency", "c.csv", "--draft-latency", "c.csv")
        assert "other programs" not in succeed("profile", *curves, "--acceptance", "a.json").stderr


@pytest.mark.parametrize(
    ("device", "reason"), [("cpu", "Times measured now are too long"), ("cuda", "The host may start the device")]
)
def test_warning_is_of_the_device_or_of_its_host(device: str, reason: str) -> None:
    assert reason in str(other_programs_warning("100 % of 2 processors", device, "run this again"))


class TestDuring:
    """Programs that compute while times are taken; acceptance is imported, because it is not timed."""

    def profiled(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, loads: Iterator[Load]
    ) -> tuple[Result, StepLatency]:
        (folder / "a.json").write_text('{"conditional": [0.7, 0.6, 0.5]}')
        monkeypatch.setattr(CpuLoadReader, "read", lambda _: next(loads))
        result = succeed("profile", *LITTLE, "--acceptance", "a.json")
        (latency,) = Profile.load("profile.yaml").latencies
        return result, latency

    def test_lasting_disturbance_is_a_warning_and_part_of_the_profile(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result, latency = self.profiled(folder, monkeypatch, repeat(Load(2.0, 2, 2)))
        assert "other programs used 100 % of the processors during 100 % of the timed calls" in result.stderr
        assert "became" not in result.stderr
        assert latency.interference == Interference(calls=1.0, samples=1.0, processors=1.0)

    def test_samples_of_a_passing_disturbance_are_left_out(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loads = chain([Load(2.0, 2, 2)] * 8, repeat(Load(0.0, 2, 2)))
        result, latency = self.profiled(folder, monkeypatch, loads)
        assert "other programs used" not in result.stderr
        assert latency.interference is not None
        assert latency.interference.samples == 0.0 < latency.interference.calls
        assert {len(timing.samples_s) for timing in latency.verify.timings} == {2}
        assert "of the calls were disturbed by other programs and left out" in result.stdout


def test_checkpoint_of_an_older_version_is_refused(folder: Path) -> None:
    checkpoint = folder / "profile.yaml.partial"
    checkpoint.write_text(json.dumps({"conditions": "device cpu, processor x"}) + '\n["step 16x1 greedy", 0, [0.1]]\n')
    before = checkpoint.read_bytes()
    result = call("profile", *LITTLE, "--resume")
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert "profile.yaml.partial: was measured by a treeopt of unknown version" in line
    assert "Start over with --force in place of --resume" in line
    assert checkpoint.read_bytes() == before
    few = (*LITTLE[:4], "--positions", "24", "--context-tokens", "16", "--max-prompts", "4")
    succeed("profile", *few, "--force")
    assert (folder / "profile.yaml").exists()
    assert not checkpoint.exists()
