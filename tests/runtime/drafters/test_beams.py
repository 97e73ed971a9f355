"""Beam search against all texts and against a slow twin; merging against the set of all beginnings."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from tests.support.slow_beam_expansion import paths_of
from tests.support.slow_redrafter import beginnings, slow_beams
from treeopt.runtime.drafters.beams import MergedBeams, beam_search, merge_beams, top_per_row
from treeopt.trees import TokenTree


class Table:
    """A model whose distribution after every text is made up anew; its state is the text's number in base `vocabulary` + 1."""

    def __init__(self, seed, vocabulary, *, coarse=False):
        self.seed, self.vocabulary, self.coarse = seed, vocabulary, coarse

    def log_probs_after(self, path):
        generator = np.random.default_rng([self.seed, *path, 77])
        if self.coarse:  # sums of these are exact, so that most comparisons are between equals
            return (-0.5 * generator.integers(3, size=self.vocabulary)).tolist()
        return np.log(generator.dirichlet(np.ones(self.vocabulary))).astype(np.float32).tolist()

    def score(self, states):
        return torch.tensor([self.log_probs_after(self._path(int(state))) for state in states])

    def advance(self, states, tokens):
        return states * (self.vocabulary + 1) + tokens[:, None] + 1

    def beams(self, width, length):
        start = torch.zeros((1, 1), dtype=torch.int64)
        return beam_search(start, self.score, self.advance, width=width, length=length)[0]

    def _path(self, state):
        path = []
        while state:
            state, digit = divmod(state, self.vocabulary + 1)
            path.insert(0, digit - 1)
        return path


class TestBeamSearch:
    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize(("vocabulary", "length", "width"), [(5, 1, 3), (5, 2, 5), (3, 4, 27), (2, 6, 32)])
    def test_beams_wide_enough_are_the_likeliest_of_all_texts(self, seed, vocabulary, length, width):
        table = Table(seed, vocabulary)

        def log_prob(text):
            return sum(table.log_probs_after(text[:place])[token] for place, token in enumerate(text))

        texts = sorted(product(range(vocabulary), repeat=length), key=log_prob, reverse=True)
        assert table.beams(width, length) == texts[:width]

    @pytest.mark.parametrize("coarse", [False, True])
    @pytest.mark.parametrize("seed", range(30))
    def test_beams_of_any_width_are_those_of_the_slow_twin(self, seed, coarse):
        generator = np.random.default_rng(seed)
        vocabulary, length = int(generator.integers(2, 7)), int(generator.integers(1, 5))
        width = int(generator.integers(1, vocabulary + 1))
        table = Table(seed, vocabulary, coarse=coarse)
        beams = table.beams(width, length)
        assert beams == slow_beams(table.log_probs_after, width, length)

    def test_a_narrow_beam_misses_the_likeliest_text(self):
        differ = sum(Table(seed, 5).beams(1, 3) != Table(seed, 5).beams(25, 3)[:1] for seed in range(20))
        assert differ > 3

    def test_there_are_no_more_beams_than_texts(self):
        assert len(Table(0, 2).beams(9, 2)) == 4

    def test_equals_that_do_not_come_in_order_are_found(self, monkeypatch):
        def last_first(scores, count):
            last = scores.shape[1] - 1
            return [[(last - index, score) for index, score in each] for each in top_per_row(scores.flip(1), count)]

        monkeypatch.setattr("treeopt.runtime.drafters.beams.top_per_row", last_first)
        tables = [Table(seed, 4, coarse=True) for seed in range(10)]
        found = [table.beams(3, 3) for table in tables]
        assert found != [slow_beams(table.log_probs_after, 3, 3) for table in tables]

    @pytest.mark.parametrize("seed", range(20))
    def test_the_largest_are_those_of_a_stable_sort(self, seed):
        generator = np.random.default_rng(seed)
        scores = generator.integers(6, size=(3, int(generator.integers(1, 40)))).astype(np.float32)
        orders = np.argsort(-scores, kind="stable").tolist()
        for count in range(1, scores.shape[1] + 1):
            found = top_per_row(torch.from_numpy(scores), count)
            assert found == [
                [(index, row[index]) for index in order[:count]] for row, order in zip(scores, orders, strict=True)
            ]

    def test_nothing_is_the_largest_where_one_is_nan(self):
        scores = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 2.0, 1.0], [float("nan")] * 3])
        for count in (1, 2, 3):
            assert top_per_row(scores, count) == [[], [(0, 3.0), (1, 2.0), (2, 1.0)][:count], []]


class NotFinite(Table):
    """A model that is not finite after texts of some length."""

    def log_probs_after(self, path):
        return [float("nan")] * self.vocabulary if len(path) == self.seed else super().log_probs_after(path)


class TestSeveralTexts:
    def beams(self, tables, width, length):
        """Return the beams of one search in the texts of all tables; a state is a table's number and its own state."""

        def score(states):
            paths = [(tables[number], tables[number]._path(own)) for number, own in states.tolist()]
            return torch.tensor([table.log_probs_after(path) for table, path in paths])

        def advance(states, tokens):
            return torch.stack([states[:, 0], tables[0].advance(states[:, 1:], tokens)[:, 0]], 1)

        starts = torch.tensor([(number, 0) for number in range(len(tables))])
        return beam_search(starts, score, advance, width=width, length=length)

    @pytest.mark.parametrize("coarse", [False, True])
    @pytest.mark.parametrize(("width", "length"), [(1, 1), (1, 3), (3, 3), (9, 2)])
    def test_each_has_the_beams_that_it_has_alone(self, width, length, coarse):
        tables = [Table(seed, 4, coarse=coarse) for seed in range(5)]
        assert self.beams(tables, width, length) == [table.beams(width, length) for table in tables]

    def test_one_that_is_not_finite_has_none_and_leaves_the_others_theirs(self):
        tables = [NotFinite(1, 4), Table(0, 4), NotFinite(2, 4), NotFinite(0, 4), Table(1, 4)]
        assert self.beams(tables, 3, 3) == [[], tables[1].beams(3, 3), [], [], tables[4].beams(3, 3)]
        assert self.beams(tables[:1], 3, 3) == [[]]


def random_beams(seed):
    """Return beams of few tokens, so that many begin alike; none twice, as a beam search leaves them."""
    generator = np.random.default_rng(seed)
    vocabulary, length = int(generator.integers(2, 5)), int(generator.integers(1, 6))
    texts = np.array(list(product(range(vocabulary), repeat=length)))
    return [tuple(text) for text in generator.permutation(texts)[: generator.integers(1, 12)].tolist()]


def is_their_tree(made, beams):
    """Tell whether a tree holds every beginning of some beams once and nothing else, best beam first."""
    return paths_of(made.tree, [0, *made.tokens]) == beginnings(beams)


def side_by_side(beams):
    """Return beams as a tree that shares nothing but the root."""
    width, length = len(beams), len(beams[0])
    parents = [-1, *[0] * width, *range(1, 1 + width * (length - 1))]
    return MergedBeams(TokenTree(parents), [token for level in zip(*beams, strict=True) for token in level])


class TestMerging:
    @pytest.mark.parametrize("seed", range(40))
    def test_every_beginning_is_one_node(self, seed):
        beams = random_beams(seed)
        made = merge_beams(beams)
        paths = paths_of(made.tree, [0, *made.tokens])
        assert {type(token) for token in made.tokens} == {int}
        assert len(set(paths)) == made.tree.nodes == 1 + len(made.tokens)
        assert set(paths) == {beam[:end] for beam in beams for end in range(len(beam) + 1)}
        assert is_their_tree(made, beams)

    @pytest.mark.parametrize("seed", range(40))
    def test_siblings_stand_in_the_order_of_their_best_beams(self, seed):
        beams = random_beams(seed)
        made = merge_beams(beams)
        paths = paths_of(made.tree, [0, *made.tokens])

        def best(node):
            path = paths[node]
            return next(rank for rank, beam in enumerate(beams) if beam[: len(path)] == path)

        for node in range(made.tree.nodes):
            assert all(best(one) < best(other) for one, other in pairwise(made.tree.children(node)))

    def test_one_beam_is_a_chain(self):
        made = merge_beams([(4, 4, 2)])
        assert made.tree.parents.tolist() == [-1, 0, 1, 2]
        assert made.tokens == [4, 4, 2]

    def test_beams_that_share_nothing_stay_side_by_side(self):
        beams = [(1, 2), (3, 2), (0, 2)]
        assert is_their_tree(side_by_side(beams), beams)
        assert merge_beams(beams).tree == side_by_side(beams).tree

    def test_merging_that_shares_no_beginning_is_found(self):
        beams = [(1, 2), (1, 0), (0, 2)]
        assert is_their_tree(merge_beams(beams), beams)
        assert not is_their_tree(side_by_side(beams), beams)

    def test_merging_in_the_order_of_the_tokens_is_found(self):
        beams = [(1, 2), (0, 2)]
        assert not is_their_tree(merge_beams(beams[::-1]), beams)

    def test_beams_share_their_common_start(self):
        tree, tokens = merge_beams([(5, 7, 1), (5, 7, 2), (5, 8, 1), (6, 7, 1)])
        assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 3, 3, 4, 5]
        assert tokens == [5, 6, 7, 8, 7, 1, 2, 1, 1]
