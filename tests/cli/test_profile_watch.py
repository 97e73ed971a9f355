"""`treeopt profile` beside other programs, and with a checkpoint that another treeopt began."""

import json
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.invented import call
from treeopt import Profile
from treeopt.errors import TreeoptError
from treeopt.profiler.latency import load as load_module
from treeopt.profiler.latency.load import CpuLoadReader, Load, LoadReport, Program
from treeopt.records.step_latency import Interference, StepLatency
from treeopt.records.timing_quality import other_programs_warning

LITTLE = ("--max-tokens", "4", "--rounds", "2", "--positions", "240", "--context-tokens", "16")
BUSY = LoadReport(Load(1.9, 2, 2), (Program("python", 123, 1.0), Program("cc1", 77, 0.9)))
QUIET = LoadReport(Load(0.0, 2, 2), ())
SAID = "other programs use 95 % of 2 processors: python (pid 123, 100 %), cc1 (pid 77, 90 %)"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[LoadReport]:
    """Return a list of what is seen next; the last is seen again and again."""
    sights: list[LoadReport] = []
    monkeypatch.setattr(load_module, "report_load", lambda *_: sights.pop(0) if len(sights) > 1 else sights[0])
    return sights


@pytest.fixture
def clock_runs(monkeypatch: pytest.MonkeyPatch) -> str:
    """End a profile at the first timed call; return what is then said."""
    from treeopt.profiler import MonotonicClock

    def timed(*_: object) -> float:
        raise TreeoptError("the clock runs")

    monkeypatch.setattr(MonotonicClock, "time_s", timed)
    return "Error: the clock runs"


@pytest.mark.usefixtures("folder")
class TestBefore:
    def test_it_is_told_before_anything_is_timed(self, seen: list[LoadReport], clock_runs: str) -> None:
        seen.append(BUSY)
        *_, warning, error = call("profile", *LITTLE).stderr.splitlines()
        assert warning.startswith(f"Warning: {SAID}. Times measured now are too long. ")
        assert warning.endswith(". Close them, or wait for quiet with --wait 60s.")
        assert error == clock_runs

    def test_a_quiet_machine_is_not_spoken_of(self, seen: list[LoadReport], clock_runs: str) -> None:
        seen.append(QUIET)
        result = call("profile", *LITTLE)
        assert clock_runs in result.stderr
        assert "other programs" not in result.stderr

    def test_waiting_ends_when_it_is_quiet(self, seen: list[LoadReport], clock_runs: str) -> None:
        seen += [BUSY, BUSY, QUIET]
        result = call("profile", *LITTLE, "--wait", "60s")
        assert result.stderr.count("Waiting at most 60 s for idle processors: " + SAID) == 1  # a word every few seconds
        assert "Warning: other programs" not in result.stderr
        assert clock_runs in result.stderr

    def test_and_when_the_time_is_over_with_the_warning(self, seen: list[LoadReport], clock_runs: str) -> None:
        seen.append(BUSY)
        *_, warning, error = call("profile", *LITTLE, "--wait", "0.1s").stderr.splitlines()
        assert warning.startswith(f"Warning: {SAID}")
        assert warning.endswith("or wait longer.")
        assert error == clock_runs

    def test_ctrl_c_ends_it_and_what_was_measured_before_stays(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
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

    def test_where_nothing_is_timed_there_is_nothing_to_wait_for(self, folder: Path, seen: list[LoadReport]) -> None:
        seen.append(BUSY)
        (folder / "c.csv").write_text("tokens,seconds\n1,0.010\n8,0.011\n")
        (folder / "a.json").write_text('{"conditional": [0.7, 0.6, 0.5]}')
        curves = ("--latency", "c.csv", "--draft-latency", "c.csv")
        for more in (("--acceptance", "a.json"), ("--positions", "96")):
            result = call("profile", *curves, *more, "--wait", "60s")
            assert result.exit_code == 2
            assert "--wait: expected times to measure" in result.stderr
        result = call("profile", *curves, "--acceptance", "a.json")
        assert result.exit_code == 0, result.output
        assert "other programs" not in result.stderr

    def test_a_time_that_is_none(self) -> None:
        result = call("profile", "--wait", "soon")
        assert result.exit_code == 2
        assert "--wait" in result.stderr


def test_on_a_gpu_only_the_host_is_spoken_of() -> None:
    """The host's processors are looked at: of the times on the device nothing is claimed."""
    for device, said in (("cpu", "Times measured now are too long"), ("cuda", "The host may start the device")):
        assert said in str(other_programs_warning("100 % of 2 processors", device, "run this again"))


class TestMeanwhile:
    """Programs that compute while times are taken; acceptance is imported, because it is not timed."""

    def profiled(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, loads: Iterator[Load]
    ) -> tuple[Result, StepLatency]:
        (folder / "a.json").write_text('{"conditional": [0.7, 0.6, 0.5]}')
        monkeypatch.setattr(CpuLoadReader, "read", lambda _: next(loads))
        result = call("profile", *LITTLE, "--acceptance", "a.json")
        assert result.exit_code == 0, result.output
        (latency,) = Profile.load("profile.yaml").latencies
        return result, latency

    def test_calls_beside_them_are_told_and_kept_in_the_profile(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result, latency = self.profiled(folder, monkeypatch, repeat(Load(2.0, 2, 2)))
        assert "other programs used 100 % of the processors during 100 % of the timed calls" in result.stderr
        assert "became" not in result.stderr
        assert latency.interference == Interference(calls=1.0, samples=1.0, processors=1.0)

    def test_where_they_are_gone_before_the_end_their_samples_are_left_out(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loads = chain([Load(2.0, 2, 2)] * 8, repeat(Load(0.0, 2, 2)))
        result, latency = self.profiled(folder, monkeypatch, loads)
        assert "other programs used" not in result.stderr
        assert latency.interference is not None
        assert latency.interference.samples == 0.0 < latency.interference.calls
        assert {len(each.samples_s) for each in latency.verify.timings} == {2}
        assert "of the calls were disturbed by other programs and left out" in result.stdout


def test_a_checkpoint_of_an_older_treeopt_is_refused_in_one_line(folder: Path) -> None:
    checkpoint = folder / "profile.yaml.partial"
    checkpoint.write_text(json.dumps({"conditions": "device cpu, processor x"}) + '\n["step 16x1 greedy", 0, [0.1]]\n')
    before = checkpoint.read_bytes()
    result = call("profile", *LITTLE, "--resume")
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert "profile.yaml.partial: was measured by a treeopt of unknown version" in line
    assert "Start over with --force in place of --resume" in line
    assert checkpoint.read_bytes() == before
    assert not (folder / "profile.yaml").exists()
    assert call("profile", *LITTLE).exit_code == 1
    assert call("profile", *LITTLE, "--force").exit_code == 0
    assert (folder / "profile.yaml").exists()
    assert not checkpoint.exists()
