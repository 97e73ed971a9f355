"""Sequence ids: over a simulated cache of llama.cpp, every node sees its text and its ancestors, and nothing else."""

from itertools import count

import numpy as np
import pytest

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.gguf.cache import END, GGUFCache, NodeIds, SequenceIds
from treeopt.trees import TokenTree, chain, level_widths

TREE = TokenTree([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9])


class Cells:
    """A unified cache after llama.cpp's rules: which cells a token sees goes by its first sequence and its position."""

    def __init__(self):
        self.cells = {}
        self.next = count()

    def copy(self, source, to, first, end):
        for position, ids in self._between(first, end):
            if source in ids:
                assert to not in ids, f"position {position} is in sequence {to} already"
                ids.add(to)

    def remove(self, sequence, first, end):
        for _, ids in self._between(first, end):
            ids.discard(sequence)
        self.cells = {cell: found for cell, found in self.cells.items() if found[1]}

    def clear(self):
        self.cells = {}

    def run(self, positions, ids):
        """Store tokens, each with its ids, as one batch; return the cells that each sees."""
        self._check(positions, ids)
        new = [next(self.next) for _ in positions]
        self.cells |= {cell: (at, set(each)) for cell, at, each in zip(new, positions, ids, strict=True)}
        return new, [
            {cell for cell, (place, owners) in self.cells.items() if each[0] in owners and place <= at}
            for at, each in zip(positions, ids, strict=True)
        ]

    def _check(self, positions, ids):
        """Refuse what `llama_batch_allocr` refuses: gaps, and sequences that share a token but not what is before it."""
        last = {each: self._last(each) for row in ids for each in row}
        for at, row in zip(positions, ids, strict=True):
            assert row, "a token belongs to some sequence"
            assert {last[each] for each in row} == {at - 1}
            last |= dict.fromkeys(row, at)
        seen = {}
        for row in ids:
            for each in row:
                seen[each] = seen.get(each, set(row)) & set(row)
                assert seen[each]

    def _last(self, sequence):
        return max((at for at, ids in self.cells.values() if sequence in ids), default=-1)

    def _between(self, first, end):
        return [found for found in self.cells.values() if found[0] >= first and (end == END or found[0] < end)]


class Simulated:
    """A cache, and which cell holds each token of its text and each node."""

    def __init__(self, texts=1, most=64, beside=None):
        """Make a cache in a memory for several texts, or in that of another, which has the ids for both."""
        self.memory = beside.memory if beside else Cells()
        self.ids = beside.ids if beside else SequenceIds(most, texts)
        self.cache = GGUFCache(self.memory, 1000, self.ids)
        self.slots = {}

    def prefill(self, length):
        self.cache.clear()
        new, _ = self.memory.run(range(length), [[self.cache.lines.committed.id]] * length)
        self.cache.commit_prefill(length)
        self.slots = dict(enumerate(new))

    def feed(self, visible, depth, start=0):
        """Feed nodes and check that each sees the text and what it should."""
        length, size = self.cache.length, len(depth)
        node_ids = self.cache.assign_ids(visible, start)
        counts, ids = node_ids.ids()
        rows = [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]
        new, seen = self.memory.run([length + each for each in depth], rows)
        node_ids.mark_stored()
        self.slots |= {length + start + row: new[row] for row in range(size)}
        for row in range(size):
            expected = {self.slots[slot] for slot in range(length)}
            expected |= {self.slots[length + column] for column in np.flatnonzero(visible[row])}
            if seen[row] != expected:
                return False
        return True

    def commit(self, path):
        length = self.cache.length
        self.cache.commit(path)
        kept = [self.slots[length + offset] for offset in path]
        self.slots |= dict(zip(range(length, length + len(path)), kept, strict=True))


def whole(tree):
    return tree.ancestor_mask, tree.depth.tolist()


def levels(tree):
    """Yield the mask, the depths and the start of each level."""
    for level in tree.levels:
        yield tree.ancestor_mask[level.start : level.stop, : level.stop], tree.depth[level].tolist(), level.start


def random_tree(noise, nodes):
    parents = sorted(int(noise.integers(at)) for at in range(1, nodes))
    return TokenTree([-1, *parents])


@pytest.mark.parametrize("tree", [chain(0), chain(5), level_widths([4, 6, 5, 3]), TREE], ids=str)
def test_a_tree_at_once_and_level_by_level_before_and_after_each_path_is_kept(tree):
    simulated = Simulated()
    simulated.prefill(7)
    for padded in tree.leaf_paths:
        path = padded[padded >= 0].tolist()
        assert simulated.feed(*whole(tree))
        assert all(simulated.feed(*level) for level in levels(tree))
        simulated.commit(path)
        assert simulated.cache.length == simulated.cache.lines.committed.length


def test_random_trees_and_paths_that_end_anywhere():
    noise = np.random.default_rng(0)
    simulated = Simulated()
    for _ in range(12):
        simulated.prefill(int(noise.integers(5)))
        for _ in range(8):
            tree = random_tree(noise, int(noise.integers(1, 20)))
            parts = [(*whole(tree), 0)] if noise.random() < 0.5 else list(levels(tree))
            assert all(simulated.feed(*part) for part in parts)
            node, path = int(noise.integers(tree.nodes)), []
            while node >= 0:
                path, node = [node, *path], int(tree.parents[node])
            simulated.commit(path)


def test_nodes_are_fed_below_a_node_that_has_children_already():
    simulated = Simulated()
    simulated.prefill(3)
    assert simulated.feed(*whole(chain(2)))
    visible = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 1]], np.bool_)  # below node 1 and below the root
    assert simulated.feed(visible, [2, 1], start=3)
    simulated.commit([0, 1, 3])
    assert simulated.feed(*whole(TREE))


def test_a_length_set_beyond_the_text_commits_what_was_fed_and_leaves_what_is_below():
    simulated = Simulated()
    simulated.prefill(3)
    assert simulated.feed(*whole(chain(1)))  # an accepted leaf and the root behind it
    simulated.cache.length += 1
    level = np.array([[1, 1, 0], [1, 0, 1]], np.bool_)
    assert simulated.feed(level, [1, 1], start=1)
    simulated.commit([0, 2])
    assert simulated.cache.length == 6
    assert simulated.feed(*whole(TREE))


def test_a_shorter_text_is_looked_at_and_the_whole_one_again():
    simulated = Simulated()
    simulated.prefill(9)
    for length in (4, 8, 2, 9, 9, 1):
        simulated.cache.length = length
        slots = dict(simulated.slots)
        assert simulated.feed(*whole(TREE))
        simulated.slots = slots


def test_ids_of_a_chain_are_two_and_those_of_a_tree_one_more_than_its_leaves():
    for tree, expected in ((chain(6), 2), (level_widths([5, 9]), 10)):
        simulated = Simulated(most=expected)
        simulated.prefill(2)
        for _ in range(3):
            assert simulated.feed(*whole(tree))
            simulated.commit([0])


def test_texts_of_unlike_lengths_in_one_memory_see_nothing_of_one_another():
    noise = np.random.default_rng(3)
    first = Simulated(most=200)
    texts = [first, *(Simulated(beside=first) for _ in range(3))]
    for each in texts:
        each.prefill(int(noise.integers(9)))
    for _ in range(60):
        each = texts[noise.integers(len(texts))]
        if noise.random() < 0.2:  # it has ended, and another one takes its place
            each.prefill(int(noise.integers(9)))
        tree = random_tree(noise, int(noise.integers(2, 12)))
        assert each.feed(*whole(tree))
        padded = tree.leaf_paths[noise.integers(len(tree.leaf_paths))]
        each.commit(padded[padded >= 0].tolist())


def test_a_text_that_ends_leaves_its_ids_to_the_next():
    simulated = Simulated(most=4)
    for _ in range(5):
        simulated.prefill(2)
        assert simulated.feed(*whole(level_widths([3])))


def test_what_a_pass_that_was_broken_off_left_is_forgotten_with_the_text():
    simulated = Simulated()
    simulated.prefill(2)
    visible, depth = whole(TREE)
    node_ids = simulated.cache.assign_ids(visible, 0)
    counts, ids = node_ids.ids()
    rows = [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]
    simulated.memory.run([2 + each for each in depth], rows)  # and nobody notes what was stored
    simulated.cache.clear()
    assert simulated.memory.cells == {}
    simulated.prefill(3)
    assert simulated.feed(visible, depth)


def test_too_many_leaves_are_refused_in_one_line():
    simulated = Simulated(texts=2, most=16)
    other = Simulated(beside=simulated)
    for each in (simulated, other):
        each.prefill(2)
        assert each.feed(*whole(level_widths([7])))
    with pytest.raises(
        InvalidValueError,
        match=r"^tree: expected at most 7 leaves.* 16 sequences for a batch of 2\..*: take .*, or a smaller batch",
    ):
        simulated.feed(*whole(level_widths([8])))


@pytest.mark.parametrize(
    "visible",
    [
        [[1, 1], [1, 1]],
        [[1, 0, 0], [0, 1, 0], [1, 1, 1]],
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]],
    ],
    ids=str,
)
def test_a_mask_that_is_no_tree_s_is_refused(visible):
    simulated = Simulated()
    simulated.prefill(2)
    with pytest.raises(InvalidValueError, match=r"^mask: expected that of a tree"):
        simulated.cache.assign_ids(np.array(visible, np.bool_), 0)


def test_a_path_that_was_never_fed_cannot_be_kept():
    simulated = Simulated()
    simulated.prefill(2)
    assert simulated.feed(*whole(level_widths([2])))
    with pytest.raises(InvalidValueError, match=r"^path: expected nodes that were fed"):
        simulated.cache.commit([0, 1, 2])


def test_ids_shifted_by_a_leaf_are_found(monkeypatch):
    """Negative control: in the second part of a tree, each leaf's sequence is its neighbour's."""
    ids = NodeIds.ids

    def shifted(self):
        counts, found = ids(self)
        lines = sorted({line.id for line in self._lines})
        next_id = dict(zip(lines, lines[1:] + lines[:1], strict=True))
        return counts, np.array([next_id[each] for each in found], np.int32)

    simulated = Simulated()
    simulated.prefill(2)
    first, second, *_ = levels(TREE)
    third = list(levels(TREE))[2]
    assert simulated.feed(*first)
    assert simulated.feed(*second)
    monkeypatch.setattr(NodeIds, "ids", shifted)
    try:
        right = simulated.feed(*third)
    except AssertionError:  # llama.cpp's own checks
        right = False
    assert not right
