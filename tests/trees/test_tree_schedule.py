"""The schedule file: bytes, round trips, and invalid files."""

import json
from pathlib import Path

import pytest

from treeopt.errors import FormatError, InvalidValueError
from treeopt.trees import Provenance, TokenTree, chain
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule, load_schedule


def scheduled(first: int, last: int, tree: TokenTree) -> ScheduledTree:
    return ScheduledTree(first_batch_size=first, last_batch_size=last, tree=tree)


SCHEDULE = TreeSchedule(
    trees=(scheduled(1, 2, TokenTree([-1, 0, 0, 1])), scheduled(3, 3, chain(2)), scheduled(4, 8, chain(0))),
    provenance=Provenance(tool="treeopt 0.1.0", rule="sequoia", temperature=0.6),
)
TEXT = """{
  "format": "treeopt-schedule",
  "version": 1,
  "trees": [
    {"first_batch_size": 1, "last_batch_size": 2, "parents": [-1, 0, 0, 1]},
    {"first_batch_size": 3, "last_batch_size": 3, "parents": [-1, 0, 1]},
    {"first_batch_size": 4, "last_batch_size": 8, "parents": [-1]}
  ],
  "provenance": {"tool": "treeopt 0.1.0", "rule": "sequoia", "temperature": 0.6}
}
"""


def test_save_and_load_schedule(tmp_path: Path) -> None:
    SCHEDULE.save(tmp_path / "schedule.json")

    assert (tmp_path / "schedule.json").read_text("utf-8") == TEXT
    assert load_schedule(tmp_path / "schedule.json") == SCHEDULE


def test_every_batch_size_has_its_tree() -> None:
    nodes = [SCHEDULE.tree(batch_size).nodes for batch_size in range(1, 11)]

    assert nodes == [4, 4, 3, 1, 1, 1, 1, 1, 1, 1]  # beyond 8, as for 8
    with pytest.raises(InvalidValueError, match=r"batch_size: expected at least 1\. Got 0"):
        SCHEDULE.tree(0)


@pytest.mark.parametrize(
    "ranges", [[], [(2, 3)], [(1, 2), (4, 5)], [(1, 3), (3, 4)], [(1, 0)], [(1, 2), (3, 2)]], ids=str
)
def test_gaps_and_overlaps_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidValueError, match=r"plan again\.$"):
        TreeSchedule(trees=tuple(scheduled(first, last, chain(1)) for first, last in ranges))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": "treeopt-tree"}, "format"),
        ({"version": 2}, "version"),
        ({"trees": []}, "trees"),
        ({"trees": [{"first_batch_size": 1, "last_batch_size": 2}]}, "trees[0].parents"),
        ({"trees": [{"first_batch_size": 1, "last_batch_size": 2, "parents": [0]}]}, "trees[0].parents"),
        ({"trees": [{"first_batch_size": 1, "last_batch_size": 2, "parents": [-1], "more": 1}]}, "trees[0].more"),
        ({"trees": [{"first_batch_size": 2, "last_batch_size": 2, "parents": [-1]}]}, "trees"),
        ({"trees": [{"first_batch_size": 1.5, "last_batch_size": 2, "parents": [-1]}]}, "trees[0].first_batch_size"),
        ({"more": 1}, "more"),
    ],
)
def test_a_wrong_file_is_named_with_its_field(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(json.loads(TEXT) | change), "utf-8")

    with pytest.raises(FormatError) as caught:
        load_schedule(path)
    assert caught.value.field == field
