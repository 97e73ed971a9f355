"""Start of `treeopt`: help and completion import nothing that they do not need."""

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import treeopt
from treeopt.cli.command import LazyGroup
from treeopt.cli.main import Commands, main

NAMES = list(Commands.subcommands)
HEAVY = "numpy torch numba scipy matplotlib jinja2 yaml tqdm transformers importlib.metadata"
HEAVY_FOR_A_COMMAND = "torch numba matplotlib scipy yaml"


@pytest.fixture
def no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a command is imported."""

    def fail(group: LazyGroup, _: click.Context, name: str) -> click.Command:
        raise AssertionError(f"{name} was imported by {group}")

    monkeypatch.setattr(LazyGroup, "get_command", fail)


@pytest.mark.process
def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from treeopt.cli.main import main\n"
        f"for words, heavy in (['--help'], {HEAVY!r}), (['solve', '--help'], {HEAVY_FOR_A_COMMAND!r}):\n"
        "    main(words, standalone_mode=False)\n"
        "    print('heavy:', *[name for name in heavy.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("heavy:")] == ["heavy:"] * 2
    assert "Commands:" in done.stdout


@pytest.mark.usefixtures("no_import")
def test_help_lists_every_command_with_its_whole_summary() -> None:
    lines = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout.splitlines()
    rows = lines[lines.index("Commands:") + 1 :]
    assert [row.split()[0] for row in rows] == NAMES
    assert all(row.endswith(".") and not row.endswith("..") and len(row) <= 80 for row in rows)


@pytest.mark.usefixtures("no_import")
@pytest.mark.parametrize(
    ("text", "expected"),
    [("", NAMES), ("s", ["solve", "schedule", "show", "simulate"]), ("--", ["--version", "--debug", "--help"])],
)
def test_commands_and_options_are_completed(text: str, expected: list[str]) -> None:
    items = ShellComplete(main, {}, "treeopt", "_T").get_completions([], text)
    assert [item.value for item in items] == expected


def test_every_command_has_the_name_of_its_entry() -> None:
    with main.make_context("treeopt", ["--help"], resilient_parsing=True) as context:
        for name in NAMES:
            command = main.get_command(context, name)
            assert isinstance(command, click.Command)
            assert command.name == name


def test_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"treeopt, version {treeopt.__version__}\n"
