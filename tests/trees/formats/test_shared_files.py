"""Files that other programs wrote or published: all are read, and growmaps are written back unchanged."""

import json
from pathlib import Path

import pytest
import torch

from tests.trees.formats.read_files import FORMAT_OF, detected_format, read_trees, write_tree
from treeopt.errors import FormatError
from treeopt.trees import load_file

SHARED = Path(__file__).resolve().parents[3] / "../shared/data"
NO_TREES = {
    "acceptance-rate-vector.pt": r"Got tensor of float32, shape \(34,\): is it an acceptance vector",
    "acceptance.json": "Got JSON with the keys",
    "demo-config.json": "Got JSON with the keys",
    "README.md": "Got text that is no JSON, no YAML with choices, and no Python",
}
FOLDERS = ("choices", "sequoia", "umbrella")
FILES = sorted(
    path
    for path in [*SHARED.glob("*.md"), *(path for name in FOLDERS for path in (SHARED / name).glob("*"))]
    if path.is_file()
)
TREES = [path for path in FILES if path.name not in NO_TREES]

pytestmark = [
    pytest.mark.source,
    pytest.mark.skipif(not FILES, reason="the files of other programs are not beside this checkout"),
]


def for_each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[path.name for path in paths])


@for_each(TREES)
def test_a_tree_is_read(path):
    kind = {"sequoia": "sequoia", "umbrella": "umbrella", "choices": "medusa"}[path.parent.name]
    assert detected_format(path) == kind
    ((name, content),) = read_trees(path).items()
    assert name == ("mc_sim_7b_63" if kind == "medusa" else None)
    whole = load_file(path)
    assert whole.tree == content.tree
    assert whole.provenance.source == str(path)
    assert whole.provenance.tool == FORMAT_OF[kind].title


@for_each([path for path in FILES if path.name in NO_TREES])
def test_what_is_no_tree_is_refused(path):
    with pytest.raises(FormatError, match=NO_TREES[path.name]):
        read_trees(path)


@for_each([path for path in TREES if path.suffix == ".pt"])
def test_a_growmap_is_written_as_it_was(path, tmp_path):
    (tmp_path / "again.pt").write_bytes(write_tree("sequoia", load_file(path).tree))
    expected = torch.load(path, map_location="cpu", weights_only=True)
    growmap = torch.load(tmp_path / "again.pt", weights_only=True)
    assert list(growmap) == list(expected)
    for key, value in expected.items():
        assert type(growmap[key]) is type(value)
        if isinstance(value, torch.Tensor):
            assert growmap[key].dtype == value.dtype
            assert torch.equal(growmap[key], value)
        else:
            assert growmap[key] == value


@for_each([path for path in TREES if path.parent.name == "umbrella"])
def test_umbrella_json_is_written_byte_for_byte(path):
    assert write_tree("umbrella", load_file(path).tree) == path.read_bytes()


@for_each([path for path in TREES if path.parent.name == "choices"])
def test_choices_are_written_as_the_same_paths(path):
    (expected,) = json.loads(path.read_bytes())["choices"].values()
    choices = json.loads(write_tree("medusa", load_file(path).tree))
    assert choices == sorted(expected, key=lambda path: (len(path), path))


def test_a_file_of_every_kind_is_there():
    assert {path.parent.name for path in TREES} == {*FOLDERS}
    assert {path.name for path in FILES} >= {*NO_TREES}
