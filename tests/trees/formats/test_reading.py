"""Every format: detection by content, and inconsistent files."""

import io
import json
import re

import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.trees.formats.read_files import FORMAT_OF, detected_format, read_trees, write_tree
from treeopt import AcceptanceTable, solve
from treeopt.errors import FormatError, TreeoptError, TreeoptWarning
from treeopt.trees import Provenance, TokenTree, TreeFile, k_ary, load_file

TREE = TokenTree([-1, 0, 0, 1, 1, 2])


def written(name: str, suffix: str = ".json", tree: TokenTree = TREE) -> bytes:
    return write_tree(name, tree, suffix=suffix)


def growmap(**changes: object) -> dict[str, object]:
    """Return the six keys with some values replaced, or removed by `...`."""
    valid = json.loads(written("umbrella"))
    return {key: value for key, value in (valid | changes).items() if value is not ...}


def umbrella(**changes: object) -> bytes:
    return json.dumps(growmap(**changes)).encode()


def sequoia(*, legacy: bool = False, **changes: object) -> bytes:
    content = torch.load(io.BytesIO(written("sequoia")), weights_only=True) | changes
    return torch_file({key: value for key, value in content.items() if value is not ...}, legacy=legacy)


def torch_file(content: object, *, legacy: bool = False) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def arrays(**changes: object) -> dict[str, np.ndarray]:
    valid = dict(np.load(io.BytesIO(written("npz"))))
    return {key: np.array(value) for key, value in (valid | changes).items() if value is not ...}


PARENTS_ONLY = {"mask": ...}


def npz(**changes: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays(**changes))
    return file.getvalue()


def safetensors_file(metadata: dict[str, str] | None = None, **changes: object) -> bytes:
    return safetensors.numpy.save(arrays(**changes), metadata)


def replaced(values: list, place: tuple[int, ...], value: object) -> list:
    """Return nested lists with one entry replaced."""
    first, rest = place[0], place[1:]
    return [replaced(item, rest, value) if i == first and rest else value if i == first else item
            for i, item in enumerate(values)]  # fmt: skip


MASK = growmap()["mask"]

GROWMAPS = {
    "no roots": ({"roots": ...}, "roots", "is missing"),
    "no mask": ({"mask": ...}, "mask", "is missing"),
    "unknown key": ({"weights": [1]}, "weights", "unknown key"),
    "size too large": ({"size": 7}, "size", "expected 6, the lists in Successors. Got 7"),
    "size 0": ({"size": 0}, "size", "Got 0"),
    "Successors no list": ({"Successors": 3}, "Successors", "list of lists. Got 3"),
    "unreachable": ({"Successors": [[1, 2], [3, 4], [], [], [], []]}, "Successors[5]", "Got none for 5: it cannot"),
    "cycle": ({"Successors": [[1], [3, 4], [5], [], [], [2]]}, "Successors[2]", "path from the root to node 2.* cycle"),
    "root a child": ({"Successors": [[1, 2], [3, 4], [0], [], [], []]}, "Successors[2]", "Got the root"),
    "two parents": ({"Successors": [[1, 2], [3, 4], [4], [], [], []]}, "Successors[2]", "node 4. Got two, 1 and 2"),
    "child beyond": ({"Successors": [[1, 2], [3, 4], [6], [], [], []]}, "Successors[2]", "from 1 to 5. Got 6"),
    "order": ({"Successors": [[1, 2], [3, 5], [4], [], [], []]}, "Successors[1]", "level by level, so 4.* Got 5"),
    "another tree": ({"Successors": [[1, 2], [3], [4, 5], [], [], []]}, "branches[1]", r"\[1, 2\], which .* Got \[2, 1\]"),
    "roots short": ({"roots": [[0], [1, 2]]}, "roots", "expected 3 lists, one per level. Got 2"),
    "roots moved": ({"roots": [[0], [1, 2, 3], [4, 5]]}, "roots[1]", r"expected \[1, 2\].* Got \[1, 2, 3\]"),
    "branches": ({"branches": [[2], [2, 1], [0, 0, 1]]}, "branches[2]", r"expected \[0, 0, 0\].* Got \[0, 0, 1\]"),
}  # fmt: skip

ARRAYS_OF_GROWMAPS = {
    "depth": ({"depth": [0, 1, 1, 2, 2, 3]}, "depth", r"expected 2 at \[5\]\. Got 3\. Successors and depth"),
    "mask without itself": ({"mask": replaced(MASK, (0, 0), 0)}, "mask", r"expected 1 at \[0, 0\]\. Got 0"),
    "mask without the parent": ({"mask": replaced(MASK, (5, 2), 0)}, "mask", r"expected 1 at \[5, 2\]\. Got 0"),
    "mask short": ({"mask": MASK[:-1]}, "mask", r"shape \(6, 6\)\. Got \(5, 6\)"),
}

JSON_ARRAYS = {
    "mask of booleans": ({"mask": replaced(MASK, (2, 0), True)}, "mask[2]", "list of whole numbers"),
    "mask of floats": ({"mask": replaced(MASK, (2, 0), 1.0)}, "mask[2]", "list of whole numbers"),
    "mask ragged": ({"mask": replaced(MASK, (2,), [1, 0])}, "mask", "rows of one length"),
    "mask huge": ({"mask": replaced(MASK, (2, 0), 2**63)}, "mask", "below 2"),
    "depth text": ({"depth": "012"}, "depth", "list of whole numbers. Got '012'"),
}

TENSORS = {
    "mask of fractions": ({"mask": torch.tensor(MASK) * 0.5}, "mask", r"expected 1 at \[0, 0\]\. Got 0\.5"),
    "mask of bfloat16 fractions": (
        {"mask": torch.tensor(MASK, dtype=torch.bfloat16) * 0.5},
        "mask",
        r"expected 1 at \[0, 0\]\. Got 0\.5",
    ),
    "mask of NaN": ({"mask": torch.tensor(MASK) * torch.nan}, "mask", r"expected 1 at \[0, 0\]\. Got nan"),
    "additive mask": ({"mask": torch.tensor(MASK).log()}, "mask", r"expected 1 at \[0, 0\]\. Got 0\.0"),
    "mask a list": ({"mask": MASK}, "mask", "array of numbers. Got "),
    "mask sparse": ({"mask": torch.tensor(MASK).to_sparse()}, "content", "may be code"),
    "mask stretched": ({"mask": torch.ones(1, 1, dtype=torch.int64).expand(9999, 9999)}, "mask", r"Got \(9999, 9999\)"),
    "size a tensor": ({"size": torch.tensor(6)}, "size", "whole number from 1 to 4096. Got tensor of int64"),
    "one list many times": ({"roots": [list(range(2000))] * 2000}, "roots", "at most 6 entries.* Got 4000000"),
}

PATHS = {
    "no list": (3, "", r"list of paths such as .* Got 3"),
    "empty": ([], "", "list of paths"),
    "missing prefix": ([[0], [1, 0]], "[1]", r"path \(1, 0\) needs \(1,\), which is missing"),
    "negative": ([[0], [-1]], "[1]", r"at least 0\. Got \[-1\]"),
    "float": ([[0], [1.0]], "[1]", r"ranks, whole numbers.* Got \[1\.0\]"),
    "root alone": ([[]], "", "at least one draft token"),
    "text": ([[0], "1-0"], "[1]", "expected a path such as .0, 1.. Got '1-0'"),
    "nested deep": ([[[[[[[[0]]]]]]]], "[0][0][0][0][0]", "ranks, whole numbers"),
    "too many": ([[i] for i in range(65_536)], "", "at most 65535 paths. Got 65536"),
}

ADJACENCY = {
    "cycle": ({"0": [1], "1": [4], "2": [3], "3": [2]}, "2", "cycle"),
    "root a child": ({"0": [1], "1": [0]}, "1", "Got the root"),
    "two parents": ({"0": [1, 2], "1": [3], "2": [3]}, "2", "one parent for node 3. Got two, 1 and 2"),
    "child no number": ({"0": ["one"]}, "one", "unknown field"),
    "unreachable": ({"0": [1], "2": [3]}, "2", "Got none for 2: it cannot be reached"),
    "gap": ({"0": [1, 3]}, "2", "without a gap. Got no 2"),
    "huge": ({"0": [10**40]}, "1", "expected nodes 0 to 1000.* Got no 1"),
    "float": ({"0": [1.0]}, "0", "list of nodes"),
    "no list": ({"0": 1}, "0", "list of nodes. Got 1"),
    "two lines": ({"0": [1], "a\nb": [2]}, r"'a\nb'", "unknown field"),
    "too many": ({"0": list(range(1, 65_537))}, "content", "at most 65536 nodes. Got 65537"),
}  # fmt: skip

ARRAYS = {
    "no parents": ({"parents": ...}, "parents", "is missing"),
    "unknown": ({"weights": [1]}, "weights", "unknown array. A tree has parents and mask"),
    "parents of floats": ({"parents": [-1.0, 0.0]}, "parents", "kind 'i'"),
    "parents out of order": ({"parents": [-1, 0, 1, 0, 1, 2]}, "parents", "level order"),
    "too many": ({"parents": [-1, *[0] * 4096]}, "parents", "at most 4096 nodes. Got 4097"),
    "mask": ({"mask": np.array(replaced(MASK, (3, 2), 1), bool)}, "mask", r"expected False at \[3, 2\]\. Got True\. It has to agree with parents"),
    "mask of numbers": ({"mask": MASK}, "mask", "kind 'b'"),
}  # fmt: skip

PATHS_TEXT = "[(0,), (1,), (0, 0), (0, 1), (1, 0)]"
VLLM_CONFIG = {"method": "eagle", "num_speculative_tokens": 5, "speculative_token_tree": PATHS_TEXT}
VLLM = {
    "count too large": ({"num_speculative_tokens": 6}, "num_speculative_tokens", "expected 5, the paths of .* Got 6"),
    "no count": ({"num_speculative_tokens": ...}, "num_speculative_tokens", "is missing"),
    "no tree": ({"speculative_token_tree": ...}, "speculative_token_tree", "is missing"),
    "tree no text": ({"speculative_token_tree": [[0]]}, "speculative_token_tree", r"expected text such as"),
    "tree no Python": ({"speculative_token_tree": "[(0,"}, "speculative_token_tree", "never closed"),
    "tree a call": ({"speculative_token_tree": "print(1)"}, "speculative_token_tree", "Got something else"),
    "tree too long": ({"speculative_token_tree": "[" + "(0,)," * 30_000 + "]"}, "speculative_token_tree", "128000 char"),
}  # fmt: skip


def cases(table: dict[str, tuple]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("content", "field", "reason"), table.values(), ids=table)


class TestInconsistent:
    @cases(GROWMAPS | ARRAYS_OF_GROWMAPS | JSON_ARRAYS)
    def test_umbrella(self, tmp_path, content, field, reason):
        self.check(tmp_path, umbrella(**content), field, reason)

    @cases({name: GROWMAPS[name] for name in ("no roots", "cycle")} | TENSORS)
    def test_sequoia(self, tmp_path, content, field, reason):
        for legacy in (False, True):
            self.check(tmp_path, sequoia(legacy=legacy, **content), field, reason)

    @cases(ARRAYS_OF_GROWMAPS)
    def test_sequoia_tensors(self, tmp_path, content, field, reason):
        tensors = {key: torch.tensor(value, dtype=torch.int64) for key, value in content.items()}
        self.check(tmp_path, sequoia(**tensors), field, reason)

    @cases(PATHS)
    def test_medusa_json(self, tmp_path, content, field, reason):
        data = json.dumps({"choices": {"mine": content}}).encode()
        self.check(tmp_path, data, f"mine{field}", reason.replace(r"path \(", r"path .").replace(r"\),", ".,"))

    @cases({name: PATHS[name] for name in ("missing prefix", "float", "nested deep")})
    def test_medusa_python(self, tmp_path, content, field, reason):
        self.check(tmp_path, f"mine = {content}\n".encode(), f"mine{field}", reason)

    @cases(ADJACENCY)
    def test_nxdi(self, tmp_path, content, field, reason):
        self.check(tmp_path, json.dumps(content).encode(), field, reason)

    @cases(ARRAYS)
    def test_npz(self, tmp_path, content, field, reason):
        self.check(tmp_path, npz(**content), field, reason)

    @cases(ARRAYS)
    def test_safetensors(self, tmp_path, content, field, reason):
        self.check(tmp_path, safetensors_file(**content), field, reason)

    @cases(VLLM)
    def test_vllm(self, tmp_path, content, field, reason):
        changed = {key: value for key, value in (VLLM_CONFIG | content).items() if value is not ...}
        self.check(tmp_path, json.dumps(changed).encode(), field, reason)

    def check(self, folder, data, field, reason):
        """Check that the error is one line that names the file, the field and the reason."""
        path = folder / "tree"
        path.write_bytes(data)
        with pytest.raises(FormatError, match=reason) as caught:
            read_trees(path)
        assert (caught.value.path, caught.value.field) == (path, field)
        assert "\n" not in str(caught.value)
        assert len(caught.value.reason) < 400


GOOD = {
    "treeopt": b'{"format": "treeopt-tree", "version": 1, "parents": [-1, 0, 0, 1, 1, 2]}',
    "sequoia": sequoia(),
    "umbrella": umbrella(),  # on one line, unlike files of UMbreLLa
    "medusa": b"[[1], [0], [0, 1], [0, 0], [1, 0]]",
    "nxdi": b'{"2": [5], "1": [3, 4], "0": [1, 2], "4": []}',
    "npz": npz(),
    "safetensors": safetensors_file(),
    "vllm-tree": json.dumps(VLLM_CONFIG).encode(),
    "parents": b"[-1, 0, 0, 1, 1, 2]",
    "tree-adj": b'{"tree_adj": {"0": [1, 2], "1": [3, 4], "2": [5]}}',
    "choices-config": b"speculative_config:\n  decoding_type: Eagle\n  eagle_choices: [[0], [1], [0, 0], [0, 1], [1, 0]]\n",
}
TENSORS_OF_TREE = torch.load(io.BytesIO(GOOD["sequoia"]), weights_only=True)
MORE = {
    "sequoia, before zip archives": ("sequoia", sequoia(legacy=True)),
    **{
        f"sequoia, {dtype}": ("sequoia", sequoia(mask=TENSORS_OF_TREE["mask"].to(dtype), legacy=dtype == torch.bool))
        for dtype in (torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    },
    "sequoia, transposed bfloat16": ("sequoia", sequoia(mask=TENSORS_OF_TREE["mask"].bfloat16().T.contiguous().T)),
    "sequoia, its keys in another order": ("sequoia", torch_file(dict(sorted(TENSORS_OF_TREE.items())))),
    "medusa, named": ("medusa", b'{"mine": [[0], [1], [0, 0], [0, 1], [1, 0]]}'),
    "medusa, Python": ("medusa", b"import os\nTOPK = 10\nmine = [\n [0], [1],\n [0, 0], [0, 1], [1, 0], # all\n]\n"),
    "medusa, Python, a dict": ("medusa", b"ALL = {'mine': ([0], (1,), [0, 0], [0, 1], [1, 0])}"),
    "medusa, twice": ("medusa", b"[[0], [1], [0, 0], [0, 1], [0, 0], [1, 0], [1]]"),
    "medusa, root listed": ("medusa", b"[[], [0], [1], [0, 0], [0, 1], [1, 0]]"),
    "medusa, branch by branch": ("medusa", b"[[[0], [0, 0], [0, 1]], [[1], [1, 0]]]"),
    "medusa, as text": ("medusa", b'{"choices": ["0", "1", "0,0", " 0, 1", "1,0"]}'),
    "medusa, deep in a configuration": ("medusa", b'{"a": {"b": {"medusa_choices": [[0], [1], [0, 0], [0, 1], [1, 0]]}}}'),
    "vllm, in a configuration": ("vllm-tree", json.dumps({"speculative_config": VLLM_CONFIG, "port": 1}).encode()),
    "choices-config, unindented": ("choices-config", b"medusa_choices:\n- [0]\n- [1]\n- [0, 0]\n- [0, 1]\n- [1, 0]\n"),
    "choices-config, a list": ("choices-config", b"# best\n- [0]\n- [1]\n- [0, 0]\n- [0, 1]\n- - 1\n  - 0\n"),
    "parents, YAML": ("parents", b"- -1\n- 0\n- 0\n- 1\n- 1\n- 2\n"),
    "medusa, UTF-16": ("medusa", "[[0], [1], [0, 0], [0, 1], [1, 0]]".encode("utf-16")),
    "nxdi, as strings": ("nxdi", b'{"0": ["1", "2"], "1": ["3", "4"], "2": ["5"], "3": [], "4": [], "5": []}'),
    "nxdi, not in level order": ("nxdi", b'{"0": [5, 1], "1": [2], "5": [4, 3]}'),
    "parents, named": ("parents", b'{"parents": [-1, 0, 0, 1, 1, 2]}'),
    "parents, root null": ("parents", b'{"parents": [null, 0, 0, 1, 1, 2]}'),
    "parents, not in level order": ("parents", b"[-1, 0, 1, 0, 3, 1]"),
    "tree-adj, a matrix": ("tree-adj", b'{"tree_adj": [[0,1,1,0,0,0],[0,0,0,1,1,0],[0,0,0,0,0,1],[0,0,0,0,0,0],[0,0,0,0,0,0],[0,0,0,0,0,0]]}'),
    "tree-adj, a mask": ("tree-adj", b'{"tree_adj": [[1,0,0,0,0,0],[1,1,0,0,0,0],[1,0,1,0,0,0],[1,1,0,1,0,0],[1,1,0,0,1,0],[1,0,1,0,0,1]]}'),
    "npz, parents only": ("npz", npz(**PARENTS_ONLY)),
    "safetensors, parents only": ("safetensors", safetensors_file(**PARENTS_ONLY)),
    "vllm, bare": ("vllm-tree", f"  {PATHS_TEXT}\n".encode()),
}  # fmt: skip


NO_TREES = {
    "parent beyond": (b"[-1, 0, 5]", "parents[2]", "parent from 0 to 2. Got 5"),
    "parents in a cycle": (b"[-1, 0, 3, 2]", "parents[2]", "cycle"),
    "parents of text": (b'{"parents": ["a"]}', "parents", "begin with -1"),
    "matrix ragged": (b'{"tree_adj": [[0, 1], [0]]}', "tree_adj[1]", "2 entries of 0 and 1"),
    "matrix of both": (b'{"tree_adj": [[0, 1], [0, 1]]}', "tree_adj", "Got both"),
    "matrix with two parents": (b'{"tree_adj": [[0,1,1],[0,0,1],[0,0,0]]}', "tree_adj[1]", "one parent for node 2"),
    "mask of no tree": (b'{"tree_adj": [[1,0,0],[0,1,0],[1,1,1]]}', "tree_adj[1]", "mask of a tree"),
    "adjacency a number": (b'{"tree_adj": 3}', "tree_adj", "Got 3"),
    "aliases": (b"a: &x [1]\nmedusa_choices: [*x]\n", "line 1", "anchors, aliases"),
    "torn YAML": (b"medusa_choices: [[0], [1]\nb: {", "content", "expected YAML"),
}  # fmt: skip


class TestOtherTrees:
    @cases(NO_TREES)
    def test_wrong_trees_raise(self, tmp_path, content, field, reason):
        TestInconsistent().check(tmp_path, content, field, reason)

    @pytest.mark.parametrize(
        ("content", "gap"),
        [([[0], [2]], "2"), ([[1], [2]], "1"), ([[0], [1], [1, 1], [0, 0]], "1, 1"), ([[0], [10**30]], "1")],
    )
    def test_gaps_of_ranks_are_closed_with_a_warning(self, tmp_path, content, gap):
        """Medusa drafts the rank that is named, a treeopt tree the most probable ones."""
        (tmp_path / "tree").write_text(json.dumps(content))
        with pytest.warns(TreeoptWarning, match=rf"path \({gap}.* skips ranks"):
            tree = load_file(tmp_path / "tree").tree
        assert tree.depth.tolist() == [0, *sorted(map(len, content))]


CONFIGURATIONS = {
    "lists of numbers before it": b'{"sizes": [[1, 2]], "speculative_config": {"medusa_choices": [[0], [1], [0, 0]]}}',
    "in a list": b'{"models": [{"name": "m"}, {"medusa_choices": [[0], [1], [0, 0]]}]}',
    "paths as text": b'{"speculative_config": {"eagle_choices": "[[0], [1], [0, 0]]"}}',
    "YAML, adjacency": b"tree_adj:\n  0: [1, 2]\n  1: [3]\n",
    "Python, annotated in a class": b"class C:\n    choices: list\nmine = [[0], [1], [0, 0]]\n",
    "children in a list": b'{"tree_adj": [[1, 2], [3], [], []]}',
    "parents, a comma at the end": b"[-1, 0, 0, 1,]",
    "byte order mark": b"\xef\xbb\xbf[[0], [1], [0, 0]]",
}


class TestConfigurations:
    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_tree_of_a_configuration_loads(self, tmp_path, name):
        (tmp_path / "tree").write_bytes(CONFIGURATIONS[name])
        assert load_file(tmp_path / "tree").tree == TokenTree([-1, 0, 0, 1])

    @pytest.mark.parametrize("key", ["medusa_choices", "tree_adj"])
    def test_several_trees_at_different_places_raise(self, tmp_path, key):
        trees = {"medusa_choices": ([[0]], [[0], [1]]), "tree_adj": ({"0": [1]}, {"0": [1, 2]})}[key]
        content = {"small": {key: trees[0]}, "large": {"inner": {key: trees[1]}}}
        (tmp_path / "tree").write_text(json.dumps(content))
        with pytest.raises(FormatError, match=r"Got trees under small and large\.inner"):
            load_file(tmp_path / "tree")

    def test_keys_that_are_no_text_are_names(self, tmp_path):
        (tmp_path / "tree").write_text("choices:\n  3: [[0]]\n  2020-01-01: [[0], [1]]\n")
        assert [content.tree.nodes for content in read_trees(tmp_path / "tree").values()] == [2, 3]

    def test_large_yaml_raises_before_parsing(self, tmp_path):
        (tmp_path / "tree").write_text("medusa_choices:\n" + "- [0]\n" * 200_000)
        with pytest.raises(FormatError, match="at most 1000000 characters of YAML"):
            load_file(tmp_path / "tree")

    def test_transposed_matrix_raises(self, tmp_path):
        (tmp_path / "tree").write_text('{"tree_adj": [[0, 0, 0], [1, 0, 0], [1, 0, 0]]}')
        with pytest.raises(FormatError, match="Rows are parents"):
            load_file(tmp_path / "tree")


class TestDetection:
    @pytest.mark.parametrize("name", GOOD)
    def test_format_is_detected_by_content(self, tmp_path, name):
        for suffix in (".pt", ".json", ".npz", ""):
            path = tmp_path / f"tree{suffix}"
            path.write_bytes(GOOD[name])
            assert detected_format(path) == name
            assert [content.tree for content in read_trees(path).values()] == [TREE]
            assert load_file(str(path)).tree == TREE

    @pytest.mark.parametrize(("name", "data"), MORE.values(), ids=MORE)
    def test_other_layouts_load(self, tmp_path, name, data):
        (tmp_path / "tree").write_bytes(data)
        assert detected_format(tmp_path / "tree") == name
        assert load_file(tmp_path / "tree").tree == TREE

    @pytest.mark.parametrize("nodes", [2, 39])
    def test_safetensors_header_of_any_length_loads(self, tmp_path, nodes):
        """It begins with its length, and one of 384 bytes was once taken for a pickle."""
        for length in (0x80, 0x180, 0x4B50):
            data = safetensors_file(parents=[-1, *[0] * nodes], **PARENTS_ONLY)
            size = int.from_bytes(data[:8], "little")
            padded = length.to_bytes(8, "little") + data[8 : 8 + size].ljust(length) + data[8 + size :]
            (tmp_path / "tree").write_bytes(padded)
            assert load_file(tmp_path / "tree").tree.nodes == nodes + 1

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "Got an empty file"),
            (b"0", "Got text without a list of paths"),
            (b"\x1f\x8b\x08", "Got a gzip archive: unpack it"),
            (b"Dear reader,\n", "Got text that is no JSON, no YAML with choices, and no Python"),
            (b'{"a": 1, "b": [2]}', r"as one of treeopt, sequoia, .* Got JSON with the keys \['a', 'b'\]"),
            (b'{"0": [1]', "expected JSON .* Is it complete"),
            (b'{"0": [1], "0": [1]}', "the key '0' appears twice"),
            (b'{"format": "treeopt-plan"}', "Got a file of the format 'treeopt-plan'"),
            (b"format: treeopt-profile\nversion: 1\n", "Got a file of the format 'treeopt-profile'"),
            (b"[" * 200_000, "expected JSON .*recursion"),
            (b"x = " + b"(" * 90_000, "no Python"),
            (b"x = " + b"-" * 90_000 + b"1", "no Python .MemoryError"),
            (b"x = [[0]]\n" * 13_000, "more than 128000 characters"),
            (b"PK\x03\x04", "expected a numpy archive or a torch file .*Is it complete"),
            (npz()[:-30], "expected a numpy archive or a torch file .*Is it complete"),
            (sequoia(legacy=True)[:-9], "expected a torch file .*Is it complete"),
            (safetensors_file()[:-1], "expected a safetensors file .*Is it complete"),
            (torch_file(torch.tensor([0.0, 0.6])), r"Got tensor of float32, shape \(2,\): is it an acceptance vector"),
            (torch_file({"fc.weight": torch.ones(2)}), "A growmap has the keys roots"),
            (torch_file({i: [[]] for i in range(99_999)}), "a pickle of more than 400000 bytes, as models have"),
        ],
    )  # fmt: skip
    def test_files_without_trees_raise(self, tmp_path, data, reason):
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(FormatError, match=reason) as caught:
            read_trees(tmp_path / "file")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "advice"),
        [("treeopt-solution", "treeopt show FILE --budget N -o tree.json"), ("treeopt-draft-record", "no tree")],
    )
    def test_treeopt_archives_without_trees_raise(self, tmp_path, name, advice):
        (tmp_path / "file.npz").write_bytes(npz(format=name))
        with pytest.raises(FormatError, match=re.escape(advice)):
            read_trees(tmp_path / "file.npz")

    def test_large_solution_raises(self, tmp_path):
        solve(AcceptanceTable(np.array([0.6, 0.2])), max_nodes=40, max_depth=4).save(tmp_path / "s.npz")
        with np.load(tmp_path / "s.npz") as archive:
            np.savez_compressed(tmp_path / "s.npz", **archive, more=np.zeros(10_000_000))
        with pytest.raises(FormatError, match=r"Got a solution\. Take a tree out of it with: treeopt show"):
            read_trees(tmp_path / "s.npz")

    @pytest.mark.parametrize(
        ("metadata", "field"),
        [({"format": "pt"}, "metadata.format"), ({"format": "treeopt-tree-arrays", "version": "2"}, "metadata.version")],
    )  # fmt: skip
    def test_safetensors_of_another_kind_raise(self, tmp_path, metadata, field):
        (tmp_path / "file").write_bytes(safetensors_file(metadata))
        with pytest.raises(FormatError, match=f"{field}: expected"):
            read_trees(tmp_path / "file")

    def test_safetensors_without_metadata_load(self, tmp_path):
        header = b'{"__metadata__":null,"parents":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}'
        (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header + b"\xff" * 4)
        assert load_file(tmp_path / "file").tree == TokenTree([-1])


class TestNames:
    TEXT = "small = [[0], [1]]\nlarge = [[0], [0, 0]]\nlarge = [[0], [1], [0, 0], [0, 1], [1, 0]]\nother = 'x'\n"

    def test_trees_of_a_python_module_load(self, tmp_path):
        (tmp_path / "choices.py").write_text(self.TEXT)
        trees = {name: content.tree for name, content in read_trees(tmp_path / "choices.py").items()}
        assert trees == {"small": TokenTree([-1, 0, 0]), "large": TREE}
        assert load_file(tmp_path / "choices.py", "large").tree == TREE

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            (None, "contains 2 trees, small, large. Choose one with --name"),
            ("huge", "no tree named huge. Choose one of"),
        ],
    )
    def test_missing_or_unknown_name_raises(self, tmp_path, name, reason):
        (tmp_path / "choices.py").write_text(self.TEXT)
        with pytest.raises(TreeoptError, match=reason):
            load_file(tmp_path / "choices.py", name)

    @pytest.mark.parametrize("name", ["treeopt", "sequoia", "npz"])
    def test_name_raises_for_formats_without_names(self, tmp_path, name):
        (tmp_path / "tree").write_bytes(GOOD[name])
        with pytest.raises(TreeoptError, match=r"its tree has no name\. Got --name mine: leave it out"):
            load_file(tmp_path / "tree", "mine")

    def test_unusual_names_are_quoted(self, tmp_path):
        (tmp_path / "many.json").write_text(json.dumps({f"a\n{i}": [[0]] for i in range(500)}))
        with pytest.raises(TreeoptError, match=r"contains 500 trees, 'a\\n0', .*, \.\.\.\. Choose one") as caught:
            load_file(tmp_path / "many.json")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


class TestProvenance:
    def test_reach_and_provenance_of_a_tree_file_load(self, tmp_path):
        reach, provenance = np.array([1, 0.5, 0.2, 0.3, 0.1, 0.1]), Provenance(tool="me", speedup=1.5)
        TreeFile(tree=TREE, reach=reach, provenance=provenance).save(tmp_path / "tree.json")
        loaded = load_file(tmp_path / "tree.json")
        assert (loaded.provenance, loaded.reach.tolist()) == (provenance, reach.tolist())

    def test_provenance_of_other_formats(self, tmp_path):
        (tmp_path / "g.pt").write_bytes(written("sequoia", tree=k_ary(2, 3)))
        loaded = load_file(tmp_path / "g.pt")
        assert loaded.provenance == Provenance(source=str(tmp_path / "g.pt"), tool=FORMAT_OF["sequoia"].title)
        assert loaded.reach is None
