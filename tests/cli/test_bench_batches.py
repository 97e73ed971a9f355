"""`treeopt bench batches`: a tree, a schedule, or what is planned for each size, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.invented import call, invented
from treeopt.files.serialization import serialize_record
from treeopt.profiler.machine import describe_machine
from treeopt.records.machine import Pair
from treeopt.records.profile import Profile
from treeopt.records.step_latency import RuleSteps, TimedTree
from treeopt.trees import Provenance, TokenTree, TreeFile, chain, level_widths
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

TREE = level_widths([2, 1])
SHORT = ("--max-prompts", 12, "--max-new-tokens", 8, "--repeats", 1, "--threads", 1, "-o", "found.json")
"""Three prompts that are kept for benchmarks, and short texts."""


def profile(conditions: Sequence[tuple[int, int]] = ((256, 1), (256, 4))) -> Profile:
    """Return an invented profile of the bundled pair, with whole steps of batches."""
    made = invented(conditions=conditions)
    steps = RuleSteps(
        rule="sequoia", trees=tuple(TimedTree(tree=chain(n), steps=made.latencies[0].overhead) for n in (1, 2, 3))
    )
    return replace(
        made,
        pair=Pair(target="bundled target", draft="bundled draft", dtype="float32"),
        latencies=tuple(replace(each, steps=(steps,) if each.batch_size > 1 else ()) for each in made.latencies),
    )


OLD = profile()
"""With steps; without them it is one that was measured before batched steps were timed."""


@pytest.fixture
def files(folder: Path) -> Path:
    profile().save("profile.yaml")
    TreeFile(tree=TREE, provenance=Provenance(rule="sequoia")).save("tree.json")
    TreeSchedule(
        trees=(
            ScheduledTree(first_texts=1, last_texts=1, tree=TREE),
            ScheduledTree(first_texts=2, last_texts=4, tree=chain(2)),
        ),
        provenance=Provenance(rule="sequoia"),
    ).save("schedule.json")
    return folder


def settings(size: int) -> dict[tuple[int, ...], dict[str, Any]]:
    """Return what was found of each tree at one batch size."""
    (found,) = (each for each in json.loads(Path("found.json").read_text())["sizes"] if each["batch_size"] == size)
    return {tuple(each["parents"]): each for each in found["rows"]}


def parents(tree: TokenTree) -> tuple[int, ...]:
    return tuple(tree.parents.tolist())


def test_a_tree_is_raced_with_plain_decoding_at_every_size(files: Path) -> None:
    result = call("bench", "batches", "tree.json", "--batch-sizes", "1,3", *SHORT, "--max-new-tokens", 5)
    assert result.exit_code == 0, result.output
    assert "All outputs are identical to decoding alone, token by token." in result.stdout
    content, here = json.loads(Path("found.json").read_text()), serialize_record(describe_machine(torch.device("cpu")))
    assert content["machine"] == here
    assert {"target", "draft", "dtype", "target_digest", "draft_digest"} <= set(content["pair"])
    assert result.stdout.startswith(
        f"{content['pair']['target']} + {content['pair']['draft']} on {here['processor']} ({here['threads']} thread"
    )
    for size in (1, 3):
        found = settings(size)
        assert list(found) == [(-1,), parents(TREE)]
        measured = {tree: each["measured"] for tree, each in found.items()}
        assert all((each["texts"], each["divergences"]) == (3, []) for each in measured.values())
        assert all(each["tokens_per_s"] > 0 for each in measured.values())
        assert all(each["predicted_tokens_per_s"] > 0 for each in found.values())
        assert measured[-1,]["batch_tokens_per_step"] == size
        assert 0 < measured[parents(TREE)]["overhead"] < 1
    assert files.exists()


def test_prompts_are_taken_again_where_a_batch_has_more_texts(files: Path) -> None:
    result = call("bench", "batches", "tree.json", "--batch-sizes", "4", *SHORT, "--max-new-tokens", 5)
    assert result.exit_code == 0, result.output
    assert {each["measured"]["texts"] for each in settings(4).values()} == {4}  # of 3 prompts
    assert files.exists()


@pytest.mark.slow
def test_a_schedule_names_its_tree_for_each_size(files: Path) -> None:
    assert call("bench", "batches", "schedule.json", "--batch-sizes", "1,2", *SHORT).exit_code == 0
    chosen = {size: [tree for tree, each in settings(size).items() if each["chosen"]] for size in (1, 2)}
    assert chosen == {1: [parents(TREE)], 2: [parents(chain(2))]}
    assert settings(1).keys() == settings(2).keys() == {(-1,), parents(TREE), parents(chain(2))}
    assert files.exists()


@pytest.mark.slow
def test_without_a_tree_the_plan_of_each_size_is_raced(files: Path) -> None:
    result = call("bench", "batches", "--batch-sizes", "2", *SHORT)
    assert result.exit_code == 0, result.output
    assert call("solve", "--batch-size", "2", "-o", "planned.json").exit_code == 0
    planned = tuple(json.loads((files / "planned.json").read_text())["parents"])
    assert [tree for tree, each in settings(2).items() if each["chosen"]] == [planned]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("tree.json", "--batch-sizes", "0"),
            2,
            "expected whole numbers of at least 1, each once, such as 256,1024. Got '0'",
        ),
        (("tree.json", "--batch-sizes", "2,2"), 2, "each once"),
        (("schedule.json",), 2, "Missing option '--batch-sizes'"),
        (
            ("gaps.json", "--batch-sizes", "2", *SHORT),
            1,
            "gaps.json: trees: expected trees for batch sizes 1, 2, … without gaps",
        ),
        (
            ("medusa.json", "--batch-sizes", "2", *SHORT),
            2,
            "expected a tree of the draft model. Got one of medusa",
        ),
        (("--batch-sizes", "1,16", *SHORT), 1, "batch 16 was not measured"),
        (("none.json", "--batch-sizes", "1"), 1, "none.json: no such file"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(files: Path, words: tuple[object, ...], code: int, said: str) -> None:
    gaps = json.loads((files / "schedule.json").read_text())
    gaps["trees"][1]["first_texts"] = 3
    (files / "gaps.json").write_text(
        '{"format": "treeopt-schedule", ' + json.dumps(gaps)[1:].replace('"format": "treeopt-schedule", ', "", 1)
    )
    TreeFile(tree=TREE, drafter=DrafterSetting(name="medusa")).save("medusa.json")
    result = call("bench", "batches", *words)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert result.stdout == ""
    assert not (files / "found.json").exists()


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (
            profile(((256, 1),)),
            "Warning: no prediction for batch sizes 3: the profile has no times for them.",
        ),
        (
            replace(OLD, latencies=tuple(replace(each, steps=()) for each in OLD.latencies)),
            "Warning: the profile has no batched steps",
        ),
        (OLD, ""),
    ],
    ids=["beyond", "old", "whole"],
)
def test_what_the_profile_does_not_have_is_warned_of(
    files: Path, monkeypatch: pytest.MonkeyPatch, measured: Profile, said: str
) -> None:
    class ReachedError(Exception):
        pass

    def reached(*_: object) -> None:
        raise ReachedError

    monkeypatch.setattr("treeopt.cli.options.prompts.PromptOptions.load", reached)
    measured.save(files / "profile.yaml")
    result = call("bench", "batches", "tree.json", "--batch-sizes", "3", *SHORT)
    assert isinstance(result.exception, ReachedError), result.output
    assert said in result.stderr
    assert ("predict" in result.stderr) == bool(said)
