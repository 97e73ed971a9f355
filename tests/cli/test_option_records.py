"""Options made from records: a command receives one frozen record, whatever records lie within."""

from dataclasses import FrozenInstanceError, dataclass, make_dataclass

import click
import pytest
from click.testing import CliRunner

from treeopt.cli.command import MIN_HEADED, Command
from treeopt.cli.options.record import Heading, argument, group, is_given, option, options


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    inner: str | None = option("--inner", help="Within.")
    count: int = option("--count", type=int, default=3, show_default=True, help="How many.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    tree: str = argument()
    path: str = option("-o", "--output", default="a.txt", help="Out.")
    within: Inner = group(Inner)
    flag: bool = option("--flag", is_flag=True, help="On.")
    kept: int = 7

    def __post_init__(self) -> None:
        if self.flag and self.within.count == 3:
            raise click.UsageError("--flag: expected another count. Give --count.")


def received(*words: str) -> tuple[Outer | None, click.testing.Result]:
    records: list[Outer] = []
    command = click.command()(options(Outer)(lambda args: records.append(args)))
    result = CliRunner().invoke(command, words)
    return (records[0] if records else None), result


def test_a_command_receives_one_record_of_all_that_was_typed() -> None:
    found, _ = received("tree.json", "--inner", "x", "--count", "5", "--flag", "-o", "b.txt")
    assert found == Outer(tree="tree.json", path="b.txt", within=Inner(inner="x", count=5), flag=True, kept=7)
    with pytest.raises(FrozenInstanceError):
        found.path = "c.txt"


def test_defaults() -> None:
    found, _ = received("tree.json")
    assert found == Outer(tree="tree.json", path="a.txt", within=Inner(inner=None, count=3), flag=False)


@pytest.mark.parametrize(("words", "expected"), [((), False), (("--count", "3"), True)])
def test_given_options(words: tuple[str, ...], expected: bool) -> None:
    given: list[bool] = []
    command = click.command()(options(Inner)(lambda args: given.append(args is not None and is_given("count"))))
    CliRunner().invoke(command, words)
    assert given == [expected]


def test_options_stand_in_help_in_the_order_of_fields() -> None:
    _, result = received("--help")
    lines = [line.split()[0] for line in result.output.splitlines() if line.startswith("  -")]
    assert lines == ["-o,", "--inner", "--count", "--flag", "--help"]
    assert "How many.  [default: 3]" in result.output


def test_what_a_record_refuses_is_a_usage_error() -> None:
    found, result = received("tree.json", "--flag")
    assert (found, result.exit_code) == (None, 2)
    assert "--flag: expected another count. Give --count." in result.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    first: int = option("--first", type=int, heading=Heading.OUTPUT)
    second: int = option("--second", type=int)


Many = make_dataclass(
    "Many",
    [
        ("written", str, option("--written", heading=Heading.OUTPUT)),
        ("grouped", Grouped, group(Grouped, Heading.PROMPTS)),
        *((f"more{n}", int, option(f"--more{n}", type=int)) for n in range(MIN_HEADED - 3)),
    ],
    frozen=True,
    kw_only=True,
)


def listed(record: type) -> dict[str, list[str]]:
    """Return the options that `--help` lists under each heading."""
    command = click.command(cls=Command)(options(record)(lambda args: args))
    found: dict[str, list[str]] = {}
    for line in CliRunner().invoke(command, ["--help"]).output.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            found[line[:-1]] = []
        elif line.startswith("  -"):
            found[list(found)[-1]].append(line.split()[0])
    return found


def test_help_has_headings_in_their_order_and_those_of_groups() -> None:
    assert listed(Many) == {
        "Options": [*(f"--more{n}" for n in range(MIN_HEADED - 3)), "--help"],
        "Prompts": ["--second"],
        "Output": ["--written", "--first"],
    }


def test_few_options_have_one_heading() -> None:
    assert listed(Grouped) == {"Options": ["--first", "--second", "--help"]}
