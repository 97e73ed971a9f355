"""Every format: what is written is read as the same tree, and says what it should to whoever reads it otherwise."""

import io
import json
import zipfile

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from tests.trees.formats.read_files import detected_format, read_trees
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.trees import TokenTree, chain, k_ary, load_file
from treeopt.trees.formats import FORMATS, WriteOptions, format_named

NAMES = [each.name for each in FORMATS]
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
    return format_named(name).write(tree, WriteOptions(**options), suffix or SUFFIXES.get(name, ".json")).data


class TestRoundTrip:
    @pytest.mark.parametrize("name", NAMES)
    @settings(deadline=None, max_examples=examples(60))
    @given(data=st.data())
    def test_what_is_written_is_read(self, tmp_path_factory, name, data):
        tree, path = data.draw(TREES[name]), tmp_path_factory.getbasetemp() / "round-trip"
        path.write_bytes(content := written(name, tree))
        (found,) = read_trees(path).values()
        assert found.tree == tree
        assert detected_format(path) == name
        assert written(name, found.tree) == content

    @settings(deadline=None)
    @given(tree=TREES["medusa"])
    def test_a_python_module_too(self, tmp_path_factory, tree):
        path = tmp_path_factory.getbasetemp() / "choices.py"
        path.write_bytes(written("medusa", tree, ".py", name="mine"))
        ((name, found),) = read_trees(path).items()
        assert (name, found.tree) == ("mine", tree)

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

    @pytest.mark.parametrize("name", NAMES)
    def test_equal_trees_give_equal_bytes(self, name):
        assert written(name, k_ary(2, 3)) == written(name, TokenTree(k_ary(2, 3).parents.tolist()))

    def test_a_tree_that_is_not_the_same_is_told_apart(self, tmp_path):
        (tmp_path / "tree").write_bytes(written("nxdi", SMALL))
        assert load_file(tmp_path / "tree").tree != TokenTree([-1, 0, 0, 0, 1, 1, 2, 4, 5])


def parents_of_mask(mask: np.ndarray) -> list[int]:
    """Return the parents: a node's last ancestor in level order."""
    return [int(np.flatnonzero(row[:node])[-1]) if node else -1 for node, row in enumerate(np.asarray(mask))]


class TestSixKeys:
    def test_torch_file(self, tmp_path):
        (tmp_path / "t.pt").write_bytes(written("sequoia", SMALL))
        found = torch.load(tmp_path / "t.pt", weights_only=True)
        assert list(found) == KEYS
        assert type(found["size"]) is int
        assert found["size"] == 9
        assert found["roots"] == [[0], [1, 2, 3], [4, 5, 6], [7, 8]]
        assert found["branches"] == [[3], [2, 1, 0], [2, 0, 0], [0, 0]]
        assert found["Successors"] == [[1, 2, 3], [4, 5], [6], [], [7, 8], [], [], [], []]
        assert found["depth"].dtype == found["mask"].dtype == torch.int64
        assert torch.equal(found["depth"], torch.tensor([0, 1, 1, 1, 2, 2, 2, 3, 3]))
        assert parents_of_mask(found["mask"].numpy()) == SMALL.parents.tolist()
        assert found["mask"].sum().item() == sum(depth + 1 for depth in found["depth"].tolist())

    def test_json_has_the_same_six(self):
        found = json.loads(written("umbrella", SMALL))
        expected = torch.load(io.BytesIO(written("sequoia", SMALL)), weights_only=True)
        assert list(found) == KEYS
        assert found == {key: getattr(value, "tolist", lambda v=value: v)() for key, value in expected.items()}

    def test_the_smallest_chain(self):
        found = json.loads(written("umbrella", chain(3)))
        assert found["roots"] == [[0], [1], [2], [3]]
        assert found["branches"] == [[1], [1], [1], [0]]
        assert found["Successors"] == [[1], [2], [3], []]

    @pytest.mark.parametrize(("name", "most"), [("sequoia", 4096), ("umbrella", 1024), ("npz", 4096)])
    def test_more_nodes_than_a_mask_is_good_for(self, name, most):
        with pytest.raises(InfeasibleError, match=f"at most {most}, .* Got {most + 1}: solve again"):
            written(name, chain(most))


class TestPaths:
    def test_json(self):
        assert json.loads(written("medusa", SMALL, ".json")) == [
            *([0], [1], [2], [0, 0], [0, 1], [1, 0]),
            *([0, 0, 0], [0, 0, 1]),
        ]

    def test_python_module_runs_and_gives_the_same_list(self):
        tree, names = k_ary(2, 5), {}
        exec(text := written("medusa", tree, ".py").decode(), names)  # noqa: S102, what Medusa does with it
        assert names["treeopt_62"] == json.loads(written("medusa", tree, ".json"))
        assert max(map(len, text.splitlines())) <= 100

    @pytest.mark.parametrize("name", ["2x", "class", "a b", "a=1;b", ""])
    def test_a_name_that_python_does_not_take(self, name):
        if name:
            with pytest.raises(InvalidValueError, match="expected a Python name"):
                written("medusa", SMALL, ".py", name=name)
        else:
            assert written("medusa", SMALL, ".py", name=name).startswith(b"treeopt_8 = ")

    def test_more_ranks_than_a_head_has_candidates(self):
        assert len(json.loads(written("medusa", TokenTree([-1, *[0] * 10])))) == 10
        with pytest.raises(InfeasibleError, match=r"at most 10 children of a node.* Got 11: solve again .*width 10"):
            written("medusa", TokenTree([-1, *[0] * 11]))

    def test_deeper_than_the_heads(self):
        assert written("medusa", chain(5), max_depth=5)
        with pytest.raises(InfeasibleError, match=r"at most 5 levels.* Got 6: solve again with --depth 5"):
            written("medusa", chain(6), max_depth=5)

    def test_heads_that_are_not_known_are_warned_of(self):
        medusa = format_named("medusa")
        assert medusa.write(chain(5), WriteOptions(), ".json").warnings == ()
        (warning,) = medusa.write(chain(6), WriteOptions(), ".json").warnings
        assert "needs a model with 6 heads" in warning.found
        assert medusa.write(chain(6), WriteOptions(max_depth=6), ".json").warnings == ()

    def test_the_root_alone_has_no_path(self):
        with pytest.raises(InfeasibleError, match=r"at least one draft token\. Got the root alone"):
            written("medusa", TokenTree([-1]))

    def test_paths_that_are_too_long_together(self):
        with pytest.raises(InfeasibleError, match=r"at most 1000000 ranks together. Got \d+: solve again"):
            written("medusa", chain(65_536))

    def test_a_module_too_large_to_read(self):
        with pytest.raises(InfeasibleError, match=r"characters of Python.* write a \.json file"):
            written("medusa", k_ary(2, 14), ".py")


class TestAdjacency:
    def test_leaves_are_left_out(self):
        found = json.loads(written("nxdi", SMALL))
        assert found == {"0": [1, 2, 3], "1": [4, 5], "2": [6], "4": [7, 8]}

    def test_the_root_alone(self):
        with pytest.raises(InfeasibleError, match=r"at least one draft token.* Got the root alone"):
            written("nxdi", TokenTree([-1]))

    def test_more_nodes_than_a_tree_file_may_have(self):
        with pytest.raises(InfeasibleError, match=r"at most 65536\. Got 65537"):
            written("nxdi", TokenTree([-1, *[0] * 65_536]))


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

    @settings(deadline=None)
    @given(tree=trees())
    def test_each_array_alone_defines_the_tree(self, name, tree):
        arrays, parents = loaded(name, written(name, tree)), tree.parents.tolist()
        assert arrays["parents"].tolist() == parents
        assert parents_of_mask(arrays["mask"]) == parents
        assert arrays["mask"].sum(axis=1).tolist() == [depth + 1 for depth in tree.depth]

    def test_nothing_is_compressed_and_nothing_depends_on_the_day(self, name):
        data = written(name, SMALL)
        if name == "npz":
            items = zipfile.ZipFile(io.BytesIO(data)).infolist()
            assert {(item.compress_type, item.date_time) for item in items} == {(0, (1980, 1, 1, 0, 0, 0))}
        else:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            assert header["__metadata__"] == {"format": "treeopt-tree-arrays", "version": "1"}
            assert list(header) == sorted(header)


class TestFormats:
    def test_names(self):
        assert NAMES == ["sequoia", "umbrella", "medusa", "nxdi", "npz", "safetensors"]

    @pytest.mark.parametrize("name", NAMES)
    def test_text_is_what_is_called_text(self, name):
        each = format_named(name)
        assert each.title
        assert each.versions
        assert each.needs
        try:
            each.write(chain(3), WriteOptions(), ".json").data.decode("utf-8")
        except UnicodeDecodeError:
            assert not each.text
        else:
            assert each.text or name == "safetensors"  # whose header alone may be all that is not zero

    def test_another_name(self):
        with pytest.raises(InvalidValueError, match=r"expected one of sequoia, umbrella, .* Got 'onnx'"):
            format_named("onnx")
