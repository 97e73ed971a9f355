"""`treeopt bench grid`, as a user types it, on the bundled pair with few tokens."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import call
from treeopt import __version__
from treeopt.trees import TokenTree, chain, describe_tree

FEW = ("--max-new-tokens", "4", "--repeats", "1", "--max-prompts", "4")


def test_a_row_a_tree_json_and_a_picture(greedy_profile: Path, tmp_path: Path) -> None:
    path, plot = tmp_path / "grid.json", tmp_path / "grid.svg"
    result = call("bench", "grid", "--profile", greedy_profile, "--output", path, "--plot", plot, *FEW)
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    trees = [TokenTree(each["parents"]) for each in report["trees"]]
    rows = [line for line in result.stdout.splitlines() if line[2:].startswith(("tree of", "chain of"))]
    assert len(rows) == len(trees) >= 5
    assert [line.startswith("*") for line in rows] == [True] + [False] * (len(rows) - 1)
    assert chain(4) in trees
    assert (report["rule"], report["temperature"]) == ("sequoia", 0.0)
    assert report["tool"] == f"treeopt {__version__}"
    for each, tree, row in zip(report["trees"], trees, rows, strict=True):
        assert describe_tree(tree) in row
        measured = each["measured"]
        assert measured["divergences"] == []
        assert 1 <= measured["tokens_per_step"] <= tree.max_depth + 1
        low, high = measured["speedup_interval"]
        assert 0 < low <= measured["speedup"] <= high
        assert each["predicted"]["speedup"] > 0
    assert "All outputs are identical to plain decoding, token by token." in result.stdout
    assert plot.read_bytes().startswith(b"<?xml")


@pytest.mark.slow
def test_json_alone_on_standard_output_above_temperature_0(rules_profile: Path) -> None:
    result = call("bench", "grid", "--profile", rules_profile, "--temperature", "0.6", "-o", "-", *FEW)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["temperature"] == 0.6
    assert list(report)[:4] == ["tool", "created", "machine", "pair"]
    assert not [each for each in report["trees"] if "divergences" in each["measured"]]
    assert "tokens per step" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("tree.json",), 2, "unexpected extra argument"),
        (("--plot", "grid.txt"), 1, ".svg"),
        (("--output", "missing/grid.json"), 1, "missing"),
        (("--profile", "missing.yaml"), 1, "treeopt profile"),
    ],
)
def test_bad_input_is_one_clear_line(folder: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = call("bench", "grid", *arguments)
    assert result.exit_code == code
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert said in line
    assert list(folder.iterdir()) == []
