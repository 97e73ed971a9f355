"""`treeopt run --prompts`: a line for each prompt, the outputs of single runs, and interruptions."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.invented import call, refused, succeed
from treeopt import bundled
from treeopt.runtime import Decoder
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

PROMPTS = ["import os\n", "def f(", "class A:\n    ", "for x in ", "x" * 900 + "\n"]
RUN = ("run", "tree.json", "--max-new-tokens", 12)
OUTPUT = ("--prompts", "prompts.jsonl", "-o", "outputs.jsonl")


@pytest.fixture(autouse=True)
def files(folder: Path) -> Path:
    level_widths([2, 1]).save("tree.json")
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return folder


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def interrupt(monkeypatch: pytest.MonkeyPatch, finished: int) -> list[int]:
    """Interrupt the first run after some sequences; return the number of requests of each run."""
    runs: list[int] = []
    original = Decoder.stream_all

    def interrupted(self: Decoder, requests: Any, **options: Any) -> Any:
        runs.append(len(requests))
        count = 0
        for step in original(self, requests, **options):
            yield step
            count += step.finished
            if count == finished and len(runs) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "stream_all", interrupted)
    return runs


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_each_prompt_has_the_text_of_a_single_run(files: Path, temperature: float) -> None:
    sampling = ("--temperature", temperature, "--seed", 3)
    result = succeed(*RUN, *OUTPUT, "--batch-size", 3, *sampling)
    assert result.stdout == ""
    rows = rows_of(Path("outputs.jsonl").read_text("utf-8"))
    assert [set(row) for row in rows] == [{"tool", "text", "tokens", "steps"}] * len(PROMPTS)
    assert all(row["tokens"] == 12 and 1 < row["steps"] <= 12 for row in rows)
    alone = PROMPTS[:2] if temperature == 0 else PROMPTS[:1]  # above 0, single runs have the seed of the first prompt
    for prompt, row in zip(alone, rows, strict=False):
        single = succeed(*RUN, "--prompt", prompt, *sampling)
        assert single.stdout == prompt + row["text"] + "\n"
        assert f"12 tokens in {row['steps']} steps" in single.stderr
    assert f"60 tokens of 5 sequences in {sum(row['steps'] for row in rows)} steps" in result.stderr
    assert list(files.glob("*.partial")) == []
    one_by_one = succeed(*RUN, "--prompts", "prompts.jsonl", "--batch-size", 1, *sampling)
    assert one_by_one.stdout == Path("outputs.jsonl").read_text()


def test_schedule_gives_the_greedy_outputs_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    one, several = level_widths([2, 1]), chain(0)
    trees = (
        ScheduledTree(first_batch_size=1, last_batch_size=2, tree=one),
        ScheduledTree(first_batch_size=3, last_batch_size=3, tree=several),
    )
    TreeSchedule(trees=trees).save("schedule.json")
    used: list[TokenTree] = []
    use = Decoder._use_tree
    monkeypatch.setattr(Decoder, "_use_tree", lambda self, tree: used.append(tree) or use(self, tree))
    prompts = ("--prompts", "prompts.jsonl", "--batch-size", 3, "--temperature", 0)
    scheduled = succeed("run", "schedule.json", *RUN[2:], *prompts)
    assert set(used) == {one, several}
    outputs = [row["text"] for row in rows_of(succeed(*RUN, *prompts).stdout)]
    assert [row["text"] for row in rows_of(scheduled.stdout)] == outputs
    alone = succeed("run", "schedule.json", *RUN[2:], "--prompt", PROMPTS[0], "--temperature", 0)
    assert alone.stdout == PROMPTS[0] + outputs[0] + "\n"


def test_prompts_that_cannot_be_continued_are_named_and_the_others_are_decoded() -> None:
    long, full = "x" * 1100, "y" * 1020
    Path("prompts.jsonl").write_text(f'"import "\n\n"  "\n{{"text": "{long}"}}\n"def "\n"{full}"\n')
    result = call(*RUN, *OUTPUT)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()[-4:]
    for line, expected in zip(
        lines,
        (
            "line 3: prompt: expected at least one token. Got an empty prompt.",
            "line 4: prompt: expected at most 1023 tokens before a new one, because bundled target takes 1024 tokens, its",
            "line 6: --max-new-tokens: expected at most 4 after a prompt of 1020 tokens",
        ),
        strict=False,
    ):
        assert line.startswith(f"prompts.jsonl: {expected}")
    assert lines[-1] == "Error: prompts.jsonl: 3 of 5 prompts could not be continued."
    rows = rows_of(Path("outputs.jsonl").read_text("utf-8"))
    assert [row["text"] is None for row in rows] == [False, True, True, False, True]
    assert [row.get("error", "").split(":")[0] for row in rows] == ["", "prompt", "prompt", "", "--max-new-tokens"]
    assert succeed(*RUN, "--prompt", "def ").stdout == "def " + rows[3]["text"] + "\n"


def test_interrupted_run_keeps_finished_sequences_and_is_resumed(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*RUN, *OUTPUT, "--batch-size", 2, "--temperature", "0.8")
    succeed(*command)
    expected = Path("outputs.jsonl").read_text()
    runs = interrupt(monkeypatch, 3)
    Path("outputs.jsonl").unlink()
    result = call(*command)
    assert result.exit_code == 130
    assert "3 of 5 sequences are saved in outputs.jsonl.partial; run the same command with --resume" in result.stderr
    assert not Path("outputs.jsonl").exists()
    assert "other conditions" in refused(*command, "--resume", "--seed", 1)
    succeed(*command, "--resume")
    assert runs == [5, 2]
    assert Path("outputs.jsonl").read_text() == expected
    assert list(files.glob("*.partial")) == []


def test_run_is_not_resumed_with_another_dtype_or_other_weights(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(bundled.TARGET, files / "target")
    models = ("--target", "target", "--draft", bundled.DRAFT)
    command = (*RUN, *OUTPUT, "--batch-size", 1, "--temperature", 0, *models)
    interrupt(monkeypatch, 1)
    assert call(*command).exit_code == 130
    assert "other conditions" in refused(*command, "--resume", "--dtype", "float16")
    path = files / "target" / "model.safetensors"
    content = path.read_bytes()
    save_file({name: 1.5 * values for name, values in load_file(path).items()}, path)
    assert "other conditions" in refused(*command, "--resume")
    path.write_bytes(content)
    succeed(*command, "--resume")
    expected = succeed(*RUN, "--prompts", "prompts.jsonl", "--batch-size", 1, "--temperature", 0).stdout
    assert Path("outputs.jsonl").read_text() == expected


def test_batch_that_does_not_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeopt.runtime.models.memory.free_bytes", lambda _: 50e6)
    assert "--batch-size: expected at most " in refused(*RUN, *OUTPUT, "--batch-size", 1024)
