"""The acceptance table: what it takes, what it refuses, and the reach of the nodes of a tree."""

import dataclasses

import numpy as np
import pytest

from treeopt.acceptance import NORMAL_95, ROUNDING, AcceptanceTable
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.trees import TokenTree, chain, k_ary


class TestTable:
    def test_one_row_for_every_depth(self):
        table = AcceptanceTable([0.7, 0.1])
        assert (table.position_invariant, table.branching, table.max_depth) == (True, 2, None)
        assert table.rows(3).tolist() == [[0.7, 0.1]] * 3
        assert table.rows(0).shape == (0, 2)

    def test_one_row_per_depth(self):
        table = AcceptanceTable([[0.7, 0.1, 0.0], [0.0, 0.2, 0.8]])
        assert (table.position_invariant, table.branching, table.max_depth) == (False, 3, 2)
        assert table.rows(1).tolist() == [[0.7, 0.1, 0.0]]
        assert table.rows(2).tolist() == table.p.tolist()

    def test_deeper_than_measured(self):
        with pytest.raises(InfeasibleError, match=r"max_depth: .*measured to depth 1\. Got 2: ask for at most 1"):
            AcceptanceTable([[0.7]]).rows(2)

    def test_rounding_above_1_is_taken_back(self):
        """Otherwise the rounding of a file would come on top, and a saved table could not be loaded."""
        p = np.full(64, (1 + 0.9 * ROUNDING) / 64)
        written = [float(f"{value:.10g}") for value in AcceptanceTable(p).p]
        assert p.sum() > 1 + 0.5 * ROUNDING
        assert AcceptanceTable(p).p.sum() == pytest.approx(1, abs=1e-14)
        assert sum(written) < 1 + 0.1 * ROUNDING

    def test_it_is_kept_apart_and_read_only(self):
        source = np.array([[0.5, 0.25]])
        table = AcceptanceTable(source, counts=np.array([9.0]), standard_error=source / 10)
        source[0, 0] = 0.1
        assert table.p.tolist() == [[0.5, 0.25]]
        for array in (table.p, table.counts, table.standard_error):
            assert array.dtype == np.float64
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        with pytest.raises(dataclasses.FrozenInstanceError):
            table.p = source

    @pytest.mark.parametrize("p", [[1.0], [0.0, 0.0], [0.5, 0.5], [1 / 7] * 7, [1 + ROUNDING / 2], [[1e-300]], [1, 0]])
    def test_edges_that_are_probabilities(self, p):
        table = AcceptanceTable(p)
        assert table.p.max() <= 1
        np.testing.assert_allclose(table.p, p, rtol=0, atol=ROUNDING)

    @pytest.mark.parametrize(
        ("p", "reason"),
        [
            ([], r"expected shape \(B,\) or \(D, B\) with at least one entry. Got \(0,\)"),
            ([[]], r"at least one entry. Got \(1, 0\)"),
            (0.5, r"Got \(\)"),
            ([[[0.5]]], r"Got \(1, 1, 1\)"),
            ([[0.5], [0.5, 0.1]], "expected numbers, as many in every row"),
            (["likely"], "expected numbers"),
            ([{}], "expected numbers"),
            ([0.5, -0.1], r"p\[1\]: expected a probability from 0 to 1. Got -0.1"),
            ([[0.5, 0.1], [0.2, 1.1]], r"p\[1, 1\]: expected a probability from 0 to 1. Got 1.1"),
            ([0.5, float("nan")], r"p\[1\]: .*Got nan"),
            ([float("inf")], r"p\[0\]: .*Got inf"),
            ([None], r"p\[0\]: .*Got nan"),
            ([0.6, 0.6], r"sum to at most 1 .*Row 0 sums to 1\.2"),
            ([[0.5, 0.5], [0.9, 0.2]], r"Row 1 sums to 1\.1"),
            ([0.5, 0.5 + 2 * ROUNDING], "Row 0 sums to 1"),
        ],
    )
    def test_no_probabilities(self, p, reason):
        with pytest.raises(InvalidValueError, match=reason):
            AcceptanceTable(p)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"counts": [1.0]},
            {"counts": [[1.0, 2.0]]},
            {"counts": [1.0, -2.0]},
            {"counts": [1.0, float("nan")]},
            {"counts": [1.0, float("inf")]},
            {"counts": ["many", "few"]},
            {"standard_error": [[0.1, 0.1]]},
            {"standard_error": [[0.1, 0.1], [0.1]]},
            {"standard_error": [[0.1, 0.1], [0.1, -0.1]]},
            {"standard_error": [[0.1, 0.1], [0.1, float("nan")]]},
        ],
        ids=str,
    )
    def test_counts_and_errors_that_do_not_fit(self, wrong):
        with pytest.raises(InvalidValueError, match=next(iter(wrong))):
            AcceptanceTable([[0.5, 0.1], [0.4, 0.1]], **wrong)

    def test_counts_and_errors_of_one_row(self):
        table = AcceptanceTable([0.5, 0.1], counts=[100], standard_error=[0.05, 0.03])
        assert table.counts.tolist() == [100]
        assert table.standard_error.tolist() == [0.05, 0.03]


class TestReach:
    def test_product_of_acceptance_along_the_path(self):
        table = AcceptanceTable([[0.5, 0.25], [0.75, 0.125]])
        tree = TokenTree([-1, 0, 0, 1, 1, 2])
        assert table.reach(tree).tolist() == [1, 0.5, 0.25, 0.375, 0.0625, 0.1875]
        assert table.expected_tokens(tree) == 2.375

    def test_root_alone(self):
        assert AcceptanceTable([[0.5]]).expected_tokens(chain(0)) == 1

    def test_chain_is_a_geometric_sum(self):
        assert AcceptanceTable([0.5]).expected_tokens(chain(9)) == 2 - 0.5**9

    def test_children_of_a_full_tree_share_what_their_parent_has(self):
        reach = AcceptanceTable([0.5, 0.3, 0.2]).reach(k_ary(3, 4))
        tree = k_ary(3, 4)
        for level in tree.levels:
            assert reach[level].sum() == pytest.approx(1)

    def test_ranks_never_measured_count_as_never_accepted(self):
        assert AcceptanceTable([0.5, 0.25]).reach(TokenTree([-1, 0, 0, 0, 3])).tolist() == [1, 0.5, 0.25, 0, 0]

    def test_deeper_than_measured(self):
        with pytest.raises(InfeasibleError, match=r"depth 2\. Got 3"):
            AcceptanceTable([[0.5], [0.5]]).reach(chain(3))


class TestInterval:
    def test_none_without_errors(self):
        assert AcceptanceTable([0.5]).interval() is None

    def test_two_standard_errors_cut_to_probabilities(self):
        low, high = AcceptanceTable([[0.5, 0.01], [0.99, 0]], standard_error=[[0.1, 0.1], [0.1, 0]]).interval()
        half = 0.1 * NORMAL_95
        np.testing.assert_allclose(low, [[0.5 - half, 0], [0.99 - half, 0]])
        np.testing.assert_allclose(high, [[0.5 + half, 0.01 + half], [1, 0]])
