"""`treeopt bench batches`: with a tree, with a schedule, and with the plan for each batch size."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.invented import call, invented, succeed
from treeopt.files.serialization import serialize_record
from treeopt.profiler.machine import describe_machine
from treeopt.records.machine import Pair
from treeopt.records.profile import Profile
from treeopt.records.step_latency import RuleSteps, TimedTree
from treeopt.trees import Provenance, TokenTree, TreeFile, chain, level_widths
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

TREE = level_widths([2, 1])
SHORT = ("--max-prompts", 12, "--max-new-tokens", 5, "--repeats", 1, "--threads", 1, "-o", "bench.json")
"""Three held-out prompts, and short outputs."""


def profile(conditions: Sequence[tuple[int, int]] = ((256, 1), (256, 4)), *, batched_steps: bool = True) -> Profile:
    """Return an invented profile of the bundled pair."""
    result = invented(conditions=conditions)
    steps = RuleSteps(
        rule="sequoia", trees=tuple(TimedTree(tree=chain(n), steps=result.latencies[0].overhead) for n in (1, 2, 3))
    )
    return replace(
        result,
        pair=Pair(target="bundled target", draft="bundled draft", dtype="float32"),
        latencies=tuple(
            replace(latency, steps=(steps,) if latency.batch_size > 1 and batched_steps else ())
            for latency in result.latencies
        ),
    )


@pytest.fixture(autouse=True)
def files(folder: Path) -> Path:
    profile().save("profile.yaml")
    TreeFile(tree=TREE, provenance=Provenance(rule="sequoia")).save("tree.json")
    TreeSchedule(
        trees=(
            ScheduledTree(first_batch_size=1, last_batch_size=1, tree=TREE),
            ScheduledTree(first_batch_size=2, last_batch_size=4, tree=chain(2)),
        ),
        provenance=Provenance(rule="sequoia"),
    ).save("schedule.json")
    return folder


def rows_of(size: int) -> dict[tuple[int, ...], dict[str, Any]]:
    """Return the results at one batch size by the parents of trees."""
    (content,) = (size_ for size_ in json.loads(Path("bench.json").read_text())["sizes"] if size_["batch_size"] == size)
    return {tuple(row["parents"]): row for row in content["rows"]}


def chosen_at(size: int) -> list[tuple[int, ...]]:
    return [tree for tree, row in rows_of(size).items() if row["chosen"]]


def parents(tree: TokenTree) -> tuple[int, ...]:
    return tuple(tree.parents.tolist())


def test_a_tree_is_compared_with_plain_decoding_at_every_size() -> None:
    result = succeed("bench", "batches", "tree.json", "--batch-sizes", "1,4", *SHORT)
    assert "All outputs are identical to decoding alone, token by token." in result.stdout
    content, here = json.loads(Path("bench.json").read_text()), serialize_record(describe_machine(torch.device("cpu")))
    assert content["machine"] == here
    assert {"target", "draft", "dtype", "target_digest", "draft_digest"} <= set(content["pair"])
    assert result.stdout.startswith(
        f"{content['pair']['target']} + {content['pair']['draft']} on {here['processor']} ({here['threads']} thread"
    )
    for size, sequences in ((1, 4), (4, 4)):  # the first of three prompts is decoded again
        rows = rows_of(size)
        assert list(rows) == [(-1,), parents(TREE)]
        measured = [row["measured"] for row in rows.values()]
        assert all((row["outputs"], row["divergences"]) == (sequences, []) for row in measured)
        assert all(row["tokens_per_s"] > 0 for row in measured)
        assert all(row["predicted"]["speedup"] > 0 for row in rows.values())
        assert measured[0]["batch_tokens_per_step"] == size
        assert 0 < measured[1]["overhead"] < 1


@pytest.mark.slow
def test_a_schedule_chooses_its_tree_for_each_size() -> None:
    succeed("bench", "batches", "schedule.json", "--batch-sizes", "1,2", *SHORT)
    assert {size: chosen_at(size) for size in (1, 2)} == {1: [parents(TREE)], 2: [parents(chain(2))]}
    assert rows_of(1).keys() == rows_of(2).keys() == {(-1,), parents(TREE), parents(chain(2))}


@pytest.mark.slow
def test_the_plan_of_each_size_is_measured_without_a_tree() -> None:
    succeed("bench", "batches", "--batch-sizes", "2", *SHORT, "--max-new-tokens", 8)
    succeed("solve", "--batch-size", "2", "-o", "planned.json")
    assert chosen_at(2) == [tuple(json.loads(Path("planned.json").read_text())["parents"])]


@pytest.mark.parametrize(
    ("measured", "warning"),
    [
        (profile(((256, 1),)), "Warning: no prediction for batch sizes 3: the profile has no times for them."),
        (profile(batched_steps=False), "Warning: the profile has no batched steps"),
        (profile(), ""),
    ],
    ids=["beyond", "no steps", "complete"],
)
def test_missing_times_are_a_warning(monkeypatch: pytest.MonkeyPatch, measured: Profile, warning: str) -> None:
    class ReachedError(Exception):
        pass

    def raise_reached(*_: object) -> None:
        raise ReachedError

    monkeypatch.setattr("treeopt.cli.options.prompts.PromptOptions.load", raise_reached)
    measured.save("profile.yaml")
    result = call("bench", "batches", "tree.json", "--batch-sizes", "3", *SHORT)
    assert isinstance(result.exception, ReachedError), result.output
    assert warning in result.stderr
    assert ("predict" in result.stderr) == bool(warning)
