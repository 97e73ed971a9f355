"""docs/guides/plan.md and docs/guides/profile.md show the outputs of the commands."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.invented import FOUR_CONDITIONS, call, invented, solved, solved_json
from treeopt.records.profile import Profile
from treeopt.report.profile_text import profile_summary

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(
        r"^```\w*\n(.*?)^```$", (DOCS / "guides" / "plan.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


def test_guide_shows_the_summary_of_a_profile() -> None:
    printed = profile_summary(Profile.load(DOCS / "profiles" / "bundled-2-cores-outcomes.yaml"))

    assert f"```\n{printed}\n```" in (DOCS / "guides" / "profile.md").read_text("utf-8")


@pytest.mark.usefixtures("folder")
def test_guide_shows_the_table_of_the_bundled_pair(blocks: list[str]) -> None:
    printed = call("solve", "--profile", DOCS / "profiles" / "bundled-2-cores.yaml").stdout
    (shown,) = (block for block in blocks if block.startswith("bundled target"))

    assert printed.startswith(shown)
    assert printed[len(shown) :].startswith("\nWritten to tree.json.")


@pytest.mark.usefixtures("folder")
def test_guide_shows_the_table_of_rules(blocks: list[str]) -> None:
    printed = call("solve", "--profile", DOCS / "profiles" / "bundled-2-cores-rules.yaml").stdout
    (shown,) = (block for block in blocks if block.startswith("  rule "))

    assert f"\n\n{shown}" in printed


def test_guide_shows_the_schedule_of_the_invented_machine(blocks: list[str], folder: Path) -> None:
    printed = solved(folder, invented(conditions=FOUR_CONDITIONS))
    (shown,) = (block for block in blocks if block.startswith("What to run where"))

    assert f"\n\n{shown}\n" in printed


def test_guide_lists_keys_of_the_json(folder: Path) -> None:
    printed = solved_json(folder, invented())
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "guides" / "plan.md").read_text("utf-8"), re.MULTILINE)

    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert len(keys) > 10
    assert keys <= set(printed)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("shown", "options"), [("as measured", ()), ("64", ("--new-tokens", 64))])
def test_guide_shows_plans_for_short_outputs(shown: str, options: tuple[object, ...]) -> None:
    profile = DOCS / "profiles" / "bundled-2-cores-surface.yaml"
    plan = json.loads(call("solve", "--profile", profile, "--json", *options).stdout)

    choice = plan["candidates"][plan["choice"]]
    fastest = f"a {plan['choice']} of {choice['depth']} draft tokens"
    row = f"| {shown} | {fastest} | {choice['tokens_per_step']:.2f} | {choice['speedup']:.2f} |"
    assert row in (DOCS / "guides" / "plan.md").read_text("utf-8")
