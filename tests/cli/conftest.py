"""What the commands' tests share: a folder, small profiles, no word about waiting, and no other programs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.invented import call
from treeopt.cli import terminal

LITTLE = ("--rounds", "2", "--context-tokens", "64", "--max-tokens", "8")
"""Of everything measured, so that a profile takes less than a second."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def no_other_programs() -> Iterator[None]:
    """Let nothing depend on what else computes, other tests above all."""
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
        result = call("profile", "--output", path, *LITTLE, "--positions", "96", "--max-prompts", "8")
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="session")
def rules_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a profile of four rules at temperature 0.6, beside what the command said."""
    path = tmp_path_factory.mktemp("rules") / "profile.yaml"
    rules = ("--rules", "sequoia,target, traversal,typical", "--lossy", "--temperature", "0.6")
    with no_other_programs():
        result = call("profile", "--output", path, *rules, *LITTLE, "--positions", "48", "--max-prompts", "4")
    assert result.exit_code == 0, result.output
    path.with_suffix(".said").write_text(result.stdout)
    return path


@pytest.fixture(scope="module", autouse=True)
def nobody_knows_other_programs() -> Iterator[None]:
    with no_other_programs():
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Restore one thread of torch after commands that set those of a profile, which slow down all later tests."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let work take as long as it may: on a fresh machine the solver is compiled during the first solve."""
    monkeypatch.setattr(terminal, "SILENT_S", 3600.0)
