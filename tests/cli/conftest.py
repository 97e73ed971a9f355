"""Fixtures of the command tests: a folder, small profiles, no progress output, and no other programs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.invented import succeed
from treeopt.cli import terminal

LITTLE = ("--rounds", "2", "--context-tokens", "64", "--max-tokens", "8")
"""Amounts that let a profile take less than a second."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def no_other_programs() -> Iterator[None]:
    """Hide other programs, above all other tests, from measurements and benchmarks."""
    from treeopt.profiler.latency.load import CpuLoadReader, LoadReport

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treeopt.profiler.latency.load.report_load", lambda *_, **__: LoadReport(None, ()))
        patch.setattr(CpuLoadReader, "read", lambda _: None)
        patch.setattr("treeopt.report.bench_text.MAX_PACE", float("inf"))
        yield


@pytest.fixture(scope="session")
def greedy_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a profile that was measured at temperature 0."""
    path = tmp_path_factory.mktemp("greedy") / "profile.yaml"
    with no_other_programs():
        succeed("profile", "--output", path, *LITTLE, "--positions", "96", "--max-prompts", "8")
    return path


@pytest.fixture(scope="session")
def rules_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a profile of four rules at temperature 0.6; the command's output is in `profile.out`."""
    path = tmp_path_factory.mktemp("rules") / "profile.yaml"
    rules = ("--rules", "sequoia,target, traversal,typical", "--lossy", "--temperature", "0.6")
    with no_other_programs():
        result = succeed(
            "profile", "--output", path, *rules, *LITTLE, "--rounds", "1", "--positions", "48", "--max-prompts", "4"
        )
    path.with_suffix(".out").write_text(result.stdout)
    return path


@pytest.fixture(scope="module", autouse=True)
def hide_other_programs() -> Iterator[None]:
    with no_other_programs():
        yield


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show no progress, however long work takes: on a fresh machine the first solve compiles the solver."""
    monkeypatch.setattr(terminal, "SILENT_S", 3600.0)
