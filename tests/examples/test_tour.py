"""examples/tour.ipynb: its cells run in order, each shows what it is to show, and it is stored without outputs."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOUR = json.loads((ROOT / "examples/tour.ipynb").read_text("utf-8"))
CODE = ["".join(cell["source"]) for cell in TOUR["cells"] if cell["cell_type"] == "code"]


def shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return what a notebook would show of it: the value of its last expression."""
    *lines, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        lines, last = [*lines, last], ast.Expr(ast.Constant(None))
    exec(compile(ast.Module(lines, []), "tour", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "tour", "eval"), names)


def run(cells: list[str]) -> list[Any]:
    """Return what a notebook would show of each of some cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        names: dict[str, Any] = {"__name__": "tour"}
        return [shown(source, names) for source in cells]


@pytest.fixture(scope="module")
def results() -> list[Any]:
    """Return what all but the last cell show: that one decodes."""
    return run(CODE[:-1])


def test_every_cell_shows_something(results: list[Any]) -> None:
    assert len(results) > 8
    assert all(each is not None for each in results)


@pytest.mark.slow
def test_the_text_is_plain_decodings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CODE)[-1] is True
    assert len(capsys.readouterr().out) > 50


def test_records_show_themselves(results: list[Any]) -> None:
    kinds = {name for each in results for name in ("_repr_html_", "_repr_svg_") if hasattr(each, name)}
    assert kinds == {"_repr_html_", "_repr_svg_"}
    shown_as_html = [each for each in results if hasattr(each, "_repr_html_")]
    assert len(shown_as_html) >= 5
    assert all(each._repr_html_() for each in shown_as_html)


def test_it_is_stored_as_it_is_written() -> None:
    assert TOUR["nbformat"] == 4
    code = [cell for cell in TOUR["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in TOUR["cells"]}) == len(TOUR["cells"])
