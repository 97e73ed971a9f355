"""`treeopt run --learn`: the same text, and a draft model that is saved whole."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from tests.cli.invented import call, succeed
from treeopt import bundled
from treeopt.runtime import load_model
from treeopt.runtime.learning import learner
from treeopt.runtime.models.weights import named_tensors
from treeopt.trees import TreeFile, level_widths
from treeopt.trees.drafter_setting import DrafterSetting

PROMPT = "import os\n"


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a tree; the learner updates at once and as often as it can."""
    level_widths([2, 1]).save("tree.json")
    settings = learner.LearningSettings(positions=1, max_time_share=1e9)
    defaults = {name: getattr(settings, name) for name in learner.LearningSettings.__slots__}
    monkeypatch.setattr(learner.LearningSettings.__init__, "__kwdefaults__", defaults)
    return folder


def run(*options: object, tokens: int = 40) -> Result:
    return call("run", "tree.json", "--max-new-tokens", tokens, "--temperature", 0, "--prompt", PROMPT, *options)


@pytest.mark.usefixtures("files")
def test_text_stays_and_share_of_time_is_reported() -> None:
    plain, learning = run(), run("--learn")
    assert (learning.exit_code, learning.stdout) == (0, plain.stdout), learning.output
    assert re.search(r"^learning: \d+ % of the time, [1-9]\d* updates?$", learning.stderr, re.MULTILINE)
    assert "learning" not in plain.stderr


@pytest.mark.usefixtures("files")
def test_outputs_of_several_prompts_stay() -> None:
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in (PROMPT, "def f(")))
    command = ("run", "tree.json", "--max-new-tokens", 40, "--temperature", 0, "--prompts", "prompts.jsonl")
    plain, learning = succeed(*command), succeed(*command, "--learn")
    outputs = [[json.loads(line)["text"] for line in result.stdout.splitlines()] for result in (plain, learning)]
    assert outputs[0] == outputs[1]
    assert re.search(r"^learning: .* [1-9]\d* update", learning.stderr, re.MULTILINE)


def test_saved_draft_learns_on_and_is_replaced_with_force(files: Path) -> None:
    first_run = run("--learn", "--save-draft", "new")
    assert first_run.exit_code == 0, first_run.output
    assert first_run.stderr.splitlines()[-1] == "draft: saved in new"
    first, original = named_tensors(load_model("new")), named_tensors(load_model(bundled.DRAFT))
    assert any(not torch.equal(first[name], original[name]) for name in original)
    assert {path.name for path in Path("new").iterdir()} == {path.name for path in bundled.DRAFT.iterdir()}
    command = ("--learn", "--save-draft", "new", "--draft", "new")  # as printed after an interruption
    assert run(*command).exit_code == 1
    assert all(torch.equal(first[name], tensor) for name, tensor in named_tensors(load_model("new")).items())
    second_run = run(*command, "--force")
    assert (second_run.exit_code, second_run.stdout) == (0, first_run.stdout), second_run.output
    second = named_tensors(load_model("new"))
    assert any(not torch.equal(first[name], second[name]) for name in original)
    assert sorted(path.name for path in files.iterdir()) == ["new", "tree.json"]


@pytest.mark.usefixtures("files")
def test_interrupted_run_names_the_saved_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    call_learner = learner.Learner.__call__

    def interrupted(self: learner.Learner, step: Any) -> None:
        call_learner(self, step)
        if self.stats.updates == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(learner.Learner, "__call__", interrupted)
    result = run("--learn", "--save-draft", "new", tokens=80)
    assert result.exit_code == 130
    assert "new contains the draft model as last saved; continue with --draft new --force" in result.stderr
    assert named_tensors(load_model("new"))


@pytest.mark.usefixtures("files")
def test_plan_of_heads_is_refused() -> None:
    TreeFile(tree=level_widths([2, 1]), drafter=DrafterSetting(name="medusa")).save("medusa.json")
    result = call("run", "medusa.json", "--prompt", PROMPT, "--learn")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Got one for medusa: leave --learn out" in result.stderr
