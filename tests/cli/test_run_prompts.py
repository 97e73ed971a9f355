"""`treeopt run --prompts`: a line a prompt, the texts of single runs, what is kept of an interrupted one, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.invented import call
from treeopt import bundled
from treeopt.runtime import Decoder
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

PROMPTS = ["import os\n", "def f(", "class A:\n    ", "for x in ", "x" * 900 + "\n"]


@pytest.fixture
def files(folder: Path) -> Path:
    level_widths([2, 1]).save("tree.json")
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return folder


def run(*arguments: object, tokens: int = 12) -> Any:
    return call("run", "tree.json", "--max-new-tokens", tokens, *arguments)


def lines(path: str = "texts.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_each_prompt_has_a_line_in_its_order_with_the_text_of_a_run_of_its_own(files: Path, temperature: float) -> None:
    how = ("--temperature", temperature, "--seed", 3)
    found = run("--prompts", "prompts.jsonl", "--batch-size", 3, "-o", "texts.jsonl", *how)
    assert found.exit_code == 0, found.output
    assert found.stdout == ""
    texts = lines()
    assert [set(each) for each in texts] == [{"tool", "text", "tokens", "steps"}] * len(PROMPTS)
    assert all(each["tokens"] == 12 and 1 < each["steps"] <= 12 for each in texts)
    alone = PROMPTS[:2] if temperature == 0 else PROMPTS[:1]  # above it, single runs have the seed of the first prompt
    for prompt, each in zip(alone, texts, strict=False):
        single = run("--prompt", prompt, *how)
        assert single.stdout == prompt + each["text"] + "\n"
        assert f"12 tokens in {each['steps']} steps" in single.stderr
    assert f"5 sequences of 60 tokens in {sum(each['steps'] for each in texts)} steps" in found.stderr
    assert list(files.glob("*.partial")) == []
    assert run("--prompts", "prompts.jsonl", "--batch-size", 1, *how).stdout == Path("texts.jsonl").read_text()


@pytest.mark.usefixtures("files")
def test_a_schedule_gives_the_same_greedy_texts_as_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    one, more = level_widths([2, 1]), chain(0)
    made = [ScheduledTree(first_texts=1, last_texts=2, tree=one), ScheduledTree(first_texts=3, last_texts=3, tree=more)]
    TreeSchedule(trees=tuple(made)).save("schedule.json")
    taken: list[TokenTree] = []
    take = Decoder._use_tree
    monkeypatch.setattr(Decoder, "_use_tree", lambda self, tree: taken.append(tree) or take(self, tree))
    how = ("--prompts", "prompts.jsonl", "--batch-size", 3, "--temperature", 0)
    found = call("run", "schedule.json", "--max-new-tokens", 12, *how)
    assert found.exit_code == 0, found.output
    assert set(taken) == {one, more}
    text = "text"
    with_tree = [json.loads(line)[text] for line in run(*how).stdout.splitlines()]
    assert [json.loads(line)[text] for line in found.stdout.splitlines()] == with_tree
    alone = call("run", "schedule.json", "--max-new-tokens", 12, "--prompt", PROMPTS[0], "--temperature", 0)
    assert alone.stdout == PROMPTS[0] + with_tree[0] + "\n"
    wrong = call("run", "--schedule", "tree.json", "--prompt", "a")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
    assert "tree.json: format: expected" in wrong.stderr


@pytest.mark.usefixtures("files")
def test_prompts_that_cannot_be_continued_are_named_and_the_others_go_on() -> None:
    Path("prompts.jsonl").write_text(
        '"import "\n\n"  "\n{"text": "' + "x" * 1100 + '"}\n"def "\n"' + "y" * 1020 + '"\n'
    )
    found = run("--prompts", "prompts.jsonl", "-o", "texts.jsonl")
    assert found.exit_code == 1
    *_, empty, long, full, last = found.stderr.splitlines()
    assert empty == "prompts.jsonl: line 3: prompt: expected at least one token. Got an empty prompt."
    assert long.startswith(
        "prompts.jsonl: line 4: prompt: expected at most 1023 tokens before a new one, because bundled target takes 1024 tokens, its trained length. Got 1100"
    )
    assert full.startswith("prompts.jsonl: line 6: --max-new-tokens: expected at most 4 after a prompt of 1020 tokens")
    assert last == "Error: prompts.jsonl: 3 of 5 prompts could not be continued."
    texts = lines()
    assert [each["text"] is None for each in texts] == [False, True, True, False, True]
    assert [each.get("error", "").split(":")[0] for each in texts] == ["", "prompt", "prompt", "", "--max-new-tokens"]
    assert run("--prompt", "def ").stdout == "def " + texts[3]["text"] + "\n"


def test_an_interrupted_run_keeps_what_has_ended_and_goes_on(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("--prompts", "prompts.jsonl", "--batch-size", 2, "-o", "texts.jsonl", "--temperature", "0.8")
    assert run(*command).exit_code == 0
    expected = Path("texts.jsonl").read_text()
    asked: list[int] = []
    original = Decoder.stream_all

    def broken_off(self: Decoder, requests: Any, **how: Any) -> Any:
        asked.append(len(requests))
        ended = 0
        for step in original(self, requests, **how):
            yield step
            ended += step.finished
            if ended == 3 and len(asked) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "stream_all", broken_off)
    Path("texts.jsonl").unlink()
    broken = run(*command)
    assert broken.exit_code == 130
    assert "3 of 5 sequences are saved in texts.jsonl.partial; run the same command with --resume" in broken.stderr
    assert not Path("texts.jsonl").exists()
    other = run(*command, "--resume", "--seed", 1)
    assert other.exit_code == 1
    assert "other conditions" in other.stderr
    assert run(*command, "--resume").exit_code == 0
    assert asked == [5, 2]
    assert Path("texts.jsonl").read_text() == expected
    assert list(files.glob("*.partial")) == []


def test_a_run_is_not_resumed_with_another_dtype_or_other_weights(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("target", "draft"):
        shutil.copytree(getattr(bundled, name.upper()), files / name)
    command = ("--prompts", "prompts.jsonl", "--batch-size", 1, "-o", "texts.jsonl", "--temperature", 0)
    pair = ("--target", "target", "--draft", "draft")
    assert run(*command, *pair).exit_code == 0
    expected = Path("texts.jsonl").read_text()
    Path("texts.jsonl").unlink()
    original = Decoder.stream_all

    def interrupted(self: Decoder, requests: Any, **how: Any) -> Any:
        for step in original(self, requests, **how):
            yield step
            if step.finished:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "stream_all", interrupted)
        assert run(*command, *pair).exit_code == 130
    weights = files / "target" / "model.safetensors"
    content = weights.read_bytes()
    other_dtype = run(*command, *pair, "--resume", "--dtype", "float16")
    save_file({name: 1.5 * values for name, values in load_file(weights).items()}, weights)
    other_weights = run(*command, *pair, "--resume")
    weights.write_bytes(content)
    for refused in (other_dtype, other_weights):
        assert (refused.exit_code, "other conditions" in refused.stderr) == (1, True), refused.output
        assert not Path("texts.jsonl").exists()
    assert run(*command, *pair, "--resume").exit_code == 0
    assert Path("texts.jsonl").read_text() == expected


@pytest.mark.usefixtures("files")
def test_what_does_not_fit_together_is_refused_before_anything_is_loaded() -> None:
    Path("own.jsonl.partial").write_text("mine")
    Path("none.txt").write_text("")
    for arguments, code, message in (
        ((), 2, "--prompt, --prompts: expected one of the two. Got neither."),
        (("--prompt", "x", "--prompts", "prompts.jsonl"), 2, "--prompt, --prompts: expected one of the two. Got both."),
        (("--prompt", "x", "--batch-size", 2), 2, "--batch-size: expected --prompts with it. Got --prompt."),
        (("--prompt", "x", "-o", "texts.jsonl"), 2, "--output: expected --prompts with it. Got --prompt."),
        (("--prompts", "prompts.jsonl", "--batch-size", 0), 2, "Invalid value for '--batch-size'"),
        (("--prompts", "prompts.jsonl", "--resume"), 2, "--resume: expected -o FILE"),
        (("--prompts", "prompts.jsonl", "-o", "prompts.jsonl"), 2, "--output: prompts.jsonl is read"),
        (("--prompts", "prompts.jsonl", "-o", "own.jsonl"), 1, "own.jsonl.partial: exists, and holds what an"),
        (("--prompts", "nothing.txt"), 1, "nothing.txt: no such file"),
        (("--prompts", "none.txt"), 1, "none.txt: content: expected at least one prompt. Got none."),
    ):
        found = run(*arguments)
        assert (found.exit_code, message in found.stderr.splitlines()[-1]) == (code, True), found.stderr
    assert Path("own.jsonl.partial").read_text() == "mine"


@pytest.mark.usefixtures("files")
def test_a_batch_that_does_not_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 25e6)
    found = run("--prompts", "prompts.jsonl", "--batch-size", 1024, "-o", "texts.jsonl")
    assert found.exit_code == 1
    assert "--batch-size: expected at most " in found.stderr
    assert not Path("texts.jsonl").exists()
