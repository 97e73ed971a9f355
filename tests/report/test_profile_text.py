"""Lines on drafters in the output of `treeopt profile`, and parts of a step in that of `treeopt probe`."""

from pathlib import Path

import pytest

from tests.planner.test_step_parts import latencies
from treeopt.planner.step_parts import step_parts
from treeopt.records.profile import Profile
from treeopt.report.probe_text import part_lines
from treeopt.report.profile_text import profile_summary

DATA = Path(__file__).resolve().parents[1] / "data"
PROFILES = Path(__file__).resolve().parents[2] / "docs" / "profiles"


def test_every_drafter_has_a_table():
    lines = profile_summary(Profile.load(DATA / "profile-drafters.yaml")).splitlines()
    assert "medusa at temperature 0: rank 0 at depth 1 accepted 0.556, 9 positions" in lines
    (drafting,) = (line for line in lines if line.startswith("medusa 4 levels, ms"))
    assert drafting.split()[-1] == "0.200"
    header = lines.index("prompt-lookup at temperature 0") + 1
    assert lines[header].split() == ["setting", "tokens/step", "sequences", "step/plain", "step", "sequences"]
    assert lines[header + 1].split() == ["length", "4,", "ngram", "2", "1.60", "3", "1.14", "2"]


def test_steps_shorter_than_their_passes_have_no_overhead():
    profile = Profile.load(PROFILES / "nvidia-h200-smollm2-135m-bfloat16.yaml")
    greedy, sampled = (line for line in profile_summary(profile).splitlines() if line.startswith("overhead of a step"))
    assert greedy.endswith("none: whole steps are 0.132 ms shorter than their passes timed alone")
    assert sampled.endswith("1.27 ms")


@pytest.mark.parametrize(
    ("batch_sizes", "lengths", "rows", "missing"),
    [
        (
            [1],
            [0, 1, 3],
            [],
            "fixed cost of speculation, overhead of a step, drafting one token, verification. To measure the fixed cost of speculation, probe with --batch-sizes 1,2,4 --lengths 0,1,3,7.",
        ),
        (
            [1, 2, 4],
            [0, 1, 3, 7],
            ["fixed cost of speculation  500  500-500"],
            "overhead of a step, drafting one token, verification. Only engines that report their passes determine them.",
        ),
    ],
)
def test_parts_that_steps_do_not_determine_are_named(batch_sizes, lengths, rows, missing):
    *table, last = part_lines(step_parts(latencies(batch_sizes, lengths)))
    assert [line.split() for line in table[1:]] == [row.split() for row in rows]
    assert last == f"Not determined by these steps: {missing}"


def test_passes_determine_all_parts():
    lines = part_lines(step_parts(latencies([1], [0, 1], passes=True)))
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "fixed cost of speculation",
        "overhead of a step, 1 sequence",
        "drafting one token, 1 sequence",
        "verification, 1 token",
        "verification, 2 tokens",
    ]
