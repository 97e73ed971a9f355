"""The lines that `treeopt profile` prints of drafters; all others are in the tests of the command."""

from pathlib import Path

from treeopt.records.profile import Profile
from treeopt.report.profile_text import summary

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "profile-drafters.yaml"


def test_a_line_for_each_drafter_and_setting():
    lines = summary(Profile.load(GOLDEN)).splitlines()
    assert "medusa at temperature 0: rank 0 at depth 1 accepted 0.556, 9 positions" in lines
    (drafting,) = (line for line in lines if line.startswith("medusa 4 levels, ms"))
    assert drafting.split()[-1] == "0.200"
    name = "prompt-lookup: length 4, ngram 2 at temperature 0"
    assert f"{name}: 1.60 tokens a step on 3 texts, a step took 1.14 times a plain one on 2 texts" in lines
    assert sum("prompt-lookup" in line for line in lines) == 3
