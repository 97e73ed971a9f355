"""Over a simulated cache of llama.cpp, each node attends to its sequence and its ancestors only."""

from itertools import count

import numpy as np
import pytest

from treeopt.errors import InvalidValueError
from treeopt.runtime.models.gguf.cache import GGUFCache, NodeIds, SequenceIds
from treeopt.runtime.models.gguf.library import END
from treeopt.trees import TokenTree, chain, level_widths

TREE = TokenTree([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9])


class Cells:
    """A unified cache by llama.cpp's rules: a token attends to earlier positions that carry its first sequence id."""

    def __init__(self):
        self.cells = {}
        """Position and ids of each cell."""
        self.new_cell = count()

    def copy(self, source, to, first, end):
        for position, ids in self._between(first, end):
            if source in ids:
                assert to not in ids, f"position {position} is in sequence {to} already"
                ids.add(to)

    def remove(self, sequence, first, end):
        for _, ids in self._between(first, end):
            ids.discard(sequence)
        self.cells = {cell: content for cell, content in self.cells.items() if content[1]}

    def run(self, positions, ids):
        """Store tokens, each with its ids, as one batch; return their cells and the cells that each attends to."""
        self._check(positions, ids)
        new = [next(self.new_cell) for _ in positions]
        self.cells |= {cell: (at, set(row)) for cell, at, row in zip(new, positions, ids, strict=True)}
        return new, [
            {cell for cell, (position, owners) in self.cells.items() if row[0] in owners and position <= at}
            for at, row in zip(positions, ids, strict=True)
        ]

    def _check(self, positions, ids):
        """Refuse what `llama_batch_allocr` refuses: gaps, and sequences that share a token but not those before it."""
        last = {sequence: self._last(sequence) for row in ids for sequence in row}
        for at, row in zip(positions, ids, strict=True):
            assert row, "a token needs a sequence id"
            assert {last[sequence] for sequence in row} == {at - 1}
            last |= dict.fromkeys(row, at)
        shared = {}
        for row in ids:
            for sequence in row:
                shared[sequence] = shared.get(sequence, set(row)) & set(row)
                assert shared[sequence]

    def _last(self, sequence):
        return max((position for position, ids in self.cells.values() if sequence in ids), default=-1)

    def _between(self, first, end):
        return [content for content in self.cells.values() if content[0] >= first and (end == END or content[0] < end)]


class Simulated:
    """A cache with the cell of each slot.

    Args:
        caches: number of caches that share the sequence ids.
        most: number of sequence ids.
        neighbour: another cache, in whose memory this one is made.
    """

    def __init__(self, caches=1, most=64, neighbour=None):
        self.memory = neighbour.memory if neighbour else Cells()
        self.ids = neighbour.ids if neighbour else SequenceIds(most, caches)
        self.cache = GGUFCache(self.memory, 1000, self.ids)
        self.slots = {}

    def prefill(self, length):
        self.cache.clear()
        new, _ = self.memory.run(range(length), [[self.cache.committed.id]] * length)
        self.cache.commit_prefill(length)
        self.slots = dict(enumerate(new))

    def store(self, visible, depth, start=0):
        """Feed nodes; return their ids, their cells and the cells that each attends to."""
        node_ids = self.cache.assign_ids(visible, start)
        counts, ids = node_ids.ids()
        rows = [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]
        return node_ids, *self.memory.run([self.cache.length + row for row in depth], rows)

    def feed(self, visible, depth, start=0):
        """Feed nodes; return whether each attends to the committed tokens and its visible nodes only."""
        length = self.cache.length
        node_ids, new, attended = self.store(visible, depth, start)
        node_ids.mark_stored()
        self.slots |= {length + start + row: cell for row, cell in enumerate(new)}
        committed = {self.slots[slot] for slot in range(length)}
        return attended == [
            committed | {self.slots[length + column] for column in np.flatnonzero(row)} for row in visible
        ]

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


def random_tree(generator, nodes):
    return TokenTree([-1, *sorted(int(generator.integers(node)) for node in range(1, nodes))])


def test_random_trees_and_paths():
    generator = np.random.default_rng(0)
    simulated = Simulated()
    for _ in range(12):
        simulated.prefill(int(generator.integers(5)))
        for _ in range(8):
            tree = random_tree(generator, int(generator.integers(1, 20)))
            parts = [(*whole(tree), 0)] if generator.random() < 0.5 else list(levels(tree))
            assert all(simulated.feed(*part) for part in parts)
            node, path = int(generator.integers(tree.nodes)), []
            while node >= 0:
                path, node = [node, *path], int(tree.parents[node])
            simulated.commit(path)


def test_nodes_below_a_node_that_has_children():
    simulated = Simulated()
    simulated.prefill(3)
    assert simulated.feed(*whole(chain(2)))
    visible = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 1]], np.bool_)  # below node 1 and below the root
    assert simulated.feed(visible, [2, 1], start=3)
    simulated.commit([0, 1, 3])
    assert simulated.feed(*whole(TREE))


def test_longer_length_commits_fed_nodes():
    simulated = Simulated()
    simulated.prefill(3)
    assert simulated.feed(*whole(chain(1)))  # an accepted leaf and the root after it
    simulated.cache.length += 1
    level = np.array([[1, 1, 0], [1, 0, 1]], np.bool_)
    assert simulated.feed(level, [1, 1], start=1)
    simulated.commit([0, 2])
    assert simulated.cache.length == 6
    assert simulated.feed(*whole(TREE))


def test_shorter_length_hides_tokens_and_a_commit_drops_them():
    simulated = Simulated()
    simulated.prefill(9)
    for length in (4, 8, 2, 9, 9, 1):
        simulated.cache.length = length
        slots = dict(simulated.slots)
        assert simulated.feed(*whole(TREE))
        simulated.slots = slots
    simulated.cache.length = 4
    assert simulated.feed(*whole(TREE))
    simulated.commit([0, 2, 7])
    assert simulated.feed(*whole(TREE))


def test_a_commit_after_a_shorter_length_drops_tokens_of_unused_ids():
    simulated, wide = Simulated(), level_widths([6])
    simulated.prefill(9)
    assert simulated.feed(*whole(wide))
    simulated.cache.length = 4
    assert simulated.feed(*whole(chain(2)))
    simulated.commit([0, 1, 2])
    assert simulated.feed(*whole(wide))


@pytest.mark.parametrize(("tree", "ids"), [(chain(6), 2), (level_widths([5, 9]), 10)])
def test_tree_needs_an_id_per_leaf_and_one_more(tree, ids):
    simulated = Simulated(most=ids)
    for _ in range(2):  # the next sequence reuses the ids
        simulated.prefill(2)
        for _ in range(3):
            assert simulated.feed(*whole(tree))
            simulated.commit([0])


def test_sequences_of_one_memory_do_not_see_each_other():
    generator = np.random.default_rng(3)
    first = Simulated(most=200)
    sequences = [first, *(Simulated(neighbour=first) for _ in range(3))]
    for sequence in sequences:
        sequence.prefill(int(generator.integers(9)))
    for _ in range(60):
        sequence = sequences[generator.integers(len(sequences))]
        if generator.random() < 0.2:  # another sequence takes its cache
            sequence.prefill(int(generator.integers(9)))
        tree = random_tree(generator, int(generator.integers(2, 12)))
        assert sequence.feed(*whole(tree))
        padded = tree.leaf_paths[generator.integers(len(tree.leaf_paths))]
        sequence.commit(padded[padded >= 0].tolist())


def test_clear_drops_nodes_of_an_interrupted_pass():
    simulated = Simulated()
    simulated.prefill(2)
    simulated.store(*whole(TREE))  # interrupted before `mark_stored`
    simulated.cache.clear()
    assert simulated.memory.cells == {}
    simulated.prefill(3)
    assert simulated.feed(*whole(TREE))


def test_too_many_leaves_are_refused():
    simulated = Simulated(caches=2, most=16)
    other = Simulated(neighbour=simulated)
    for sequence in (simulated, other):
        sequence.prefill(2)
        assert sequence.feed(*whole(level_widths([7])))
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
def test_mask_that_is_not_of_a_tree_is_refused(visible):
    simulated = Simulated()
    simulated.prefill(2)
    with pytest.raises(InvalidValueError, match=r"^mask: expected that of a tree"):
        simulated.cache.assign_ids(np.array(visible, np.bool_), 0)


def test_commit_of_nodes_that_were_not_fed_is_refused():
    simulated = Simulated()
    simulated.prefill(2)
    assert simulated.feed(*whole(level_widths([2])))
    with pytest.raises(InvalidValueError, match=r"^path: expected nodes that were fed"):
        simulated.cache.commit([0, 1, 2])


def test_ids_of_a_neighbour_are_detected(monkeypatch):
    """Negative control: in the third level, each leaf has its neighbour's sequence id."""
    ids = NodeIds.ids

    def shift_ids(self):
        counts, node_ids = ids(self)
        lines = sorted({line.id for line in self._lines})
        following = dict(zip(lines, lines[1:] + lines[:1], strict=True))
        return counts, np.array([following[node_id] for node_id in node_ids], np.int32)

    simulated = Simulated()
    simulated.prefill(2)
    first, second, third, *_ = levels(TREE)
    assert simulated.feed(*first)
    assert simulated.feed(*second)
    monkeypatch.setattr(NodeIds, "ids", shift_ids)
    try:
        right = simulated.feed(*third)
    except AssertionError:  # llama.cpp's own checks
        right = False
    assert not right
