"""Beam search next to all sequences and to a slow twin; the merged tree next to the set of all prefixes."""

from itertools import product

import numpy as np
import pytest
import torch

from tests.support.slow_beam_expansion import paths_of
from tests.support.slow_redrafter import beginnings, slow_beams
from treeopt.runtime.drafters.beams import beam_search, merge_beams
from treeopt.trees import TokenTree


class Table:
    """A model with a random distribution after every path; its state is the path as a number in base V + 1."""

    def __init__(self, seed, vocabulary, *, coarse=False, nan_after=None):
        self.seed, self.vocabulary, self.coarse, self.nan_after = seed, vocabulary, coarse, nan_after

    def log_probs_after(self, path):
        if len(path) == self.nan_after:
            return [float("nan")] * self.vocabulary
        generator = np.random.default_rng([self.seed, *path, 77])
        if self.coarse:  # sums of these are exact, so that most comparisons are between equals
            return (-0.5 * generator.integers(3, size=self.vocabulary)).tolist()
        return np.log(generator.dirichlet(np.ones(self.vocabulary))).astype(np.float32).tolist()

    def log_prob(self, text):
        return sum(self.log_probs_after(text[:index])[token] for index, token in enumerate(text))

    def log_probs_at(self, state):
        path = []
        while state:
            state, digit = divmod(state, self.vocabulary + 1)
            path.insert(0, digit - 1)
        return self.log_probs_after(path)


def search(tables, width, length):
    """Return the beams of one search for several sequences; a state is a table's number and the table's state."""

    def score(states):
        return torch.tensor([tables[number].log_probs_at(state) for number, state in states.tolist()])

    def advance(states, tokens):
        return torch.stack([states[:, 0], states[:, 1] * (tables[0].vocabulary + 1) + tokens + 1], 1)

    starts = torch.tensor([(number, 0) for number in range(len(tables))])
    return beam_search(starts, score, advance, width=width, length=length)


class TestBeamSearch:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize(("vocabulary", "length", "width"), [(5, 1, 3), (5, 2, 5), (3, 4, 27), (2, 6, 32)])
    def test_wide_beams_are_the_likeliest_of_all_sequences(self, seed, vocabulary, length, width):
        table = Table(seed, vocabulary)
        sequences = sorted(product(range(vocabulary), repeat=length), key=table.log_prob, reverse=True)
        assert search([table], width, length) == [sequences[:width]]

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize(("vocabulary", "length", "width"), [(5, 1, 3), (5, 2, 7), (3, 4, 27), (2, 6, 32)])
    def test_of_equally_likely_sequences_any_may_be_beams(self, seed, vocabulary, length, width):
        table = Table(seed, vocabulary, coarse=True)
        log_probs = sorted(map(table.log_prob, product(range(vocabulary), repeat=length)), reverse=True)
        (beams,) = search([table], width, length)
        assert len(set(beams)) == width
        assert [table.log_prob(beam) for beam in beams] == log_probs[:width]

    @pytest.mark.parametrize("seed", range(30))
    def test_narrow_beams_are_the_slow_twins(self, seed):
        generator = np.random.default_rng(seed)
        vocabulary, length = int(generator.integers(2, 7)), int(generator.integers(1, 5))
        width = int(generator.integers(1, vocabulary + 1))
        table = Table(seed, vocabulary)
        assert search([table], width, length) == [slow_beams(table.log_probs_after, width, length)]

    def test_a_narrow_beam_misses_the_likeliest_sequence(self):
        tables = [Table(seed, 5) for seed in range(20)]
        assert sum(search([table], 1, 3)[0] != search([table], 25, 3)[0][:1] for table in tables) > 3

    def test_beams_are_at_most_all_sequences(self):
        assert len(search([Table(0, 2)], 9, 2)[0]) == 4

    @pytest.mark.parametrize(("width", "length"), [(1, 3), (3, 3), (9, 2)])
    def test_each_sequence_of_a_batch_has_the_beams_it_has_alone(self, width, length):
        tables = [Table(seed, 4) for seed in range(5)]
        assert search(tables, width, length) == [search([table], width, length)[0] for table in tables]

    def test_a_sequence_that_is_not_finite_has_no_beams(self):
        tables = [Table(number, 4, nan_after=length) for number, length in enumerate((1, None, 2, 0, None))]
        alone = [search([table], 3, 3)[0] for table in tables]
        assert search(tables, 3, 3) == [[], alone[1], [], [], alone[4]]
        assert search(tables[:1], 3, 3) == [[]]


def test_tokens_are_read_from_the_device_once(monkeypatch):
    reads, to_list = [], torch.Tensor.tolist

    def tolist(tensor):
        reads.append(tensor)
        return to_list(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    weights = torch.randn((6, 6), generator=torch.Generator().manual_seed(0))
    beams = beam_search(
        torch.eye(6)[:2],
        lambda states: (states @ weights).log_softmax(-1),
        lambda _, tokens: weights[tokens],
        width=3,
        length=4,
    )
    assert [len(beam) for row in beams for beam in row] == [4] * 6
    assert len(reads) == 1


def random_beams(seed):
    """Return different beams of few tokens, so that many share prefixes."""
    generator = np.random.default_rng(seed)
    vocabulary, length = int(generator.integers(2, 5)), int(generator.integers(1, 6))
    sequences = np.array(list(product(range(vocabulary), repeat=length)))
    return [tuple(text) for text in generator.permutation(sequences)[: generator.integers(1, 12)].tolist()]


def is_prefix_tree(merged, beams):
    """Return whether a tree has every prefix of the beams once, siblings in order of their best beams."""
    tree, tokens = merged
    return paths_of(tree, [0, *tokens]) == beginnings(beams)


class TestMerging:
    @pytest.mark.parametrize("seed", range(30))
    def test_every_prefix_is_one_node(self, seed):
        beams = random_beams(seed)
        merged = merge_beams(beams)
        assert {type(token) for token in merged[1]} == {int}
        assert is_prefix_tree(merged, beams)

    def test_examples(self):
        tree, tokens = merge_beams([(5, 7, 1), (5, 7, 2), (5, 8, 1), (6, 7, 1)])
        assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 3, 3, 4, 5]
        assert tokens == [5, 6, 7, 8, 7, 1, 2, 1, 1]
        tree, tokens = merge_beams([(4, 4, 2)])
        assert (tree.parents.tolist(), tokens) == ([-1, 0, 1, 2], [4, 4, 2])

    def test_mistakes_are_found(self):
        unmerged = TokenTree([-1, 0, 0, 0, 1, 2, 3]), [1, 1, 0, 2, 0, 2]
        assert not is_prefix_tree(unmerged, [(1, 2), (1, 0), (0, 2)])
        assert not is_prefix_tree(merge_beams([(0, 2), (1, 2)]), [(1, 2), (0, 2)])
