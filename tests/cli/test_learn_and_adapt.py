"""`treeopt run --learn --adapt`: weights and trees change within a text, which stays; both are saved whole or not at all."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.invented import call
from tests.cli.test_adapt import eager, quiet_profile, run
from tests.cli.test_learning import files
from treeopt.records.profile import Profile
from treeopt.runtime import load_model
from treeopt.runtime.learning import learner
from treeopt.runtime.models.weights import named_tensors
from treeopt.trees import level_widths

__all__ = ["eager", "files", "quiet_profile"]
SAVING = ("--save-profile", "new.yaml", "--save-draft", "new-draft")


def assert_both_saved() -> None:
    assert Profile.load("new.yaml").acceptances
    assert named_tensors(load_model("new-draft"))


@pytest.mark.slow
@pytest.mark.usefixtures("files", "eager")
def test_text_stays_and_both_are_saved(quiet_profile: Path) -> None:
    plain = run(tokens=100)
    result = run("--learn", "--adapt", "--profile", quiet_profile, "--adapt-log", "log.jsonl", *SAVING, tokens=100)
    assert (result.exit_code, result.stdout) == (0, plain.stdout), result.output
    assert "re-calibration: " in result.stderr
    assert "learning: " in result.stderr
    assert Path("log.jsonl").read_text("utf-8")
    assert_both_saved()


def interrupt(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Interrupt decoding after `steps` steps."""
    call_learner, count = learner.Learner.__call__, 0

    def interrupted(self: learner.Learner, step: Any) -> None:
        nonlocal count
        call_learner(self, step)
        count += 1
        if count == steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(learner.Learner, "__call__", interrupted)


@pytest.mark.usefixtures("files", "eager")
@pytest.mark.parametrize("several", [False, True])
def test_interrupted_run_saves_both_whole(quiet_profile: Path, monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    interrupt(monkeypatch, 40)
    options = ("--learn", "--adapt", "--profile", quiet_profile, *SAVING)
    if several:
        Path("prompts.txt").write_text("import os\n", encoding="utf-8")
        prompts = ("--prompts", "prompts.txt", "--batch-size", 1, "-o", "out.jsonl")
        result = call("run", "tree.json", *prompts, "--temperature", 0, "--max-new-tokens", 400, *options)
    else:
        result = run(*options, tokens=400)
    assert result.exit_code == 130, result.output
    assert_both_saved()


@pytest.mark.usefixtures("folder")
def test_run_that_is_interrupted_at_once_saves_nothing(greedy_profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level_widths([2, 1]).save("tree.json")
    interrupt(monkeypatch, 1)
    result = run("--learn", "--adapt", "--profile", greedy_profile, *SAVING)
    assert result.exit_code == 130, result.output
    assert "decode more text" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["tree.json"]
