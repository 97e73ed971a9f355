"""`treeopt bench grid` on the bundled pair with few tokens."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import succeed
from treeopt import __version__
from treeopt.trees import TokenTree, chain, describe_tree

FEW = ("--max-new-tokens", "4", "--repeats", "1", "--max-prompts", "4")


def test_every_tree_is_a_row_of_table_and_json(greedy_profile: Path, tmp_path: Path) -> None:
    path, plot = tmp_path / "grid.json", tmp_path / "grid.svg"
    result = succeed("bench", "grid", "--profile", greedy_profile, "--output", path, "--plot", plot, *FEW)
    report = json.loads(path.read_text())
    trees = [TokenTree(row["parents"]) for row in report["trees"]]
    lines = [line for line in result.stdout.splitlines() if line[2:].startswith(("tree of", "chain of"))]
    assert len(lines) == len(trees) >= 5
    assert [line.startswith("*") for line in lines] == [True] + [False] * (len(lines) - 1)
    assert chain(4) in trees
    assert (report["rule"], report["temperature"]) == ("sequoia", 0.0)
    assert report["tool"] == f"treeopt {__version__}"
    for row, tree, line in zip(report["trees"], trees, lines, strict=True):
        measured = row["measured"]
        assert describe_tree(tree) in line
        assert measured["divergences"] == []
        assert 1 <= measured["tokens_per_step"] <= tree.max_depth + 1
        low, high = measured["speedup_interval"]
        assert 0 < low <= measured["speedup"] <= high
        assert row["predicted"]["speedup"] > 0
    assert "All outputs are identical to plain decoding, token by token." in result.stdout
    assert plot.read_bytes().startswith(b"<?xml")


@pytest.mark.slow
def test_standard_output_has_the_json_alone_above_temperature_0(rules_profile: Path) -> None:
    result = succeed("bench", "grid", "--profile", rules_profile, "--temperature", "0.6", "-o", "-", *FEW)
    report = json.loads(result.stdout)
    assert report["temperature"] == 0.6
    assert list(report)[:4] == ["tool", "created", "machine", "pair"]
    assert not [row for row in report["trees"] if "divergences" in row["measured"]]
    assert "tokens per step" in result.stderr
