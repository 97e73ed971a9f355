"""Values of options, and the headings of `--help` that options and groups of options name."""

from dataclasses import dataclass, make_dataclass

import click
import pytest
from click.testing import CliRunner

from tests.cli.invented import call
from treeopt.cli.command import MIN_HEADED, Command
from treeopt.cli.options.record import Heading, group, option
from treeopt.cli.options.values import COUNTS, DURATION, TEMPERATURES

VALID = [
    (COUNTS, "256", (256,)),
    (COUNTS, " 1024 , 256 ", (1024, 256)),
    (COUNTS, "01,2", (1, 2)),
    (TEMPERATURES, "0", (0.0,)),
    (TEMPERATURES, "0,0.6,1e0", (0.0, 0.6, 1.0)),
    (DURATION, "90", 90.0),
    (DURATION, "250ms", 0.25),
    (DURATION, "90s", 90.0),
    (DURATION, "3m", 180.0),
    (DURATION, "1.5h", 5400.0),
]
INVALID = {
    COUNTS: ["", "256,", "0", "-1", "1.5", "256,256", "1;2", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 10],
    TEMPERATURES: ["", "warm", "1_0", "\N{ARABIC-INDIC DIGIT ONE}", "-0.1", "nan", "inf", "0,0.0", "0.6,,1", "1e999"],
    DURATION: ["", "0s", "-3s", "3d", "3 m", "m", "1h30m", "1e3", "nan", ".5s", "9" * 400],
}


@pytest.mark.parametrize(("kind", "text", "value"), VALID)
def test_valid_text_is_converted_once(kind, text, value):
    assert kind.convert(text, None, None) == value
    assert kind.convert(value, None, None) == value


@pytest.mark.parametrize("kind", INVALID, ids=lambda kind: kind.name)
def test_invalid_text_is_refused_with_an_example(kind):
    for text in INVALID[kind]:
        with pytest.raises(click.BadParameter, match=r"expected .* such as .* Got"):
            kind.convert(text, None, None)


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
