"""Golden files are reproduced byte for byte."""

from pathlib import Path

import pytest

import treeopt
from treeopt.trees import load_file

ROOT = Path(__file__).resolve().parents[2]
PROFILES = [*sorted((ROOT / "docs/profiles").glob("*.yaml")), *sorted((ROOT / "tests/data").glob("profile-*.yaml"))]
TREES = sorted((ROOT / "tests/data").glob("tree-*.json"))


def test_golden_files_exist():
    assert len(PROFILES) > 5
    assert len(TREES) >= 6


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_golden_profile_round_trip(path, tmp_path):
    treeopt.Profile.load(path).save(tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.name)
def test_golden_tree_round_trip(path, tmp_path):
    file = load_file(path)
    file.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
