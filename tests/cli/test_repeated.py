"""The command that is printed again means what was typed: it is parsed again, and everything is as before."""

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from treeopt.cli.options.values import COUNTS, DURATION
from treeopt.cli.probe import repeat_command

SEEN: list[dict[str, object]] = []
PRINTED: list[str] = []


@click.group()
def group() -> None:
    pass


@group.command("command")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--stop", multiple=True)
@click.option("--pair", nargs=2, type=int)
@click.option("--sizes", type=COUNTS, default="1")
@click.option("--graphs/--no-graphs", default=None)
@click.option("--chat/--no-chat", "chat", default=True)
@click.option("-q", "--quiet", is_flag=True)
@click.option("--budget", type=DURATION)
def command(**values: object) -> None:
    SEEN.append(values)
    PRINTED.append(repeat_command({}))


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("a b", "c"),
        ("--stop", "one, two", "--stop", "it's"),
        ("--pair", "3", "4", "a"),
        ("--sizes", "1,2,8"),
        ("--graphs", "--chat"),
        ("--no-graphs", "--no-chat"),
        ("-q", "--budget", "90s"),
    ],
    ids=" ".join,
)
def test_it_is_parsed_as_what_was_typed(words: tuple[str, ...]) -> None:
    for again in (("command", *words), None):
        told = shlex.split(PRINTED[-1]) if again is None else ["treeopt", *again]
        assert told[0] == "treeopt"
        result = CliRunner().invoke(group, told[1:])
        assert result.exit_code == 0, result.output
    assert SEEN[-1] == SEEN[-2]
    assert PRINTED[-1] == PRINTED[-2]


def test_changes_replace_what_was_typed() -> None:
    def changed(**values: object) -> None:
        del values
        PRINTED.append(repeat_command({"sizes": (4,), "quiet": True, "stop": ("x",), "graphs": False}))

    changing = click.Command("command", params=command.params, callback=changed)
    CliRunner().invoke(click.Group("treeopt", {"command": changing}), ["command", "--stop", "a", "--sizes", "1", "p"])
    assert PRINTED[-1] == "treeopt command p --stop x --sizes 4 --no-graphs --quiet"
