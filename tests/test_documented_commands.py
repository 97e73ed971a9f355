"""Commands on the pages exist and have the options shown."""

import ast
import re
from pathlib import Path

import click

from tests.scripts import ROOT
from tests.test_mentions import SCRIPTS, pages
from treeopt.cli.main import main
from treeopt.cli.options.pair import pair_options

FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"^(?:\$ |time |[A-Z_]+=\S+ )*(treeopt|python) (.*?)(?: *#.*)?$", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def shown() -> list[tuple[Path, str, str]]:
    """Return every command of every page, from blocks that begin with one and from inline code."""
    found = []
    for page in pages():
        text = page.read_text("utf-8").replace("\\\n", " ")
        blocks = [block for block in FENCE.findall(text) if COMMAND.match(block)]
        for code in (*blocks, *INLINE.findall(FENCE.sub("", text))):
            found += [(page, program, rest) for program, rest in COMMAND.findall(code)]
    return found


def options_of(words: str) -> set[str] | None:
    """Return the options of the command that words begin with; None where there is none.

    Inline code may name `treeopt bench` alone, which stands for all of its subcommands.
    """
    command: click.Command = main
    for word in words.split():
        if not isinstance(command, click.Group) or word.startswith("-") or word.isupper():
            break
        subcommand = command.get_command(click.Context(command), word)
        if subcommand is None:
            return None
        command = subcommand
    return {"--help", "-h"} | {flag for each in command.params for flag in each.opts + each.secondary_opts}


def script_options(path: Path) -> set[str]:
    """Return the options in the source of a script: strings that begin with dashes, and those of a shared parser it uses."""
    source = path.read_text("utf-8")
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    found = {each for each in texts if isinstance(each, str) and each.startswith("-")}
    if "parse_arguments(" in source and path.name != DISTILLATION.name:
        found |= script_options(DISTILLATION)
    if "from head_training import" in source:
        found |= script_options(HEADS)
    return found | (PAIR if "pair_options" in source else set())


DISTILLATION = ROOT / "tools" / "distillation.py"
HEADS = ROOT / "tools" / "head_training.py"
PAIR = {flag for each in click.command("pair")(pair_options(print)).params for flag in each.opts}


def faults(page: Path, program: str, rest: str) -> list[str]:
    where, name = f"{page.relative_to(ROOT)}: {program} {rest}", rest.split()[0]
    if program == "treeopt" and re.fullmatch("[a-z]+", name):
        known = options_of(rest)
    elif name.startswith(SCRIPTS) and "NAME" not in name:
        known = script_options(ROOT / name) if (ROOT / name).is_file() else None
    else:
        return []
    if known is None:
        return [f"{where}: no such command"]
    return [f"{where}: {flag}" for flag in FLAG.findall(rest) if flag not in known]


def test_documented_commands_exist():
    found = shown()
    assert len(found) > 100
    assert [fault for each in found for fault in faults(*each)] == []


def test_missing_commands_are_detected():
    """Negative control."""
    page = ROOT / "README.md"
    assert faults(page, "treeopt", "bench methods --methods all --heat 3") == [
        "README.md: treeopt bench methods --methods all --heat 3: --heat"
    ]
    assert faults(page, "treeopt", "bench tree.json") == ["README.md: treeopt bench tree.json: no such command"]
    assert faults(page, "treeopt", "bench race") == ["README.md: treeopt bench race: no such command"]
    assert faults(page, "treeopt", "race tree.json") == ["README.md: treeopt race tree.json: no such command"]
    assert faults(page, "python", "benchmarks/none.py --tokens 3") == [
        "README.md: python benchmarks/none.py --tokens 3: no such command"
    ]
    assert faults(page, "python", "benchmarks/decoding.py --device cuda --dtype bfloat16 --rules target") == []
