"""What docs/guides/plan.md shows is what the command prints."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.invented import FOUR_CONDITIONS, call, invented, solved, solved_json

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(
        r"^```\w*\n(.*?)^```$", (DOCS / "guides" / "plan.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.usefixtures("folder")
def test_the_table_of_the_bundled_pair(blocks: list[str]) -> None:
    printed = call("solve", "--profile", DOCS / "profiles" / "bundled-2-cores.yaml").stdout
    (shown,) = (block for block in blocks if block.startswith("bundled target"))

    assert printed.startswith(shown)
    assert printed[len(shown) :].startswith("\nWritten to tree.json.")


@pytest.mark.usefixtures("folder")
def test_the_table_of_rules(blocks: list[str]) -> None:
    printed = call("solve", "--profile", DOCS / "profiles" / "bundled-2-cores-rules.yaml").stdout
    (shown,) = (block for block in blocks if block.startswith("  rule "))

    assert f"\n\n{shown}" in printed


def test_the_schedule_of_the_invented_machine(blocks: list[str], folder: Path) -> None:
    printed = solved(folder, invented(conditions=FOUR_CONDITIONS))
    (shown,) = (block for block in blocks if block.startswith("What to run where"))

    assert f"\n\n{shown}\n" in printed


def test_the_keys_of_the_object(folder: Path) -> None:
    printed = solved_json(folder, invented())
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "guides" / "plan.md").read_text("utf-8"), re.MULTILINE)

    assert [key for row in rows for key in re.findall(r"`(\w+)`", row)] == list(printed)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_plans_for_texts_of_so_many_tokens() -> None:
    text = (DOCS / "guides" / "plan.md").read_text("utf-8")
    profile = DOCS / "profiles" / "bundled-2-cores-surface.yaml"
    for asked, said in (
        ((), "a chain of {} draft tokens, {} tokens per step and {} times plain decoding"),
        (("--new-tokens", 64), "a chain of {} draft tokens, {} and {}; for 128"),
        (("--new-tokens", 128), "for 128 tokens it is {} draft tokens, {} and {}."),
    ):
        found = json.loads(call("solve", "--profile", profile, "--json", *asked).stdout)
        choice = found["candidates"][found["choice"]]
        numbers = (choice["depth"], f"{choice['tokens_per_step']:.2f}", f"{choice['speedup']:.2f}")
        assert said.format(*numbers) in text, numbers
