"""Functions are small where that keeps them honest: few parameters everywhere, few lines in a command.

What belongs together is one record: a function outside the public façade takes 7 parameters at most.  A command parses,
calls and prints: no function of `cli/` has more than 30 lines.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_floors import ROOT, modules

pytestmark = pytest.mark.source
MOST_PARAMETERS = 7
MOST_LINES = 30
FACADE = {
    "treeopt.planner.planning.plan",
    "treeopt.planner.scheduling.schedule",
    "treeopt.planner.contexts.step_model",
    "treeopt.engines.reports.combine.imported_profile",
    "treeopt.profiler.bench.compare.bench",
    "treeopt.profiler.profile_run.Measurement.__init__",
    "treeopt.runtime.decoding.decoder.Decoder.__init__",
    "treeopt.runtime.decoding.earlier_names.DraftingDecoder",
    "treeopt.runtime.decoding.earlier_names.DynamicDecoder",
    "treeopt.runtime.decoding.hf_generate.decode",
    "treeopt.runtime.decoding.hf_generate.generate",
    "treeopt.runtime.models.pair.load_pair",
}
"""What users of the library call: keywords are kinder to them than records.  It only becomes shorter."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, name: str) -> Iterator[tuple[str, Function]]:
    """Yield every function below a syntax tree with its dotted name, those within others too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            inner = f"{name}.{node.name}"
            if isinstance(node, Function):
                yield inner, node
            yield from functions(node, inner)
        else:
            yield from functions(node, name)


def parameters(function: Function) -> int:
    """Return how many parameters a function has, that which a method is called on left out."""
    given = function.args
    named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"]))


def lines(function: Function) -> int:
    """Return how many lines a function's body has, its docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def wide(module: str, source: str) -> set[str]:
    return {name for name, each in functions(ast.parse(source), module) if parameters(each) > MOST_PARAMETERS}


def long(module: str, source: str) -> set[str]:
    return {name for name, each in functions(ast.parse(source), module) if lines(each) > MOST_LINES}


def sources() -> list[tuple[str, str]]:
    found: list[tuple[str, Path]] = modules()
    return [(module, path.read_text("utf-8")) for module, path in found]


def test_few_parameters() -> None:
    found = {name for module, source in sources() for name in wide(module, source)}
    assert found - FACADE == set()


def test_no_command_has_a_long_function() -> None:
    commands = [each for each in sources() if each[0].split(".")[1] == "cli"]
    assert len(commands) > 30
    assert {name for module, source in commands for name in long(module, source)} == set()


def test_what_is_too_much_is_found() -> None:
    """Negative control."""
    seven = "a, b, /, c, *, d, e, f, g"
    assert wide("m", f"def f({seven}): pass\nclass C:\n    def g(self, {seven}): pass") == set()
    assert wide("m", f"class C:\n    def g(self, {seven}, h=1):\n        pass") == {"m.C.g"}
    assert wide("m", f"def f():\n    if True:\n        async def g({seven}, h): pass") == {"m.f.g"}
    body = "    a = 1\n" * MOST_LINES
    assert long("m", f'def f():\n    """Text\n\n    more."""\n{body}') == set()
    assert long("m", f"def f():\n    def g():\n        pass\n{body}") == {"m.f"}
    assert (ROOT / "cli").is_dir()
