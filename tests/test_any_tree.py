"""`treeopt.trees.load`: every format, and solution files."""

import gzip

import numpy as np
import pytest

import treeopt
from treeopt.cli.options.inputs import read_any_tree
from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve
from treeopt.trees import Provenance, TreeFile, k_ary
from treeopt.trees.formats import FORMATS

TREE = k_ary(2, 2)
"""Every format can hold it."""
RISING = [[0.3, 0.05, 0.6], [0.6, 0.05, 0.06]]


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
def test_every_format(each, tmp_path):
    path = tmp_path / "tree of any name"
    path.write_bytes(each.write(TREE))
    assert treeopt.trees.load(path) == TREE
    content = treeopt.trees.load_file(str(path))
    assert content == read_any_tree(path)
    assert content.provenance is not None
    assert content.provenance.tool == each.title


def test_a_gzip_archive_is_unpacked(tmp_path):
    (tmp_path / "tree.json.gz").write_bytes(gzip.compress(b"[[0], [1], [0, 0]]"))
    assert treeopt.trees.load(tmp_path / "tree.json.gz").parents.tolist() == [-1, 0, 0, 1]


def test_tree_file_with_all_fields(tmp_path):
    written = TreeFile(tree=TREE, reach=np.full(7, 1.0), provenance=Provenance(tool="test", speedup=1.5))
    written.save(tmp_path / "tree.json")
    assert treeopt.trees.load_file(tmp_path / "tree.json") == written
    assert treeopt.trees.load(tmp_path / "tree.json") == TREE


@pytest.mark.parametrize("table", [[0.7, 0.12], RISING], ids=["best first", "dynamic program"])
def test_a_solution_file_gives_its_tree_of_most_tokens(table, tmp_path):
    solution = solve(AcceptanceTable(table), 6, 2)
    path = tmp_path / "solution.npz"
    solution.save(path)
    content = treeopt.trees.load_file(path)
    assert treeopt.trees.load(path) == content.tree == solution.tree(nodes=6, depth=2)
    assert content.tree.nodes > 2
    assert content.reach is not None
    assert content.reach.sum() == pytest.approx(solution.expected_tokens[2, 6])
    assert content == read_any_tree(path)
    with pytest.raises(InvalidValueError, match=r"name: .*solution\.npz is a solution file.* Got 'a': leave it out"):
        treeopt.trees.load(path, "a")


def test_one_of_several_by_name(tmp_path):
    path = tmp_path / "choices.py"
    path.write_text("small = [[0], [1]]\nlarge = [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]\n")
    assert treeopt.trees.load(path, "large") == treeopt.trees.load(path, name="large") == TREE
    with pytest.raises(
        TreeoptError, match=r"contains 2 trees, small, large\. Choose one with --name, name= from Python"
    ):
        treeopt.trees.load(path)


def test_files_without_a_tree(tmp_path):
    (tmp_path / "profile.yaml").write_text("format: treeopt-profile\n")
    (tmp_path / "arrays.npz").write_bytes(b"PK not an archive")
    for name, reason in (("profile.yaml", "treeopt-profile"), ("arrays.npz", "Is it complete")):
        with pytest.raises(FormatError, match=reason):
            treeopt.trees.load(tmp_path / name)
    for name, reason in (("nothing.json", "no such file"), (".", "cannot be read")):
        with pytest.raises(TreeoptError, match=reason):
            treeopt.trees.load(tmp_path / name)
