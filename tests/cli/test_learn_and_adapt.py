"""`treeopt run --learn --adapt`: weights and trees change in one text, which stays; both are saved whole, or not at all."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_adapt import eager, quiet_profile, run
from tests.cli.test_learning import files
from treeopt.records.profile import Profile
from treeopt.runtime import load_model
from treeopt.runtime.learning import learner
from treeopt.runtime.models.checkpoint import named_tensors
from treeopt.trees import level_widths

__all__ = ["eager", "files", "quiet_profile"]
SAVING = ("--save-profile", "learnt.yaml", "--save-draft", "learnt")


@pytest.mark.usefixtures("files", "eager")
def test_the_text_stays_and_both_are_saved(quiet_profile: Path) -> None:
    plain = run(tokens=100)
    found = run("--learn", "--adapt", "--profile", quiet_profile, "--adapt-log", "log.jsonl", *SAVING, tokens=100)
    assert found.exit_code == 0, found.output
    assert found.stdout == plain.stdout
    assert "re-calibration: " in found.stderr
    assert "learning: " in found.stderr
    assert Path("log.jsonl").read_text("utf-8")
    assert Profile.load("learnt.yaml").acceptances
    assert named_tensors(load_model("learnt"))


def interrupt(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Have Ctrl-C come after so many steps."""
    call_learner, told = learner.Learner.__call__, []

    def interrupted(self: learner.Learner, step: Any) -> None:
        call_learner(self, step)
        told.append(step)
        if len(told) == steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(learner.Learner, "__call__", interrupted)


@pytest.mark.usefixtures("files", "eager")
@pytest.mark.parametrize("several", [False, True])
def test_interrupted_both_are_kept_whole(quiet_profile: Path, monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    interrupt(monkeypatch, 40)
    how = ("--learn", "--adapt", "--profile", quiet_profile, *SAVING)
    if several:
        from tests.cli.invented import call

        Path("prompts.txt").write_text("import os\n", encoding="utf-8")
        found = call(
            "run",
            "tree.json",
            "--prompts",
            "prompts.txt",
            "--temperature",
            0,
            "--max-new-tokens",
            400,
            "--batch-size",
            1,
            "-o",
            "out.jsonl",
            *how,
        )
    else:
        found = run(*how, tokens=400)
    assert found.exit_code == 130, found.output
    assert Profile.load("learnt.yaml").acceptances
    assert named_tensors(load_model("learnt"))


@pytest.mark.usefixtures("folder")
def test_interrupted_at_once_nothing_is_left_and_the_interruption_is_told(
    greedy_profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level_widths([2, 1]).save("tree.json")
    interrupt(monkeypatch, 1)
    found = run("--learn", "--adapt", "--profile", greedy_profile, *SAVING)
    assert found.exit_code == 130, found.output
    assert "decode more text" in found.stderr
    assert [path.name for path in Path().iterdir()] == ["tree.json"]
