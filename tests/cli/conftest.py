"""What the commands' tests share: a folder for files, and no word about waiting."""

from pathlib import Path

import pytest

from treeopt.cli import waiting


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let work take as long as it may: on a fresh machine the solver is compiled during the first solve."""
    monkeypatch.setattr(waiting, "SILENCE_S", 3600.0)
