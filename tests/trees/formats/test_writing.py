"""Every format: round trips, and the content of written files."""

import io
import json
import warnings
import zipfile

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from tests.trees.formats.read_files import FORMAT_OF, detected_format, read_trees, write_tree
from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptWarning
from treeopt.trees import TokenTree, chain, k_ary, load_file
from treeopt.trees.formats import FORMATS

NAMES = [tree_format.name for tree_format in FORMATS]
SUFFIXES = {"sequoia": ".pt", "npz": ".npz", "safetensors": ".safetensors"}
KEYS = ["roots", "branches", "Successors", "mask", "depth", "size"]
SMALL = TokenTree([-1, 0, 0, 0, 1, 1, 2, 4, 4])
"""Root with 3 children; the first has 2, the second 1; the first grandchild has 2."""


@st.composite
def trees(draw: st.DrawFn, least_nodes: int = 1) -> TokenTree:
    parents = [-1]
    for node in range(1, draw(st.integers(least_nodes, 24))):
        parents.append(draw(st.integers(max(parents[-1], 0), node - 1)))
    return TokenTree(parents)


TREES = dict.fromkeys(NAMES, trees()) | {
    "nxdi": trees(least_nodes=2),
    "medusa": trees(least_nodes=2).filter(lambda tree: tree.child_counts.max() <= 10),
}


def written(name: str, tree: TokenTree, suffix: str = "", /, **options: object) -> bytes:
    suffix = suffix or SUFFIXES.get(name, ".json")
    with warnings.catch_warnings(action="ignore", category=TreeoptWarning):
        return write_tree(name, tree, suffix=suffix, **options)


class TestRoundTrip:
    @pytest.mark.parametrize("name", NAMES)
    @settings(deadline=None, max_examples=examples(60))
    @given(data=st.data())
    def test_what_is_written_is_read(self, tmp_path_factory, name, data):
        tree, path = data.draw(TREES[name]), tmp_path_factory.getbasetemp() / "round-trip"
        path.write_bytes(content := written(name, tree))
        (loaded,) = read_trees(path).values()
        assert loaded.tree == tree
        assert detected_format(path) == name
        assert written(name, loaded.tree) == content

    @given(tree=TREES["medusa"])
    def test_a_python_module_too(self, tmp_path_factory, tree):
        path = tmp_path_factory.getbasetemp() / "choices.py"
        path.write_bytes(written("medusa", tree, ".py", list_name="mine"))
        ((name, loaded),) = read_trees(path).items()
        assert (name, loaded.tree) == ("mine", tree)

    @pytest.mark.parametrize(
        ("name", "tree"),
        [
            ("sequoia", k_ary(2, 9)),
            ("umbrella", k_ary(2, 8)),
            ("npz", k_ary(2, 9)),
            ("safetensors", chain(1023)),
            ("nxdi", TokenTree([-1, *[0] * 65_535])),
            ("medusa", k_ary(2, 14)),
        ],
    )
    def test_large_trees(self, tmp_path, name, tree):
        (tmp_path / "tree").write_bytes(written(name, tree))
        assert load_file(tmp_path / "tree").tree == tree


def parents_of_mask(mask: np.ndarray) -> list[int]:
    """Return the parents: a node's last ancestor in level order."""
    return [int(np.flatnonzero(row[:node])[-1]) if node else -1 for node, row in enumerate(np.asarray(mask))]


class TestSixKeys:
    def test_torch_file(self, tmp_path):
        (tmp_path / "t.pt").write_bytes(written("sequoia", SMALL))
        growmap = torch.load(tmp_path / "t.pt", weights_only=True)
        assert list(growmap) == KEYS
        assert type(growmap["size"]) is int
        assert growmap["size"] == 9
        assert growmap["roots"] == [[0], [1, 2, 3], [4, 5, 6], [7, 8]]
        assert growmap["branches"] == [[3], [2, 1, 0], [2, 0, 0], [0, 0]]
        assert growmap["Successors"] == [[1, 2, 3], [4, 5], [6], [], [7, 8], [], [], [], []]
        assert growmap["depth"].dtype == growmap["mask"].dtype == torch.int64
        assert torch.equal(growmap["depth"], torch.tensor([0, 1, 1, 1, 2, 2, 2, 3, 3]))
        assert parents_of_mask(growmap["mask"].numpy()) == SMALL.parents.tolist()
        assert growmap["mask"].sum().item() == sum(depth + 1 for depth in growmap["depth"].tolist())

    def test_json_has_the_same_six(self):
        growmap = json.loads(written("umbrella", SMALL))
        expected = torch.load(io.BytesIO(written("sequoia", SMALL)), weights_only=True)
        assert list(growmap) == KEYS
        assert growmap == {key: getattr(value, "tolist", lambda v=value: v)() for key, value in expected.items()}

    @pytest.mark.parametrize(("name", "most"), [("sequoia", 4096), ("umbrella", 1024), ("npz", 4096), ("nxdi", 65536)])
    def test_too_many_nodes(self, name, most):
        with pytest.raises(InfeasibleError, match=f"at most {most}[,.] .*Got {most + 1}: solve "):
            written(name, chain(most))


class TestPaths:
    def test_python_module_runs_and_gives_the_same_list(self):
        tree, names = k_ary(2, 5), {}
        exec(text := written("medusa", tree, ".py").decode(), names)  # noqa: S102, what Medusa does with it
        assert names["treeopt_62"] == json.loads(written("medusa", tree, ".json"))
        assert max(map(len, text.splitlines())) <= 100

    @pytest.mark.parametrize("name", ["2x", "class", "a b", "a=1;b", ""])
    def test_an_invalid_python_name(self, name):
        if name:
            with pytest.raises(InvalidValueError, match="expected a Python name"):
                written("medusa", SMALL, ".py", list_name=name)
        else:
            assert written("medusa", SMALL, ".py", list_name=name).startswith(b"treeopt_8 = ")

    def test_too_many_children(self):
        assert len(json.loads(written("medusa", TokenTree([-1, *[0] * 10])))) == 10
        with pytest.raises(InfeasibleError, match=r"at most 10 children of a node.* Got 11: solve again .*width 10"):
            written("medusa", TokenTree([-1, *[0] * 11]))

    def test_deeper_than_the_heads(self):
        assert written("medusa", chain(5), max_depth=5)
        with pytest.raises(InfeasibleError, match=r"at most 5 levels.* Got 6: solve again with --depth 5"):
            written("medusa", chain(6), max_depth=5)

    def test_warning_for_an_unknown_number_of_heads(self):
        medusa = FORMAT_OF["medusa"]
        with warnings.catch_warnings(action="error"):
            medusa.write(chain(5))
            medusa.write(chain(6), max_depth=6)
        with pytest.warns(TreeoptWarning, match="needs a model with 6 heads"):
            medusa.write(chain(6))

    @pytest.mark.parametrize("name", ["medusa", "nxdi"])
    def test_the_root_alone_raises(self, name):
        with pytest.raises(InfeasibleError, match=r"at least one draft token.* Got the root alone"):
            written(name, TokenTree([-1]))

    def test_paths_that_are_too_long_together(self):
        with pytest.raises(InfeasibleError, match=r"at most 1000000 ranks together. Got \d+: solve again"):
            written("medusa", chain(65_536))

    def test_a_module_too_large_to_read(self):
        with pytest.raises(InfeasibleError, match=r"characters of Python.* write a \.json file"):
            written("medusa", k_ary(2, 14), ".py")


def loaded(name: str, data: bytes) -> dict[str, np.ndarray]:
    return dict(np.load(io.BytesIO(data))) if name == "npz" else safetensors.numpy.load(data)


@pytest.mark.parametrize("name", ["npz", "safetensors"])
class TestArrays:
    def test_kinds_and_shapes(self, name):
        arrays = loaded(name, written(name, SMALL))
        assert {key: (str(value.dtype), value.shape) for key, value in arrays.items()} == {
            "parents": ("int32", (9,)),
            "mask": ("bool", (9, 9)),
        }

    @given(tree=trees())
    def test_each_array_alone_defines_the_tree(self, name, tree):
        arrays, parents = loaded(name, written(name, tree)), tree.parents.tolist()
        assert arrays["parents"].tolist() == parents
        assert parents_of_mask(arrays["mask"]) == parents
        assert arrays["mask"].sum(axis=1).tolist() == [depth + 1 for depth in tree.depth]

    def test_archives_are_uncompressed_and_reproducible(self, name):
        data = written(name, SMALL)
        if name == "npz":
            items = zipfile.ZipFile(io.BytesIO(data)).infolist()
            assert {(item.compress_type, item.date_time) for item in items} == {(0, (1980, 1, 1, 0, 0, 0))}
        else:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            assert header["__metadata__"] == {"format": "treeopt-tree-arrays", "version": "1"}
            assert list(header) == sorted(header)


class TestFormats:
    @pytest.mark.parametrize("name", NAMES)
    def test_text_formats_are_text(self, name):
        tree_format = FORMAT_OF[name]
        assert tree_format.title
        assert tree_format.versions
        assert tree_format.needs
        try:
            tree_format.write(chain(3)).decode("utf-8")
        except UnicodeDecodeError:
            assert not tree_format.text
        else:
            assert tree_format.text or name == "safetensors"  # whose header alone may be all that is not zero
