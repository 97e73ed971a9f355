"""Modules, names, files, links and headings in pages and docstrings exist.

Sources are parsed, not imported.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.scripts import FOLDERS, ROOT, modules, scripts

pytestmark = pytest.mark.source
DOTTED = re.compile(r"(?<![\w./-])treeopt(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w./-])(?:benchmarks|cli|docs|examples|profiler|tests|tools|trees|treeopt)/[\w./*-]*\w")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
OTHERS = {"tools/server/README.md"}
"""Paths in llama.cpp's repository."""


def pages() -> list[Path]:
    folders = [ROOT / "docs", ROOT / "treeopt", *(ROOT / folder for folder in FOLDERS)]
    top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [*top, *(page for folder in folders for page in folder.rglob("*.md"))]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the statements that define or import each name."""
    names: dict[str, ast.stmt] = {}
    for line in body:
        if isinstance(line, ast.FunctionDef | ast.ClassDef):
            names[line.name] = line
        elif isinstance(line, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name: line for alias in line.names}
        elif isinstance(line, ast.Assign | ast.AnnAssign):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            names |= {target.id: line for target in targets if isinstance(target, ast.Name)}
        elif isinstance(line, ast.If | ast.Try):
            names |= defined(line.body)
    return names


def is_named(name: str, modules: dict[str, Path]) -> bool:
    """Whether a dotted name is a module, one of its names, or an attribute of one of its classes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        module, inner = ".".join(parts[:cut]), parts[cut:]
        if module in modules:
            return not inner or is_defined(inner, tree_of(modules[module]).body, modules)
    return False


def is_defined(inner: list[str], body: list[ast.stmt], modules: dict[str, Path]) -> bool:
    line = defined(body).get(inner[0])
    if isinstance(line, ast.ImportFrom):
        (name,) = [alias.name for alias in line.names if (alias.asname or alias.name) == inner[0]]
        return is_named(".".join((str(line.module), name, *inner[1:])), modules)
    if line is None or len(inner) == 1:
        return line is not None
    return isinstance(line, ast.ClassDef) and is_defined(inner[1:], line.body, modules)


def anchor(heading: str) -> str:
    """Return GitHub's anchor of a heading.

    >>> anchor("What `bench` prints, and why")
    'what-bench-prints-and-why'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every page and every source with its text."""
    for path in (*pages(), *modules().values(), *scripts()):
        yield path, path.read_text("utf-8")


def faults(path: Path, text: str, modules: dict[str, Path]) -> Iterator[str]:
    """Yield every dotted name and path in a text that does not exist."""
    location = path.relative_to(ROOT)
    for name in DOTTED.findall(text):
        if not is_named(name, modules):
            yield f"{location}: {name}"
    for name in PATH.findall(text):
        if name not in OTHERS and not any(ROOT.glob(name.replace("NAME", "*"))):
            yield f"{location}: {name}"


def link_faults(page: Path, text: str) -> Iterator[str]:
    """Yield every link to a missing file or heading."""
    for link in LINK.findall(FENCE.sub("", text)):
        target, _, part = link.partition("#")
        if "://" not in link and not leads_to((page.parent / target).resolve() if target else page, part):
            yield f"{page.relative_to(ROOT)}: {link}"


def leads_to(path: Path, part: str) -> bool:
    return path.exists() and (not part or part in map(anchor, HEADING.findall(FENCE.sub("", path.read_text("utf-8")))))


def test_every_mentioned_name_exists():
    known = modules()
    assert [fault for path, text in texts() for fault in faults(path, text, known)] == []


def test_every_link_resolves():
    assert [fault for page in pages() for fault in link_faults(page, page.read_text("utf-8"))] == []


def test_missing_names_and_links_are_detected():
    """Negative control."""
    text = "`treeopt.solver.no_such`, treeopt.plan, treeopt.trees.TokenTree.parents, tools/make_prompts.py, cli/*.py"
    assert list(faults(ROOT / "README.md", text, modules())) == [
        "README.md: treeopt.solver.no_such",
        "README.md: tools/make_prompts.py",
    ]
    links = (
        "[a](docs/explanation/solver.md) [b](docs/none.md) [c](benchmarks/README.md#benchmarks) [d](#no-such-heading)"
    )
    assert list(link_faults(ROOT / "README.md", links)) == ["README.md: docs/none.md", "README.md: #no-such-heading"]
