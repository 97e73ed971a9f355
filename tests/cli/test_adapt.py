"""`treeopt run --adapt`: the same text, what is told and left behind, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invented import call
from treeopt.adaptation import Recalibration, recalibration
from treeopt.records.profile import Profile
from treeopt.trees import TreeFile, chain, level_widths
from treeopt.trees.drafter_setting import drafter_setting
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

PROMPT = "import os\n\n\ndef main(arguments):\n    "


def run(*more: object, tokens: int = 160) -> Any:
    how = ("--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", tokens)
    return call("run", "tree.json", *how, *more)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every look find a reason to compare, and every other tree pay."""
    monkeypatch.setattr(recalibration, "LOOK_STEPS", 4)
    monkeypatch.setattr(Recalibration, "_reason", lambda _: "a test")
    monkeypatch.setattr(Recalibration, "_pays", lambda self, choice: choice.tree != self.tree)


@pytest.mark.usefixtures("folder", "eager")
def test_the_text_stays_and_every_change_is_a_line_of_json(greedy_profile: Path) -> None:
    level_widths([2, 1]).save("tree.json")
    plain = run()
    found = run("--adapt", "--profile", greedy_profile, "--adapt-log", "log.jsonl", "--save-profile", "learnt.yaml")
    assert found.exit_code == 0, found.output
    assert found.stdout == plain.stdout
    lines = [json.loads(line) for line in Path("log.jsonl").read_text("utf-8").splitlines()]
    assert lines
    assert {"step", "why", "from", "to", "predicted_gain"} <= lines[0].keys()
    assert lines[0]["from"]["parents"] == [-1, 0, 0, 1]
    assert lines[0]["to"] != lines[0]["from"]
    assert f"re-calibration: {len(lines)} change" in found.stderr
    learnt, before = Profile.load("learnt.yaml"), Profile.load(greedy_profile)
    assert learnt.acceptances[0].table.p.shape != before.acceptances[0].table.p.shape
    assert learnt.acceptances[0].accepted_ranks is None
    again = run("--adapt", "--profile", greedy_profile, "--adapt-log", "log.jsonl")  # its own log is written over
    assert again.stdout == plain.stdout, again.output
    assert call("solve", "--profile", "learnt.yaml", "--budget", 2, "-o", "new.json").exit_code == 0


@pytest.mark.usefixtures("folder")
def test_too_little_text_leaves_no_profile(greedy_profile: Path) -> None:
    chain(2).save("tree.json")
    found = run("--adapt", "--profile", greedy_profile, "--save-profile", "learnt.yaml", tokens=6)
    assert found.exit_code == 1
    assert "decode more text" in found.stderr
    assert not Path("learnt.yaml").exists()


@pytest.mark.usefixtures("folder")
def test_refusals(greedy_profile: Path) -> None:
    chain(2).save("tree.json")
    for option in ("--adapt-log", "--save-profile", "--profile"):
        path = greedy_profile if option == "--profile" else "some.file"
        found = run(option, path)
        assert (found.exit_code, found.stdout) == (2, "")
        assert f"{option}: expected --adapt with it" in found.stderr
    Path("mine.txt").write_text("mine")
    found = run("--adapt", "--profile", greedy_profile, "--adapt-log", "mine.txt")
    assert (found.exit_code, Path("mine.txt").read_text()) == (1, "mine")
    found = run("--adapt", "--profile", greedy_profile, "--save-profile", greedy_profile)
    assert (found.exit_code, found.stdout) == (2, "")
    made = (ScheduledTree(first_texts=1, last_texts=1, tree=chain(2)),)
    TreeSchedule(trees=made).save("schedule.json")
    found = call("run", "schedule.json", "--prompt", PROMPT, "--adapt", "--profile", greedy_profile)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "--adapt: expected one tree" in found.stderr
    TreeFile(tree=chain(8), drafter=drafter_setting("prompt-lookup", ngram=3, length=8)).save("lookup.json")
    how = ("--temperature", 0, "--prompt", PROMPT, "--adapt", "--profile", greedy_profile)
    found = call("run", "lookup.json", *how)
    assert (found.exit_code, found.stdout) == (1, "")
    assert "a decoder whose draft model fills static trees" in found.stderr
