"""`treeopt run --learn`: the same text, a draft that is kept whole, and refusals before anything is decoded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.invented import call
from treeopt import bundled
from treeopt.runtime import load_model
from treeopt.runtime.learning import learner
from treeopt.runtime.models.checkpoint import named_tensors
from treeopt.trees import TreeFile, level_widths
from treeopt.trees.drafter_setting import DrafterSetting

PROMPT = "import os\n"


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a tree, where little has to be met before something is learnt."""
    level_widths([2, 1]).save("tree.json")
    little = learner.LearningSettings(positions=1, max_time_share=1e9)
    monkeypatch.setattr(learner.LearningSettings.__init__, "__kwdefaults__", _defaults(little))
    return folder


def _defaults(settings: learner.LearningSettings) -> dict[str, float]:
    return {name: getattr(settings, name) for name in learner.LearningSettings.__slots__}


def run(*arguments: object, tokens: int = 40, prompt: str = PROMPT) -> Any:
    return call("run", "tree.json", "--max-new-tokens", tokens, "--temperature", 0, "--prompt", prompt, *arguments)


@pytest.mark.usefixtures("files")
def test_the_text_is_the_same_and_its_share_is_said() -> None:
    plain, found = run(), run("--learn")
    assert found.exit_code == 0, found.output
    assert found.stdout == plain.stdout
    assert re.search(r"^learning: \d+ % of the time, [1-9]\d* updates?$", found.stderr, re.MULTILINE)
    assert "learning" not in plain.stderr


@pytest.mark.usefixtures("files")
def test_so_it_is_for_the_prompts_of_a_file() -> None:
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in (PROMPT, "def f(")))
    how = ("run", "tree.json", "--max-new-tokens", 40, "--temperature", 0, "--prompts", "prompts.jsonl")
    plain, found = call(*how), call(*how, "--learn")
    texts = [[json.loads(line)["text"] for line in each.stdout.splitlines()] for each in (plain, found)]
    assert texts[0] == texts[1]
    assert re.search(r"^learning: .* [1-9]\d* update", found.stderr, re.MULTILINE)


def test_a_saved_draft_learns_on_and_is_replaced_with_force(files: Path) -> None:
    found = run("--learn", "--save-draft", "learnt")
    assert found.exit_code == 0, found.output
    assert found.stderr.splitlines()[-1] == "draft: saved in learnt"
    first = named_tensors(load_model("learnt"))
    given = named_tensors(load_model(bundled.DRAFT))
    assert any(not torch.equal(first[name], given[name]) for name in given)
    assert {path.name for path in Path("learnt").iterdir()} == {path.name for path in bundled.DRAFT.iterdir()}
    pair = ("--draft", "learnt")  # as an interrupted run prints; the target stays the bundled one
    assert run("--learn", "--save-draft", "learnt", *pair).exit_code == 1
    assert all(torch.equal(first[name], each) for name, each in named_tensors(load_model("learnt")).items())
    again = run("--learn", "--save-draft", "learnt", "--force", *pair)
    assert again.exit_code == 0, again.output
    assert again.stdout == found.stdout
    second = named_tensors(load_model("learnt"))
    assert any(not torch.equal(first[name], second[name]) for name in given)
    assert sorted(path.name for path in files.iterdir()) == ["learnt", "tree.json"]


@pytest.mark.usefixtures("files")
def test_an_interrupted_run_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    call_learner = learner.Learner.__call__

    def interrupted(self: learner.Learner, told: Any) -> None:
        call_learner(self, told)
        if self.stats.updates == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(learner.Learner, "__call__", interrupted)
    found = run("--learn", "--save-draft", "learnt", tokens=80)
    assert found.exit_code == 130
    assert "learnt contains the draft model as last saved; continue with --draft learnt --force" in found.stderr
    assert named_tensors(load_model("learnt"))


@pytest.mark.usefixtures("files")
def test_what_cannot_be_meant_is_refused_before_anything_is_decoded() -> None:
    Path("mine").mkdir()
    (Path("mine") / "notes.txt").write_text("mine")
    tree = level_widths([2, 1])
    TreeFile(tree=tree, drafter=DrafterSetting(name="medusa")).save("medusa.json")
    for arguments, code, said in (
        (("--save-draft", "new"), 2, "--save-draft: expected --learn with it"),
        (("--learning-rate", "0.1"), 2, "--learning-rate: expected --learn with it"),
        (("--learn", "--learning-rate", "0"), 2, "expected a number above 0 and at most 1"),
        (
            ("--learn", "--save-draft", "mine"),
            1,
            "mine/notes.txt: exists, and no option names it. Replace it with --force",
        ),
        (("--learn", "--save-draft", "tree.json"), 1, "tree.json: is a file"),
        (("--learn", "--save-draft", "none/new"), 1, "none/new: cannot be written"),
        (("--learn", "--save-draft", bundled.DRAFT), 1, "exists, and no option names it"),
    ):
        found = run(*arguments)
        assert (found.exit_code, found.stdout) == (code, ""), arguments
        assert said in " ".join(found.stderr.split()), arguments
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]
    found = call("run", "medusa.json", "--prompt", PROMPT, "--learn")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "Got one for medusa: leave --learn out" in " ".join(found.stderr.split())
