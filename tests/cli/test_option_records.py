"""Headings of `--help`, which options and groups of options name."""

from dataclasses import dataclass, make_dataclass

import click
import pytest
from click.testing import CliRunner

from tests.cli.invented import call
from treeopt.cli.command import MIN_HEADED, Command
from treeopt.cli.options.record import Heading, group, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Few:
    first: int = Heading.OUTPUT.option("--first", type=int, default=3, help="How many.")
    second: int = option("--second", type=int)


MORE = [f"--more{number}" for number in range(MIN_HEADED - 3)]
Many = make_dataclass(
    "Many",
    [
        ("written", str, Heading.OUTPUT.option("--written")),
        ("grouped", Few, group(Few, Heading.PROMPTS)),
        *((flag[2:], int, option(flag, type=int)) for flag in MORE),
    ],
    frozen=True,
    kw_only=True,
)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (Many, {"Options": [*MORE, "--help"], "Prompts": ["--second"], "Output": ["--written", "--first"]}),
        (Few, {"Options": ["--first", "--second", "--help"]}),
    ],
    ids=["many", "few"],
)
def test_help_has_headings_if_options_are_many(record: type, expected: dict[str, list[str]]) -> None:
    command = click.command(cls=Command, record=record)(lambda args: args)
    text = CliRunner().invoke(command, ["--help"]).output
    listed: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            listed[line[:-1]] = []
        elif line.startswith("  -"):
            listed[list(listed)[-1]].append(line.split()[0])
    assert listed == expected
    assert "How many.  [default: 3]" in text


def test_usage_error_of_a_record_shows_the_usage_of_its_command() -> None:
    stderr = call("bench", "methods", "--force").stderr  # refused by the record, after click has parsed the options
    assert "bench methods [OPTIONS]" in stderr
    assert "Error: --force: expected --profile" in stderr
