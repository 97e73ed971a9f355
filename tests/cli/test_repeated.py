"""The command that is printed again has the meaning of what was typed."""

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from treeopt.cli.options.values import COUNTS, DURATION
from treeopt.cli.probe import repeat_command

RUNS: list[tuple[dict[str, object], str]] = []
"""Values and printed command of each run."""


@click.command("command")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--stop", multiple=True)
@click.option("--pair", nargs=2, type=int)
@click.option("--sizes", type=COUNTS, default="1")
@click.option("--graphs/--no-graphs", default=None)
@click.option("--chat/--no-chat", "chat", default=True)
@click.option("-q", "--quiet", is_flag=True)
@click.option("--budget", type=DURATION)
def command(**values: object) -> None:
    RUNS.append((values, repeat_command({})))


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
def test_printed_command_is_parsed_as_what_was_typed(words: tuple[str, ...]) -> None:
    group = click.Group("treeopt", {"command": command})
    for _ in range(2):
        result = CliRunner().invoke(group, ["command", *words])
        assert result.exit_code == 0, result.output
        program, _, *words = shlex.split(RUNS[-1][1])
        assert program == "treeopt"
    assert RUNS[-1] == RUNS[-2]


def test_changes_replace_what_was_typed() -> None:
    printed = []

    def changed(**values: object) -> None:
        del values
        printed.append(repeat_command({"sizes": (4,), "quiet": True, "stop": ("x",), "graphs": False}))

    changing = click.Command("command", params=command.params, callback=changed)
    CliRunner().invoke(click.Group("treeopt", {"command": changing}), ["command", "--stop", "a", "--sizes", "1", "p"])
    assert printed == ["treeopt command p --stop x --sizes 4 --no-graphs --quiet"]
