"""Arrays as tree kernels take them: equal to those in the kernels' own tests, and decoded bit by bit to the same tree."""

import io
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from tests.trees.formats.test_writing import trees
from treeopt.arrays import Array
from treeopt.errors import FormatError
from treeopt.trees import TokenTree, chain
from treeopt.trees.formats import WriteOptions, format_named, read_tree

PAGE = Path(__file__).resolve().parents[3] / "docs" / "engines" / "arrays.md"
KERNEL_ARRAYS = {
    "retrieve_index": "int64",
    "retrieve_next_token": "int64",
    "retrieve_next_sibling": "int64",
    "medusa_packed_mask": "int32",
    "medusa_paths": "int32",
    "packed_custom_mask": "uint8",
}


def exported(tree: TokenTree) -> dict[str, Array]:
    data = format_named("npz").write(tree, WriteOptions(), ".npz").data
    return dict(np.load(io.BytesIO(data)))


def lists(tree: TokenTree) -> dict[str, list]:
    arrays = exported(tree)
    return {name: arrays[name].tolist() for name in KERNEL_ARRAYS}


class TestSglang:
    """The trees, numbered level by level, and arrays of `test_build_eagle_tree.py`, two texts of 8 tokens."""

    FIRST, SECOND = TokenTree([-1, 0, 0, 1, 2, 3, 4, 5]), TokenTree([-1, 0, 1, 1, 1, 1, 3, 6])

    def test_links_of_two_trees(self):
        first, second = lists(self.FIRST), lists(self.SECOND)
        assert first["retrieve_next_token"] == [1, 3, 4, 5, 6, 7, -1, -1]
        assert first["retrieve_next_sibling"] == [-1, 2, -1, -1, -1, -1, -1, -1]
        assert second["retrieve_next_token"] == [1, 2, -1, 6, -1, -1, 7, -1]
        assert second["retrieve_next_sibling"] == [-1, -1, 3, 4, 5, -1, -1, -1]

    def test_a_batch_offsets_indices_and_nothing_else(self):
        texts = [exported(self.FIRST), exported(self.SECOND)]
        batch = np.stack([text["retrieve_index"] + 8 * number for number, text in enumerate(texts)])
        assert batch.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]
        positions = [int(at) for text, length in zip(texts, (5, 10), strict=True) for at in length + text["positions"]]
        assert positions == [5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 12, 12, 12, 12, 13, 14]

    def test_the_root_alone(self):
        found = lists(TokenTree([-1]))
        assert found["retrieve_index"] == [0]
        assert found["retrieve_next_token"] == found["retrieve_next_sibling"] == [-1]

    def test_greedy_acceptance_of_two_texts(self):
        """The tokens and results of `test_verify_tree_greedy`; its nodes, which stand in depth-first order, renumbered."""
        first, second = TokenTree([-1, 0, 0, 1, 2, 4]), TokenTree([-1, 0, 0, 1, 2, 4])
        accepted = walked(exported(first), tokens=[0, 1, 3, 2, 4, 5], target=[3, 18, 4, 18, 5, 18])
        assert accepted == [0, 2, 4, 5]
        accepted = walked(exported(second), tokens=[7, 11, 8, 12, 9, 10], target=[11, 12, 18, 18, 18, 18])
        assert accepted == [0, 1, 3]


class TestTensorRtLlm:
    """`simpleChoices` and single rows of `mcSim7663Choices` of `medusaModuleTest.cpp`."""

    SIMPLE = TokenTree([-1, 0, 0, 1, 1, 1, 2, 2, 3, 6, 6])

    def test_simple_choices(self):
        found = lists(self.SIMPLE)
        assert found["medusa_packed_mask"] == [[1], [3], [5], [11], [19], [35], [69], [133], [267], [581], [1093]]
        assert found["medusa_paths"] == [
            [0, 1, 3, 8],
            [0, 1, 4, -1],
            [0, 1, 5, -1],
            [0, 2, 6, 9],
            [0, 2, 6, 10],
            [0, 2, 7, -1],
        ]

    def test_two_words_and_the_sign(self):
        children = {0: 10, 1: 10, 2: 7, 3: 3, 4: 2, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1}
        children |= {11: 10, 12: 3, 13: 2, 14: 1, 15: 1, 16: 1, 17: 1, 18: 1, 21: 2, 28: 1, 39: 2}
        tree = TokenTree([-1, *(node for node in sorted(children) for _ in range(children[node]))])
        found = lists(tree)
        rows = {31: [-2147483631, 0], 32: [17, 1], 38: [1025, 64], 59: [2097157, 134217728], 61: [268435465, 536870912]}
        rows |= {62: [2051, 1073741952], 63: [2051, -2147483520]}
        assert {row: found["medusa_packed_mask"][row] for row in rows} == rows
        assert len(found["medusa_packed_mask"]) == 64
        assert found["medusa_paths"][:3] == [[0, 1, 11, 39, 62], [0, 1, 11, 39, 63], [0, 1, 11, 40, -1]]
        assert found["medusa_paths"][21:24] == [[0, 1, 19, -1, -1], [0, 1, 20, -1, -1], [0, 2, 21, 59, -1]]
        assert found["medusa_paths"][-1] == [0, 10, 38, -1, -1]

    @pytest.mark.parametrize(("nodes", "words"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
    def test_words_of_a_row(self, nodes, words):
        packed = exported(chain(nodes - 1))["medusa_packed_mask"]
        assert packed.shape == (nodes, words)
        assert packed[-1].tolist() == [-1] * (nodes // 32) + [2 ** (nodes % 32) - 1] * (nodes % 32 > 0)


class TestFlashInfer:
    def test_by_hand(self):
        """Rows 100, 110, 101 are the bits 100110101, lowest bit first: 1 + 8 + 16 + 64, and 1 in a second byte."""
        assert lists(TokenTree([-1, 0, 0]))["packed_custom_mask"] == [89, 1]


class TestPage:
    """The lines that docs/engines/arrays.md gives for a batch, run as they stand."""

    def run(self, tree: TokenTree, batch_size: int, context_tokens: int) -> dict[str, Array]:
        _, _, section = PAGE.read_text("utf-8").partition("\n### A batch\n")
        lines = section.partition("```python\n")[2].partition("```")[0]
        found = {"numpy": np, "arrays": exported(tree), "batch_size": batch_size, "context_tokens": context_tokens}
        exec(lines, found)  # noqa: S102, our own page
        return found

    def test_three_texts(self):
        found = self.run(TokenTree([-1, 0, 0]), batch_size=3, context_tokens=0)
        assert found["retrieve_index"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert found["retrieve_next_token"].tolist() == [[1, -1, -1]] * 3
        assert found["medusa_packed_mask"].tolist() == [[[1], [3], [5]]] * 3
        assert found["packed_custom_mask"].tolist() == [89, 1] * 3
        assert found["packed_with_context"].tolist() == [89, 1]

    def test_two_tokens_before_a_root_and_its_child(self):
        """Rows 1110 and 1111, packed without a gap."""
        found = self.run(chain(1), batch_size=1, context_tokens=2)
        assert found["custom_mask"].tolist() == [True, True, True, False, True, True, True, True]
        assert found["packed_with_context"].tolist() == [0b11110111]


def walked(arrays: dict[str, Array], tokens: list[int], target: list[int]) -> list[int]:
    """Return the path whose tokens are what the target says after each node, found by the links alone."""
    path, node = [0], int(arrays["retrieve_next_token"][0])
    while node != -1:
        if tokens[node] == target[path[-1]]:
            path.append(node)
            node = int(arrays["retrieve_next_token"][node])
        else:
            node = int(arrays["retrieve_next_sibling"][node])
    return path


def parents_of_links(arrays: dict[str, Array]) -> list[int]:
    """Return the parents found by walking from the root; -2 for a node that no link leads to."""
    parents, waiting = [-1] + [-2] * (len(arrays["retrieve_index"]) - 1), [0]
    while waiting:
        parent = waiting.pop()
        child = int(arrays["retrieve_next_token"][parent])
        while child != -1:
            parents[child] = parent
            waiting.append(child)
            child = int(arrays["retrieve_next_sibling"][child])
    return parents


def ranks_of_links(arrays: dict[str, Array]) -> list[int]:
    ranks = [0] * len(arrays["retrieve_index"])
    for child in arrays["retrieve_next_token"].tolist():
        rank = 0
        while child != -1:
            ranks[child], rank = rank, rank + 1
            child = int(arrays["retrieve_next_sibling"][child])
    return ranks


def ancestors_of_words(packed: Array) -> list[set[int]]:
    """Return the columns whose bit is set: bit b of word w is column 32 w + b."""
    return [{32 * w + b for w, word in enumerate(row) for b in range(32) if word >> b & 1} for row in packed.tolist()]


def ancestors_of_bytes(packed: Array, nodes: int) -> list[set[int]]:
    """Return the columns whose bit is set: bit k % 8 of byte k // 8 is row k // nodes, column k % nodes."""
    values = packed.tolist()
    assert len(values) == -(-(nodes**2) // 8)
    assert values[-1] >> ((nodes**2 - 1) % 8 + 1) == 0
    bit = [[values[(row * nodes + column) // 8] >> (row * nodes + column) % 8 & 1 for column in range(nodes)]
           for row in range(nodes)]  # fmt: skip
    return [{column for column in range(nodes) if bit[row][column]} for row in range(nodes)]


def ancestors(tree: TokenTree) -> list[set[int]]:
    found: list[set[int]] = []
    for node, parent in enumerate(tree.parents.tolist()):
        found.append({node} | (found[parent] if node else set()))
    return found


def paths_in_depth_first_order(tree: TokenTree, node: int = 0) -> list[list[int]]:
    below = [path for child in tree.children(node) for path in paths_in_depth_first_order(tree, child)]
    return [[node, *path] for path in below] or [[node]]


def larger_trees() -> st.SearchStrategy[TokenTree]:
    """Trees of up to 80 nodes, so that rows of three words occur."""
    return st.lists(st.integers(0, 10**6), max_size=79).map(
        lambda numbers: TokenTree.ordered([-1, *(number % (node + 1) for node, number in enumerate(numbers))])
    )


@settings(deadline=None, max_examples=examples(100))
@given(tree=trees() | larger_trees())
def test_every_array_alone_tells_the_tree(tree):
    arrays = exported(tree)
    assert {name: str(arrays[name].dtype) for name in KERNEL_ARRAYS} == KERNEL_ARRAYS
    assert arrays["retrieve_index"].tolist() == list(range(tree.nodes))
    assert parents_of_links(arrays) == tree.parents.tolist()
    assert ranks_of_links(arrays) == tree.rank.tolist()
    assert ancestors_of_words(arrays["medusa_packed_mask"]) == ancestors(tree)
    assert ancestors_of_bytes(arrays["packed_custom_mask"], tree.nodes) == ancestors(tree)
    paths = [path + [-1] * (tree.max_depth + 1 - len(path)) for path in paths_in_depth_first_order(tree)]
    assert arrays["medusa_paths"].tolist() == paths


def test_safetensors_hold_the_same():
    tree = TestTensorRtLlm.SIMPLE
    found = safetensors.numpy.load(format_named("safetensors").write(tree, WriteOptions(), ".safetensors").data)
    expected = exported(tree)
    assert {name: (str(array.dtype), array.tolist()) for name, array in found.items()} == {
        name: (str(array.dtype), array.tolist()) for name, array in expected.items()
    }


def reversed_bits(packed: Array) -> Array:
    """Return an array with the bits of every byte in the opposite order."""
    raw = packed.view(np.uint8)
    return np.packbits(np.unpackbits(raw, bitorder="little"), bitorder="big").view(packed.dtype).reshape(packed.shape)


def swapped_siblings(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the links with the first two children of the root in the opposite order."""
    first, second = int(arrays["retrieve_next_token"][0]), int(arrays["retrieve_next_sibling"][1])
    tokens, siblings = arrays["retrieve_next_token"].copy(), arrays["retrieve_next_sibling"].copy()
    tokens[0], siblings[first], siblings[second] = second, siblings[second], first
    return arrays | {"retrieve_next_token": tokens, "retrieve_next_sibling": siblings}


class TestControls:
    """What another packing would look like is told apart by the decoders above, and refused by the reader."""

    TREE = TestTensorRtLlm.SIMPLE

    def test_reversed_bits(self, tmp_path):
        arrays, expected = exported(self.TREE), ancestors(self.TREE)
        assert ancestors_of_words(reversed_bits(arrays["medusa_packed_mask"])) != expected
        for name in ("medusa_packed_mask", "packed_custom_mask"):
            refused(tmp_path, arrays | {name: reversed_bits(arrays[name])}, name)

    def test_rows_that_end_at_whole_bytes(self, tmp_path):
        arrays = exported(self.TREE)
        padded = np.packbits(arrays["mask"], axis=1, bitorder="little").ravel()
        refused(tmp_path, arrays | {"packed_custom_mask": padded}, "packed_custom_mask")

    def test_siblings_swapped(self, tmp_path):
        swapped = swapped_siblings(exported(self.TREE))
        assert parents_of_links(swapped) == self.TREE.parents.tolist()
        assert ranks_of_links(swapped) != self.TREE.rank.tolist()
        refused(tmp_path, swapped, "retrieve_next_token")

    def test_paths_in_the_order_of_leaves(self, tmp_path):
        arrays = exported(self.TREE)
        refused(tmp_path, arrays | {"medusa_paths": arrays["leaf_paths"]}, "medusa_paths")

    def test_indices_of_the_second_text(self, tmp_path):
        arrays = exported(self.TREE)
        refused(tmp_path, arrays | {"retrieve_index": arrays["retrieve_index"] + 11}, "retrieve_index")

    def test_packed_numbers_with_a_sign(self, tmp_path):
        arrays = exported(self.TREE)
        signed = {"packed_custom_mask": arrays["packed_custom_mask"].view(np.int8)}
        refused(tmp_path, arrays | signed, "packed_custom_mask")

    def test_wider_numbers_of_the_same_values_are_read(self, tmp_path):
        arrays = exported(self.TREE)
        wider = {name: array.astype(np.int64) for name, array in arrays.items() if array.dtype == np.int32}
        np.savez(tmp_path / "wider.npz", **(arrays | wider))
        assert read_tree(tmp_path / "wider.npz").tree == self.TREE

    @pytest.mark.slow
    def test_the_largest_file_of_all(self, tmp_path):
        """Half of the nodes in a chain, the others its last node's children: no tree has larger paths."""
        tree = TokenTree([-1, *range(2047), *[2047] * 2048])
        arrays = exported(tree)
        wider = {name: array.astype(np.int64) for name, array in arrays.items() if array.dtype.kind == "i"}
        np.savez(tmp_path / "wider.npz", **(arrays | wider))
        assert read_tree(tmp_path / "wider.npz").tree == tree


def refused(folder: Path, arrays: dict[str, Array], name: str) -> None:
    """Expect that a file of these arrays is refused for one of them."""
    np.savez(folder / "tree.npz", **arrays)
    with pytest.raises(FormatError, match=r"has to agree with parents|expected kind") as caught:
        read_tree(folder / "tree.npz")
    assert caught.value.field == name
