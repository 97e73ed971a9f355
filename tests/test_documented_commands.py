"""Commands on the pages exist and have the options shown."""

import ast
import re
from pathlib import Path

import click

from tests.scripts import FOLDERS, ROOT
from tests.test_mentions import pages
from treeopt.cli.main import main

FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"^(?:\$ |time |[A-Z_]+=\S+ )*(treeopt|python) (.*?)(?: *#.*)?$", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def documented_commands() -> list[tuple[Path, str, str]]:
    """Return every command of every page, from blocks that begin with one and from inline code."""
    commands = []
    for page in pages():
        text = page.read_text("utf-8").replace("\\\n", " ")
        blocks = [block for block in FENCE.findall(text) if COMMAND.match(block)]
        for code in (*blocks, *INLINE.findall(FENCE.sub("", text))):
            commands += [(page, program, rest) for program, rest in COMMAND.findall(code)]
    return commands


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
    return {"--help", "-h"} | {flag for option in command.params for flag in option.opts + option.secondary_opts}


def script_options(path: Path) -> set[str]:
    """Return the options in the source of a script: strings that begin with dashes, and those of a shared parser it uses."""
    source = path.read_text("utf-8")
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    flags = {text for text in texts if isinstance(text, str) and text.startswith("-")}
    if "argument_parser(" in source and path.name != DISTILLATION.name:
        flags |= script_options(DISTILLATION)
    for shared in SHARED:
        if f"from {shared.stem} import" in source:
            flags |= script_options(shared)
    return flags


DISTILLATION = ROOT / "tools" / "distillation.py"
SHARED = ROOT / "tools" / "head_training.py", ROOT / "benchmarks" / "block_trees.py", ROOT / "benchmarks" / "common.py"


def faults(page: Path, program: str, rest: str) -> list[str]:
    location, name = f"{page.relative_to(ROOT)}: {program} {rest}", rest.split()[0]
    if program == "treeopt" and re.fullmatch("[a-z]+", name):
        flags = options_of(rest)
    elif name.startswith(FOLDERS) and "NAME" not in name:
        flags = script_options(ROOT / name) if (ROOT / name).is_file() else None
    else:
        return []
    if flags is None:
        return [f"{location}: no such command"]
    return [f"{location}: {flag}" for flag in FLAG.findall(rest) if flag not in flags]


def test_documented_commands_exist():
    commands = documented_commands()
    assert len(commands) > 100
    assert [fault for command in commands for fault in faults(*command)] == []


def test_missing_commands_are_detected():
    """Negative control."""
    page = ROOT / "README.md"
    option = "bench methods --methods all --heat 3"
    assert faults(page, "treeopt", option) == [f"README.md: treeopt {option}: --heat"]
    for program, rest in (
        ("treeopt", "bench tree.json"),
        ("treeopt", "bench race"),
        ("treeopt", "race tree.json"),
        ("python", "benchmarks/none.py --tokens 3"),
    ):
        assert faults(page, program, rest) == [f"README.md: {program} {rest}: no such command"]
    assert faults(page, "python", "benchmarks/traversal.py --target folder --sequences 3") == []
