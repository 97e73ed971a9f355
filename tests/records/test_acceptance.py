"""Acceptance tables, the reach of tree nodes, and sums over sequences, which a gain scales."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.acceptance import NORMAL_95, ROUNDING, SUMS_ROUNDING, AcceptanceTable, SequenceSums
from treeopt.records.acceptance_counts import scale_acceptance
from treeopt.records.engine import ChainCounts
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import Sampling
from treeopt.trees import TokenTree


class TestTable:
    def test_one_row_for_every_depth(self):
        table = AcceptanceTable([0.7, 0.1])
        assert (table.position_invariant, table.parent_ranks, table.branching, table.max_depth) == (True, 1, 2, None)
        assert table.rows(3).tolist() == [[[0.7, 0.1]]] * 3
        assert table.rows(0).shape == (0, 1, 2)

    def test_one_row_per_depth_and_rank_of_the_parent(self):
        p = [[[0.7, 0.1, 0.0], [0.5, 0.0, 0.0]], [[0.6, 0.2, 0.1], [0.0, 0.2, 0.8]], [[0.1] * 3, [0.2] * 3]]
        table = AcceptanceTable(p, counts=np.ones((3, 2)), standard_error=np.full((3, 2, 3), 0.1))
        assert (table.position_invariant, table.parent_ranks, table.branching, table.max_depth) == (False, 2, 3, 3)
        assert table.rows(2).tolist() == p[:2]
        assert table.counts.shape == (3, 2)
        assert table.interval()[0].shape == (3, 2, 3)
        with pytest.raises(InfeasibleError, match=r"depth 3\. Got 4"):
            table.rows(4)

    @pytest.mark.parametrize("p", [[0.5], [[0.5], [0.5]], [[[0.5], [0.5]], [[0.5], [0.5]]]], ids=["B", "DB", "DRB"])
    def test_rows_cannot_be_written(self, p):
        rows = AcceptanceTable(p).rows(2)
        assert rows.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            rows[0, 0, 0] = 0

    def test_sums_above_1_by_rounding_are_rescaled(self):
        """Otherwise the rounding of a file would come on top, and a saved table could not be loaded."""
        p = np.full(64, (1 + 0.9 * ROUNDING) / 64)
        written = [float(f"{value:.10g}") for value in AcceptanceTable(p).p]
        assert p.sum() > 1 + 0.5 * ROUNDING
        assert AcceptanceTable(p).p.sum() == pytest.approx(1, abs=1e-14)
        assert sum(written) < 1 + 0.1 * ROUNDING

    @pytest.mark.parametrize("p", [[1.0], [0.0, 0.0], [0.5, 0.5], [1 / 7] * 7, [1 + ROUNDING / 2], [[1e-300]], [1, 0]])
    def test_probabilities_0_and_1_are_accepted(self, p):
        table = AcceptanceTable(p)
        assert table.p.max() <= 1
        np.testing.assert_allclose(table.p, p, rtol=0, atol=ROUNDING)

    @pytest.mark.parametrize(
        ("p", "reason"),
        [
            ([], r"expected shape \(B,\), \(D, B\) or \(D, R, B\) with at least one entry. Got \(0,\)"),
            (0.5, r"Got \(\)"),
            ([[[[0.5]]]], r"Got \(1, 1, 1, 1\)"),
            ([[[0.5], [0.5]], [[0.5]]], "expected numbers, as many in every row"),
            (["likely"], "expected numbers"),
            ([[0.5, 0.1], [0.2, 1.1]], r"p\[1, 1\]: expected a probability from 0 to 1. Got 1.1"),
            ([0.5, float("nan")], r"p\[1\]: .*Got nan"),
            ([None], r"p: expected numbers.*Got \[None\]"),
            ([0.6, 0.6], r"sum to at most 1 .*Row 0 sums to 1\.2"),
            ([[[0.5, 0.5], [0.9, 0.2]], [[0.5, 0.5], [0.9, 0.0]]], r"Row 0, 1 sums to 1\.1"),
            ([0.5, 0.5 + 2 * ROUNDING], "Row 0 sums to 1"),
        ],
    )
    def test_invalid_probabilities_raise(self, p, reason):
        with pytest.raises(InvalidValueError, match=reason):
            AcceptanceTable(p)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"counts": [1.0]},
            {"counts": [1.0, float("nan")]},
            {"counts": ["many", "few"]},
            {"standard_error": [[0.1, 0.1]]},
            {"standard_error": [[0.1, 0.1], [0.1]]},
            {"standard_error": [[0.1, 0.1], [0.1, -0.1]]},
        ],
        ids=str,
    )
    def test_invalid_counts_and_errors_raise(self, wrong):
        with pytest.raises(InvalidValueError, match=next(iter(wrong))):
            AcceptanceTable([[0.5, 0.1], [0.4, 0.1]], **wrong)


class TestReach:
    @settings(max_examples=examples(60), deadline=None)
    @given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), st.integers(2, 14))
    def test_reach_equals_product_along_every_path(self, seed, ranks, branching, nodes):
        generator = np.random.default_rng(seed)
        tree = TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, nodes))])
        p = generator.dirichlet(np.ones(branching + 1), (tree.max_depth, ranks))[..., :branching]
        np.testing.assert_allclose(AcceptanceTable(p).reach(tree), [walked(p, tree, node) for node in range(nodes)])


def walked(p, tree, node):
    """Return the product along the path to a node, one edge at a time."""
    path = [node]
    while path[-1] > 0:
        path.append(int(tree.parents[path[-1]]))
    ranks = [tree.children(parent).index(child) for child, parent in pairwise(path)][::-1]
    product, above = 1.0, 0
    for depth, rank in enumerate(ranks):
        row = p[depth][min(above, len(p[depth]) - 1)]
        product *= row[rank] if rank < len(row) else 0.0
        above = rank
    return product


class TestInterval:
    def test_interval_is_asymmetric_near_0_and_1(self):
        low, high = AcceptanceTable([[0.5, 0.01], [0.99, 0]], standard_error=[[0.01, 0.1], [0.1, 0]]).interval()
        half = 0.01 * NORMAL_95
        assert (low[0, 0], high[0, 0]) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-3)
        assert high[0, 1] - 0.01 > 10 * (0.01 - low[0, 1])
        assert 0.99 - low[1, 0] > 10 * (high[1, 0] - 0.99)
        assert (low[1, 1], high[1, 1]) == (0, 0)


def random_sequences(generator, *, sequences=6, depth=3, branching=2):
    reached = np.sort(generator.integers(1, 60, (sequences, depth)), axis=1)[:, ::-1].astype(float)
    shares = generator.dirichlet(np.ones(branching + 1), (sequences, depth))[..., :branching]
    return SequenceSums(reached, shares * reached[:, :, None])


class TestSequenceSums:
    def test_table_of_two_sequences(self):
        table = SequenceSums([[30, 20], [10, 5]], [[[15, 3], [4, 2]], [[9, 1], [1, 0]]]).table()
        np.testing.assert_allclose(table.p, [[0.6, 0.1], [0.2, 0.08]])
        assert table.counts.tolist() == [40, 25]
        # residuals of the two sequences: a - p r = -3 and 3, so sqrt((9 + 9) * 2 / 1) / 40
        assert table.standard_error[0, 0] == pytest.approx(0.15)

    def test_deviations_equal_jackknife_for_equal_lengths(self):
        """With sequences of one length the ratio is a mean, whose jackknife covariance is known to be exact."""
        generator = np.random.default_rng(3)
        sequences = 7
        accepted = generator.uniform(0, 5, (sequences, 2, 2))
        deviations = SequenceSums(np.full((sequences, 2), 10.0), accepted).deviations().reshape(sequences, -1)
        without = [
            np.delete(accepted, text, axis=0).sum(axis=0).ravel() / (10 * (sequences - 1)) for text in range(sequences)
        ]
        jackknife = np.cov(without, rowvar=False, bias=True) * (sequences - 1)
        np.testing.assert_allclose(deviations.T @ deviations, jackknife, atol=1e-15)

    @settings(max_examples=examples(40), deadline=None)
    @given(st.integers(0, 10_000))
    def test_standard_errors_are_covariance_diagonal(self, seed):
        sums = random_sequences(np.random.default_rng(seed))
        deviations = sums.deviations().reshape(len(sums.reached), -1)
        expected = np.maximum(np.sqrt(np.diag(deviations.T @ deviations)), sums.min_error().ravel())
        np.testing.assert_allclose(sums.table().standard_error.ravel(), expected)

    def test_rounding_may_exceed_reached(self):
        above = 1 + 0.9 * SUMS_ROUNDING
        assert SequenceSums([[3.0], [3.0]], [[[3 * above]], [[3.0]]]).p.tolist() == [[1.0]]
        with pytest.raises(InvalidValueError, match=r"accepted\[0, 0\]"):
            SequenceSums([[3.0], [3.0]], [[[3 + 6.1 * SUMS_ROUNDING]], [[3.0]]])

    @pytest.mark.parametrize(
        ("reached", "accepted", "reason"),
        [
            ([[9.0]], [[[3.0]]], r"accepted: expected shape \(J, D, B\) with J at least 2.*Got \(1, 1, 1\)"),
            ([[9.0], [9.0]], [[[]], [[]]], r"Got \(2, 1, 0\)"),
            ([[9.0], [9.0]], [[[3.0]], [[3.0, 1.0]]], "accepted: expected numbers, as many in every row"),
            ([9.0, 9.0], [[[3.0]], [[3.0]]], r"reached: .*in shape \(2, 1\)\. Got \(2,\)"),
            ([[9.0], [-9.0]], [[[3.0]], [[0.0]]], "reached: expected finite numbers of at least 0"),
            ([[9.0], [9.0]], [[[3.0, -1.0]], [[3.0, 1.0]]], "accepted: expected finite numbers of at least 0"),
            (
                [[9.0], [9.0]],
                [[[3.0, 1.0]], [[6.0, 3.5]]],
                r"accepted\[1, 0\]: .*at most what was reached, 9\. Got 9\.5",
            ),
            (
                [[9.0, 0.0], [9.0, 0.0]],
                [[[3.0], [0.0]]] * 2,
                "reached: expected positions at every depth. Depth 2 has 0",
            ),
            ([[1e308], [1e308]], [[[3.0]]] * 2, "Depth 1 has inf"),
        ],
    )
    def test_invalid_sums_raise(self, reached, accepted, reason):
        with pytest.raises(InvalidValueError, match=reason):
            SequenceSums(reached, accepted)


class TestScaleAcceptance:
    def test_measured_ranks_are_multiplied_by_gain(self):
        sums = SequenceSums([[10.0, 8.0], [20.0, 10.0]], [[[2.0, 1.0], [2.0, 1.0]], [[4.0, 4.0], [2.0, 2.0]]])
        result = scale_acceptance(sums, np.array([[1.5, np.nan], [np.nan, 0.5]]))
        assert result.reached.tolist() == sums.reached.tolist()
        np.testing.assert_allclose(result.accepted, [[[3.0, 0.875], [15 / 7, 0.5]], [[6.0, 3.5], [2.25, 1.0]]])

    def test_without_a_gain_nothing_changes(self):
        sums = SequenceSums([[10.0], [20.0]], [[[2.0, 1.0]], [[4.0, 16.0]]])
        assert scale_acceptance(sums, np.full((1, 2), np.nan)).accepted.tolist() == sums.accepted.tolist()

    @settings(max_examples=examples(100), deadline=None)
    @given(st.integers(0, 10_000), st.floats(0, 4), st.booleans())
    def test_accepted_does_not_exceed_reached(self, seed, most, unreached):
        generator = np.random.default_rng(seed)
        reached = generator.uniform(0.1, 50, (3, 2))
        reached[0, 1] *= not unreached
        accepted = generator.dirichlet(np.ones(4), (3, 2))[:, :, :3] * reached[:, :, None]
        gain = generator.uniform(0, 1, (2, 3)) * most
        result = scale_acceptance(SequenceSums(reached, accepted), gain)
        rows = result.accepted.sum(axis=2)
        assert np.all(rows <= reached * (1 + 1e-12))
        free = (accepted * gain).sum(axis=2) <= reached
        np.testing.assert_allclose(result.accepted[free], (accepted * gain)[free])
        np.testing.assert_allclose(rows[~free], reached[~free])


def test_chains_have_counts_of_every_sequence():
    sums = SequenceSums(np.full((3, 1), 9.0), np.full((3, 1, 1), 3.0))
    four = ChainCounts(length=1, steps=(9,) * 4, tokens=(12,) * 4)
    with pytest.raises(InvalidValueError, match=r"chains: expected counts of 3 sequences\. Got 4"):
        MeasuredAcceptance(rule="target", sampling=Sampling(0.0), table=sums.table(), sequences=sums, chains=(four,))
