"""Benchmarks, tools and examples can be imported without side effects."""

import tomllib

import pytest

from tests.scripts import FOLDERS, ROOT, script, scripts


@pytest.mark.parametrize("path", scripts(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_script_can_be_imported(path, capsys):
    pytest.importorskip("transformers", reason="needs the hf extra")
    if path.stem.startswith("llama_cpp"):
        pytest.importorskip("llama_cpp", reason="needs the gguf extra")
    script(path)
    assert capsys.readouterr().out == ""


def test_broken_script_imports_are_detected(tmp_path):
    """Negative control."""
    (tmp_path / "rules.py").write_text('"""A benchmark."""\nfrom treeopt.cli.profile import fastest_tree\n')
    with pytest.raises(ImportError, match="fastest_tree"):
        script(tmp_path / "rules.py")


def test_make_runs_every_benchmark_and_mypy_reads_every_script():
    assert {path.parent.name for path in scripts()} == set(FOLDERS)
    assert "benchmarks/*.py" in (ROOT / "Makefile").read_text("utf-8")
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]["files"]
    assert {"treeopt", *FOLDERS} <= set(checked)
