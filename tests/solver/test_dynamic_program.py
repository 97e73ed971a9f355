"""Ruling splits out: what is left out could not have been better, and the certificate counts all of it.

`best_splits` is held against every split tried, `envelope` against every line between two values.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.solver.oracles import by_dynamic_program, same
from tests.solver.tables import examples
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import kernels, solve
from treeopt.solver.dynamic_program import solve_values
from treeopt.solver.kernels import best_splits, envelope


def every_split(accepted: float, child: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Return max over 1 <= m <= n of accepted * child[m] + later[n - m] by trying them all."""
    sums = [(accepted * child[1 : n + 1] + later[:n][::-1]).max() for n in range(1, len(later))]
    return np.array([0.0, *sums])


def split(accepted: float, child: np.ndarray, later: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    return best_splits(accepted, child, envelope(child, 1), later, envelope(later, 0))


def highest_line(values: np.ndarray, first: int) -> np.ndarray:
    """Return at every place the highest line between a value at or before it and one at or behind it."""
    places, bound = np.arange(len(values), dtype=float), np.zeros(len(values))
    for i in range(first, len(values)):
        left, right = np.meshgrid(np.arange(first, i + 1), np.arange(i, len(values)))
        ahead = np.where(right > left, (places[i] - left) / np.maximum(right - left, 1), 0.0)
        bound[i] = (values[left] * (1 - ahead) + values[right] * ahead).max()
    return bound


def rough(seed: int, count: int = 60) -> dict[str, np.ndarray]:
    """Return the steps of non-decreasing values, from a concave curve to staircases and leaps."""
    rng, place = np.random.default_rng(seed), np.arange(count)
    return {
        "concave": np.sort(rng.random(count))[::-1],
        "convex": np.sort(rng.random(count)),
        "staircase": 1.0 * (place % 7 == 6),
        "steps anywhere": (rng.random(count) < 0.15) * rng.random(count),
        "plateaus, then leaps": 1.0 * np.isin(place, (1, 15, count - 2)),
        "plateaus and equal steps": 0.25 * (place % 5 == 0),
        "flat": np.zeros(count),
        "a line": np.full(count, 0.125),
        "a walk": rng.random(count),
        "leaps of all sizes": 10.0 ** rng.uniform(-12, 2, count),
        "tiny": np.full(count, 1e-300),
    }


LEAST = 1e-300
"""Below this floats keep few digits."""
CHILD, LATER = rough(seed=6), rough(seed=7)
steps = st.lists(
    st.sampled_from([0.0, 0.0, 0.0, 1e-300, 1e-9, 0.5, 1.0, 3.0]) | st.floats(0, 1), min_size=2, max_size=40
)


def values_of(child_steps: Sequence[float], later_steps: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return values as `best_splits` takes them: a child's are 0 at no node and 1 at one, those of later siblings 0 at none."""
    return np.cumsum([0.0, 1.0, *child_steps]), np.cumsum([0.0, *later_steps])


def near_the_peak(accepted, child, child_bound, later, later_bound, reach=0):
    """Return what `best_splits` does, wrongly: it looks no farther than `reach` from the split with the largest bound."""
    best, splits = np.zeros(len(later)), np.zeros(len(later), np.int32)
    for n in range(1, len(later)):
        m = np.arange(1, n + 1)
        peak = np.argmax(accepted * child_bound[m] + later_bound[n - m]) + 1
        m = m[abs(m - peak) <= reach]
        best[n] = max(best[n - 1], (accepted * child[m] + later[n - m]).max())
    return best, splits, len(later) - 1


class TestEnvelope:
    @examples(200)
    @given(steps, st.integers(0, 1))
    def test_is_the_highest_line_between_two_values(self, given_steps, first):
        values = np.cumsum(given_steps)
        np.testing.assert_allclose(envelope(values, first), highest_line(values, first), rtol=1e-12, atol=LEAST)

    def test_by_hand(self):
        assert envelope(np.array([0.0, 1.0, 1.0, 3.0, 3.0]), 0).tolist() == [0.0, 1.0, 2.0, 3.0, 3.0]
        assert envelope(np.array([0.0, 1.0, 1.0, 4.0]), 1).tolist() == [0.0, 1.0, 2.5, 4.0]
        assert envelope(np.array([7.0]), 0).tolist() == [7.0]
        assert envelope(np.array([0.0, 1.0]), 1).tolist() == [0.0, 1.0]


class TestShare:
    @pytest.mark.parametrize("child_steps", CHILD.values(), ids=CHILD)
    def test_equals_every_split_tried(self, child_steps):
        for later_steps in LATER.values():
            for count, accepted in ((1, 1.0), (2, 0.63), (3, 0.0), (17, 0.1), (60, 1e-300), (60, 0.63)):
                child, later = values_of(child_steps[:count], later_steps[:count])
                same(split(accepted, child, later)[0], every_split(accepted, child, later))

    @examples(300)
    @given(steps, steps, st.sampled_from([0.0, 1e-300, 1.0]) | st.floats(0, 1))
    def test_equals_every_split_tried_on_drawn_values(self, child_steps, later_steps, accepted):
        count = min(len(child_steps), len(later_steps))
        child, later = values_of(child_steps[:count], later_steps[:count])
        result, expected = split(accepted, child, later)[0], every_split(accepted, child, later)
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=LEAST)

    @pytest.mark.parametrize("reach", [0, 1, 3])
    def test_search_near_the_peak_only_fails(self, reach):
        """Negative controls: the peak split alone, and a few around it."""
        wrong = 0
        for child_steps in CHILD.values():
            for later_steps in LATER.values():
                child, later = values_of(child_steps, later_steps)
                result, *_ = near_the_peak(0.63, child, envelope(child, 1), later, envelope(later, 0), reach=reach)
                wrong += not np.allclose(result, every_split(0.63, child, later), rtol=1e-12, atol=0)
        assert wrong >= 10

    @examples(200)
    @given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.lists(st.integers(0, 2), min_size=12, max_size=12))
    @example([2] * 12, [1] * 12)
    def test_smallest_of_equal_splits_is_taken(self, child_steps, later_steps):
        """Halves and whole numbers, so that sums are exact and ties are everywhere."""
        child = np.cumsum([0.0, 1.0, *child_steps])
        later = np.cumsum([0.0, *later_steps])
        best, splits, _ = split(0.5, child, later)
        for n in range(1, len(later)):
            sums = (0.5 * child[1 : n + 1] + later[:n][::-1]).tolist()
            assert splits[n] == (sums.index(best[n]) + 1 if best[n] > best[n - 1] else 0)

    def test_early_stop_fails_the_optimum(self, monkeypatch):
        p = np.random.default_rng(8).dirichlet(np.full(4, 0.3), size=3).tolist()
        forests = kernels.forests
        monkeypatch.setattr(kernels, "forests", getattr(forests, "py_func", forests))
        same(solve(AcceptanceTable(p), 24, 3).expected_tokens, by_dynamic_program(p, 24, 3))
        monkeypatch.setattr(kernels, "best_splits", near_the_peak)
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            same(solve(AcceptanceTable(p), 24, 3).expected_tokens, by_dynamic_program(p, 24, 3))


class Recorded(list):
    """Values that remember which of them were asked for."""

    def __init__(self, values):
        super().__init__(values.tolist())
        self.asked = []

    def __getitem__(self, place):
        self.asked.append(place)
        return super().__getitem__(place)


class TestCertificate:
    @pytest.mark.parametrize(
        "kinds", [("walk",) * 2, ("staircase", "concave"), ("convex", "leaps"), ("flat", "line")], ids=str
    )
    def test_counts_the_splits_compared_and_the_bounds_rule_out_all_others(self, kinds):
        child_steps, later_steps = (
            next(steps for kind, steps in table.items() if name in kind)
            for name, table in zip(kinds, (CHILD, LATER), strict=True)
        )
        child, later = values_of(child_steps[:40], later_steps[:40])
        child_bound, later_bound, accepted = envelope(child, 1), envelope(later, 0), 0.63
        reads = Recorded(child), Recorded(later)
        function = getattr(best_splits, "py_func", best_splits)
        best, _, compared = function(accepted, reads[0], child_bound, reads[1], later_bound)
        splits = list(zip(reads[0].asked, reads[1].asked, strict=True))
        assert compared == len(splits) == len(set(splits))
        tried = set(splits)
        left_out = [(n, m) for n in range(1, 41) for m in range(1, n + 1) if (m, n - m) not in tried]
        assert compared + len(left_out) == 40 * 41 // 2
        for n, m in left_out:
            assert accepted * child_bound[m] + later_bound[n - m] <= best[n] * (1 + 1e-14)
        assert split(accepted, child, later)[2] == compared

    @pytest.mark.parametrize(
        ("shape", "programs"),
        [
            ((3,), 4),  # one for every limit
            ((4, 3), 4 + 3 + 2 + 1),  # one for every limit and depth
            ((4, 2, 3), 4 * 1 + 2 * (3 + 2 + 1)),  # and rank of the parent, which the root has none of
        ],
        ids=str,
    )
    @pytest.mark.parametrize("nodes", [5, 30])
    def test_counts_every_split_there_is(self, shape, programs, nodes):
        """Every level allows better trees here, so none is copied from the one before."""
        p = np.array([0.7, 0.05, 0.1]) + np.random.default_rng(10).uniform(0, 0.04, size=shape)
        certificate = solve(AcceptanceTable(p), nodes, 4).certificate
        assert certificate.method == "dynamic-program"
        assert certificate.compared > 0
        assert certificate.compared + certificate.ruled_out == programs * 3 * (nodes * (nodes - 1) // 2)

    def test_counts_once_where_every_depth_has_the_same_rows(self):
        ranks = [[0.7, 0.05, 0.1], [0.6, 0.1, 0.2]]
        certificate = solve(AcceptanceTable([ranks] * 3), 12, 3).certificate
        assert certificate.compared + certificate.ruled_out == 3 * 2 * 3 * (12 * 11 // 2)

    def test_levels_that_no_tree_reaches_cost_nothing(self):
        p = [0.1, 0.2, 0.6]
        few, many = (solve_values(np.array([[p]] * depth), 5) for depth in (5, 50))
        assert few[1:] == many[1:]
        same(many[0].expected_tokens[5:], np.broadcast_to(few[0].expected_tokens[5], (46, 6)))

    def test_nearly_all_splits_are_ruled_out(self):
        rng = np.random.default_rng(11)
        smooth = np.array([0.7, *(0.12 / k**1.6 for k in range(1, 32))])
        noisy = smooth * rng.lognormal(0, 0.3, size=(8, 32))
        noisy /= np.maximum(1, noisy.sum(axis=1, keepdims=True))
        for p in (noisy, rng.permuted(noisy, axis=1), rng.dirichlet(np.full(32, 0.3), size=8)):
            certificate = solve(AcceptanceTable(p), 512, 8).certificate
            assert certificate.compared < 0.03 * (certificate.compared + certificate.ruled_out)
