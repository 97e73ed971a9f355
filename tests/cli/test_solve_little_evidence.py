"""Plans from few counted outcomes: wide intervals, and no certainty."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import succeed


def solve_imported(folder: Path, acceptance: object) -> str:
    """Return the output of `treeopt solve` for an imported acceptance."""
    (folder / "acceptance.json").write_text(json.dumps(acceptance), "utf-8")
    (folder / "verify.csv").write_text("tokens,ms\n1,10\n2,10.1\n8,11\n64,14\n", "utf-8")
    (folder / "draft.csv").write_text("tokens,ms\n1,1\n8,1.1\n", "utf-8")
    succeed("profile", "--acceptance", "acceptance.json", "--latency", "verify.csv", "--draft-latency", "draft.csv")
    return succeed("solve").output


@pytest.mark.parametrize("accepted", [[3, 3, 3], [0]])
def test_three_drafts_are_little_evidence(folder: Path, accepted: list[int]) -> None:
    output = solve_imported(folder, {"num_drafts": 3, "accepted_per_pos": accepted})
    assert "More than 99 % chance" not in output
    assert "(4.00-4.00)" not in output


def test_many_drafts_are_enough(folder: Path) -> None:
    output = solve_imported(folder, {"num_drafts": 3000, "accepted_per_pos": [3000] * 3})
    assert "More than 99 % chance" in output


def test_rates_have_no_certainty(folder: Path) -> None:
    output = solve_imported(folder, [1.0, 1.0, 1.0])
    assert "% chance" not in output
    assert "imported without counts" in output
