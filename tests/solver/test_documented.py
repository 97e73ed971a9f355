"""What docs/explanation/solver.md says that Python and the commands answer is what they answer."""

import pkgutil
import re
from pathlib import Path

from click.testing import CliRunner

from treeopt.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "explanation" / "solver.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_answers_in_the_examples():
    names: dict[str, object] = {}
    compared = 0
    for block in blocks("python"):
        for line in filter(None, block.splitlines()):
            if re.match(r"import |\w+ = ", line):
                exec(line, names)  # noqa: S102
                continue
            expression, shown = line.split("  # ")
            value = eval(expression, names)
            answer = str(value) if isinstance(value, float) else repr(value)
            assert answer.startswith(shown.removesuffix("…")) if shown.endswith("…") else answer == shown
            compared += 1
    assert compared == 6


def test_commands(tmp_path, monkeypatch):
    (commands,) = (block for block in blocks("") if block.startswith("treeopt solve"))
    (printed,) = (block for block in blocks("") if block.startswith("64 nodes"))
    monkeypatch.chdir(tmp_path)
    for command in commands.splitlines():
        arguments = command.replace("docs/", f"{DOCS}/").split()[1:]
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0
    assert result.stdout.startswith(printed)


def test_functions_named_exist():
    for name in set(re.findall(r"`(treeopt\.[\w.]+)`", PAGE)):
        assert pkgutil.resolve_name(name) is not None
