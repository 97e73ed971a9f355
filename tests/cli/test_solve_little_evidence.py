"""Plans from a handful of outcomes: wide intervals, and no certainty."""

import json

import pytest

from tests.cli.invented import call


def planned(folder, acceptance):
    """Return what `treeopt solve` prints for an imported acceptance."""
    (folder / "acceptance.json").write_text(json.dumps(acceptance), "utf-8")
    (folder / "verify.csv").write_text("tokens,ms\n1,10\n2,10.1\n8,11\n64,14\n", "utf-8")
    (folder / "draft.csv").write_text("tokens,ms\n1,1\n8,1.1\n", "utf-8")
    profile, tree = str(folder / "profile.yaml"), str(folder / "tree.json")
    files = [
        arg
        for option, name in (
            ("--acceptance", "acceptance.json"),
            ("--latency", "verify.csv"),
            ("--draft-latency", "draft.csv"),
        )
        for arg in (option, str(folder / name))
    ]
    for command in (["profile", *files, "-o", profile], ["solve", "--profile", profile, "-o", tree]):
        result = call(*command)
        assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("accepted", [[3, 3, 3], [0]])
def test_three_drafts_are_little_evidence(tmp_path, accepted):
    output = planned(tmp_path, {"num_drafts": 3, "accepted_per_pos": accepted})
    assert "More than 99 % chance" not in output
    assert "(4.00-4.00)" not in output


def test_many_drafts_are_enough(tmp_path):
    assert "More than 99 % chance" in planned(tmp_path, {"num_drafts": 3000, "accepted_per_pos": [3000] * 3})


def test_rates_have_no_certainty(tmp_path):
    output = planned(tmp_path, [1.0, 1.0, 1.0])
    assert "% chance" not in output
    assert "imported without counts" in output
