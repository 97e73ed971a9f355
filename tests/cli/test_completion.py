"""The Tab key: formats, engines, rules, drafters and file names, asked for as bash does it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.invented import leaf_commands
from treeopt.cli.main import main
from treeopt.engines import ENGINES
from treeopt.engines.clients.registry import NAMES
from treeopt.methods.names import NAMES as METHODS
from treeopt.records.rules import RULES
from treeopt.trees.formats import FORMATS

FILE = {("file", "")}


def completed(line: str) -> set[tuple[str, str]]:
    """Return the type and value of everything offered for the last word of a line, an empty one behind a blank."""
    words = line.split(" ")
    env = {"_TREEOPT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(main, [], prog_name="treeopt", env=env)
    assert result.stderr == ""
    return {(kind, value) for kind, _, value in (each.partition(",") for each in result.stdout.splitlines() if each)}


def plain(*names: str) -> set[tuple[str, str]]:
    return {("plain", name) for name in names}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("treeopt doc", plain("doctor")),
        ("treeopt export tree.json --to se", plain("sequoia")),
        ("treeopt probe ", plain(*NAMES)),
        ("treeopt probe llama", plain("llama-server")),
        ("treeopt bench ", plain("tree", "grid", "batches", "methods", "engine")),
        ("treeopt bench m", plain("methods")),
        ("treeopt bench batches --batch", plain("--batch-sizes")),
        ("treeopt bench engine op", plain("openvino", "openai")),
        ("treeopt bench grid --rule t", plain("target", "traversal", "typical")),
        ("treeopt profile --rules sp", plain("specinfer")),
        ("treeopt profile --rules sequoia,s", plain("sequoia,specinfer")),
        ("treeopt profile --rules sequoia,", plain(*(f"sequoia,{each}" for each in RULES if each != "sequoia"))),
        ("treeopt bench methods --methods all", plain("all")),
        ("treeopt bench methods --methods se", plain("sequoia")),
        ("treeopt bench methods --methods med", plain("medusa")),
        ("treeopt bench methods --methods medusa,o", plain("medusa,osd")),
        ("treeopt bench methods --methods sequoia,top-k-tree,se", set()),
        ("treeopt solve --drafter med", plain("medusa")),
        ("treeopt bench tree t.json --drafter r", plain("redrafter")),
        ("treeopt run tree.json --device cu", plain("cuda")),
        ("treeopt solve --profile ", FILE),
        ("treeopt solve --profile gallery/", {("file", "gallery/")}),
        ("treeopt show ", FILE),
        ("treeopt run ", FILE),
        ("treeopt profile --target ", FILE),
        ("treeopt probe llama-server --target ", FILE),
        ("treeopt probe llama-server --program ", FILE),
        ("treeopt solve -o ", FILE),
        ("treeopt profile --offload ", {("dir", "")}),
    ],
)
def test_what_is_offered(line: str, expected: set[tuple[str, str]]) -> None:
    assert completed(line) == expected


def test_every_format_and_every_engine_is_offered() -> None:
    offered = {name for _, name in completed("treeopt export tree.json --to ")}
    assert offered >= {each.name for each in FORMATS} | {each.name for each in ENGINES}


def test_every_option_of_a_file_completes_files() -> None:
    """Whatever is called a file, a folder or a path in its help."""
    missing = []
    with main.make_context("treeopt", [], resilient_parsing=True) as context:
        for name, command in leaf_commands().items():
            for param in command.params:
                if param.make_metavar(context).strip("[]") in {"FILE", "PATH", "DIR", "MODEL"}:
                    offered = {each.type for each in param.type.shell_complete(context, param, "")}
                    missing += [(name, param.opts)] if not offered & {"file", "dir"} else []
    assert missing == [("export", ["--draft-model"])]  # what the engine loads, wherever that runs


def test_every_way_of_speculating_is_offered_and_none_twice() -> None:
    assert completed("treeopt bench methods --methods ") == plain("all", *METHODS)
    assert completed("treeopt bench methods --methods chain,") == plain(
        *(f"chain,{each}" for each in ("all", *METHODS) if each != "chain")
    )


def in_bash(folder: Path, script: str) -> list[str]:
    """Return the lines that bash prints of what the Tab key would do, given lines that set words and call `complete`."""
    program = folder / "treeopt"  # bash starts it by its name
    program.write_text(f"#!{sys.executable}\nfrom treeopt.cli.main import main\n\nmain(prog_name='treeopt')\n")
    program.chmod(0o755)
    begin = """
        PATH=$PWD:$PATH
        eval "$(_TREEOPT_COMPLETE=bash_source treeopt)" || exit 1
        compopt() { echo compopt "$@"; }  # only the Tab key itself may call it
        offered() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=(); _treeopt_completion treeopt; }
    """
    done = subprocess.run(["bash", "-c", begin + script], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_in_bash(tmp_path: Path) -> None:
    script = """
        offered treeopt profile --rules sp
        echo "${COMPREPLY[@]}"
        offered treeopt solve --profile "my"
        complete -p treeopt
    """
    assert in_bash(tmp_path, script) == [
        "specinfer",
        "compopt -o default",
        "complete -o nosort -F _treeopt_completion treeopt",
    ]
