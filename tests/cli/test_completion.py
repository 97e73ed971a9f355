"""Help and completion: what bash requests is offered, and nothing is imported that is not needed."""

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import treeopt
from tests.cli.invented import leaf_commands
from treeopt.cli.command import LazyGroup
from treeopt.cli.main import Commands, main
from treeopt.engines import ENGINES
from treeopt.engines.clients.registry import NAMES
from treeopt.methods.names import NAMES as METHODS
from treeopt.records.rules import RULES
from treeopt.trees.formats import FORMATS

FILE = {("file", "")}


def completed(line: str) -> set[tuple[str, str]]:
    """Return type and value of everything that is offered for the last word of a line, which may be empty."""
    words = line.split(" ")
    env = {"_TREEOPT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(main, [], prog_name="treeopt", env=env)
    assert result.stderr == ""
    return {(kind, value) for kind, _, value in (row.partition(",") for row in result.stdout.splitlines() if row)}


def plain(*names: str) -> set[tuple[str, str]]:
    return {("plain", name) for name in names}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("treeopt export tree.json --to se", plain("sequoia")),
        ("treeopt probe ", plain(*NAMES)),
        ("treeopt bench ", plain("tree", "grid", "batches", "methods", "engine")),
        ("treeopt bench batches --batch", plain("--batch-sizes")),
        ("treeopt bench engine op", plain("openvino", "openai")),
        ("treeopt bench grid --rule t", plain("target", "traversal", "typical")),
        ("treeopt profile --rules sequoia,s", plain("sequoia,specinfer")),
        ("treeopt profile --rules sequoia,", plain(*(f"sequoia,{rule}" for rule in RULES if rule != "sequoia"))),
        ("treeopt bench methods --methods ", plain("all", *METHODS)),
        ("treeopt bench methods --methods sequoia,top-k-tree,se", set()),
        ("treeopt bench tree t.json --drafter r", plain("redrafter")),
        ("treeopt run tree.json --device cu", plain("cuda")),
        ("treeopt solve --profile ", FILE),
        ("treeopt solve --profile gallery/", {("file", "gallery/")}),
        ("treeopt run ", FILE),
        ("treeopt profile --offload ", {("dir", "")}),
    ],
)
def test_values_are_completed(line: str, expected: set[tuple[str, str]]) -> None:
    assert completed(line) == expected


def test_every_format_and_every_engine_is_offered() -> None:
    offered = {name for _, name in completed("treeopt export tree.json --to ")}
    assert offered >= {target.name for target in (*FORMATS, *ENGINES)}


def test_every_option_of_a_file_completes_files() -> None:
    missing = []
    with main.make_context("treeopt", [], resilient_parsing=True) as context:
        for name, command in leaf_commands().items():
            for param in command.params:
                if param.make_metavar(context).strip("[]") in {"FILE", "PATH", "DIR", "MODEL"}:
                    types = {item.type for item in param.type.shell_complete(context, param, "")}
                    missing += [(name, param.opts)] if not types & {"file", "dir"} else []
    assert missing == [("export", ["--draft-model"])]  # loaded by an engine, on whatever machine that runs


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_values_and_files(tmp_path: Path) -> None:
    program = tmp_path / "treeopt"
    program.write_text(f"#!{sys.executable}\nfrom treeopt.cli.main import main\n\nmain(prog_name='treeopt')\n")
    program.chmod(0o755)
    script = """
        PATH=$PWD:$PATH
        eval "$(_TREEOPT_COMPLETE=bash_source treeopt)" || exit 1
        compopt() { echo compopt "$@"; }  # only the Tab key itself may call it
        complete_words() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=(); _treeopt_completion treeopt; }
        complete_words treeopt profile --rules sp
        echo "${COMPREPLY[@]}"
        complete_words treeopt solve --profile "my"
        complete -p treeopt
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "specinfer",
        "compopt -o default",
        "complete -o nosort -F _treeopt_completion treeopt",
    ]


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
