"""The cells of examples/tour.ipynb."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOUR = json.loads((ROOT / "examples/tour.ipynb").read_text("utf-8"))
CODE = ["".join(cell["source"]) for cell in TOUR["cells"] if cell["cell_type"] == "code"]


def evaluate(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last expression, which a notebook shows."""
    *lines, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        lines, last = [*lines, last], ast.Expr(ast.Constant(None))
    exec(compile(ast.Module(lines, []), "tour", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "tour", "eval"), names)


def run(cells: list[str]) -> list[Any]:
    """Return the value of each cell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        names: dict[str, Any] = {"__name__": "tour"}
        return [evaluate(source, names) for source in cells]


def test_every_cell_but_the_last_shows_a_record() -> None:
    results = run(CODE[:-1])
    assert len(results) > 8
    assert all(result is not None for result in results)
    assert any(hasattr(result, "_repr_svg_") for result in results)
    html = [result._repr_html_() for result in results if hasattr(result, "_repr_html_")]
    assert len(html) >= 5
    assert all(html)


@pytest.mark.slow
def test_the_last_cell_decodes_losslessly(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CODE)[-1] is True
    assert len(capsys.readouterr().out) > 50


def test_the_notebook_is_stored_without_outputs() -> None:
    assert TOUR["nbformat"] == 4
    code = [cell for cell in TOUR["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in TOUR["cells"]}) == len(TOUR["cells"])
