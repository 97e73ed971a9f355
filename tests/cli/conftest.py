"""What the commands' tests share: a folder for files, no word about waiting, and a machine without other programs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from treeopt.cli import text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def nobody_knows_other_programs() -> Iterator[None]:
    """Let no test depend on what else computes, other tests above all."""
    from treeopt.profiler.busy import ProcessorTimes
    from treeopt.profiler.programs import Sight

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treeopt.profiler.programs.look", lambda *_, **__: Sight(None, ()))
        patch.setattr(ProcessorTimes, "others", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let work take as long as it may: on a fresh machine the solver is compiled during the first solve."""
    monkeypatch.setattr(text, "SILENCE_S", 3600.0)
