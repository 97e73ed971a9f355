"""Lines on drafters in the output of `treeopt profile`; the tests of the command cover the others."""

from pathlib import Path

from treeopt.records.profile import Profile
from treeopt.report.profile_text import profile_summary

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "profile-drafters.yaml"
PROFILES = Path(__file__).resolve().parents[2] / "docs" / "profiles"


def test_a_table_for_each_drafter():
    lines = profile_summary(Profile.load(GOLDEN)).splitlines()
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
