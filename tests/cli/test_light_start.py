"""`treeopt --help` and completion: all commands, and nothing imported that they do not need."""

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import treeopt
from tests.cli.invented import COMMANDS
from treeopt.cli.command import LazyGroup
from treeopt.cli.main import Commands, main

HEAVY = [
    "numpy",
    "torch",
    "numba",
    "scipy",
    "matplotlib",
    "jinja2",
    "yaml",
    "tqdm",
    "transformers",
    "importlib.metadata",
]


@pytest.fixture
def no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a command is imported."""

    def refuse(group: LazyGroup, _: click.Context, name: str) -> click.Command:
        raise AssertionError(f"{name} was imported by {group}")

    monkeypatch.setattr(LazyGroup, "get_command", refuse)


@pytest.mark.process
def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from treeopt.cli.main import main; main(['--help'], standalone_mode=False); "
        f"print('heavy:', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy:"
    assert "Commands:" in done.stdout


@pytest.mark.usefixtures("no_import")
def test_help_lists_every_command_in_the_order_of_use_with_its_summary_uncut() -> None:
    lines = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout.splitlines()
    listed = lines[lines.index("Commands:") + 1 :]
    assert [line.split()[0] for line in listed] == COMMANDS
    assert all(line.endswith(".") and not line.endswith("..") and len(line) <= 80 for line in listed)


@pytest.mark.usefixtures("no_import")
def test_completion_of_commands_and_options() -> None:
    def completed(*typed: str) -> list[str]:
        arguments, incomplete = list(typed[:-1]), typed[-1]
        return [each.value for each in ShellComplete(main, {}, "treeopt", "_T").get_completions(arguments, incomplete)]

    assert completed("") == COMMANDS
    assert completed("s") == ["solve", "schedule", "show", "simulate"]
    assert completed("--") == ["--version", "--debug", "--help"]


def test_completion_of_a_commands_options() -> None:
    found = ShellComplete(main, {}, "treeopt", "_T").get_completions(["solve"], "--budg")
    assert [each.value for each in found] == ["--budget"]


def test_every_command_is_where_it_is_said_to_be() -> None:
    with main.make_context("treeopt", ["--help"], resilient_parsing=True) as context:
        assert list(Commands.subcommands) == COMMANDS == main.list_commands(context)
        for name in COMMANDS:
            command = main.get_command(context, name)
            assert isinstance(command, click.Command)
            assert command.name == name
            result = CliRunner().invoke(main, [name, "--help"])
            assert result.exit_code == 0
            assert f"{name} [OPTIONS]" in result.stdout


def test_a_command_that_is_not_there() -> None:
    result = CliRunner().invoke(main, ["solv"])
    assert result.exit_code == 2
    assert "No such command 'solv'." in result.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"treeopt, version {treeopt.__version__}\n"
