"""Smoothing of acceptance: against merging block by block; sums kept, real rises kept, exact tables untouched."""

import math

import numpy as np
import pytest

from tests.support.invented_machines import MACHINES, acceptance, acceptance_of, latency, profile
from tests.support.planner_oracles import smoothed
from treeopt.planner import Smoothing, plan, step_model
from treeopt.planner.request import PlanRequest
from treeopt.planner.smoothing import find_noisy_runs, pool, smooth
from treeopt.records.acceptance import SequenceSums
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance


def counted(seed: int, shape: tuple[int, ...]) -> MeasuredAcceptance:
    """Return a table counted from few positions, so that its rows rise here and there; rows of any number of axes."""
    rng = np.random.default_rng(seed)
    positions = int(rng.choice([5, 30, 300, 3000]))
    truth = rng.dirichlet(np.ones(shape[-1] + 1) * rng.choice([0.3, 1.0, 5.0]), shape[:-1])[..., :-1]
    rows = [rng.multinomial(positions, [*row, max(0.0, 1 - row.sum())])[:-1] for row in truth.reshape(-1, shape[-1])]
    p = np.array(rows).reshape(shape) / positions * rng.uniform(0.999, 1, shape)  # so that no two means tie
    return acceptance(p, counts=np.full(shape[:-1] or (1,), float(positions)))


def of_sequences(seed: int, sequences: int = 12, depths: int = 3, branching: int = 5) -> MeasuredAcceptance:
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet(np.ones(branching + 1) * rng.choice([0.5, 5.0]), depths)
    reached = rng.integers(5, 60, (sequences, depths))
    accepted = [[rng.multinomial(reached[j, d], truth[d])[:-1] for d in range(depths)] for j in range(sequences)]
    return acceptance_of(SequenceSums(reached, accepted))


def variance(measured: MeasuredAcceptance) -> np.ndarray:
    """Return the squared errors, nowhere less than a count of as many positions can have with one hit more."""
    table = measured.table
    error = np.zeros_like(table.p) if table.standard_error is None else table.standard_error
    result = np.empty_like(table.p)
    for at in np.ndindex(table.p.shape):
        count = np.atleast_1d(table.counts)[at[:-1] or 0]
        likely = min(0.5, table.p[at] + 1 / count)
        result[at] = max(error[at] ** 2, likely * (1 - likely) / count)
    return result


def expected(measured: MeasuredAcceptance) -> tuple[np.ndarray, int]:
    branching = measured.table.branching
    pairs = zip(measured.table.p.reshape(-1, branching), variance(measured).reshape(-1, branching), strict=True)
    rows, kept = zip(*(smoothed(row, errors) for row, errors in pairs), strict=True)
    return np.reshape(rows, measured.table.p.shape), sum(kept)


def equal(result: MeasuredAcceptance, other: MeasuredAcceptance) -> None:
    np.testing.assert_array_equal(result.table.p, other.table.p)
    for name in ("counts", "standard_error"):
        first, second = getattr(result.table, name), getattr(other.table, name)
        assert (first is None) == (second is None)
        if first is not None:
            np.testing.assert_allclose(first, second, rtol=1e-12)


SHAPES = pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 5), (1, 1)], ids=str)


class TestRows:
    @SHAPES
    def test_against_merging_block_by_block(self, shape):
        changed = kept = 0
        for seed in range(40):
            measured = counted(seed, shape)
            result, (p, stay) = smooth(measured), expected(measured)
            np.testing.assert_allclose(result.acceptance.table.p, p, rtol=1e-12, atol=1e-15)
            assert result.kept == stay
            assert result.changed == (np.abs(p - measured.table.p) > 1e-15).sum()
            assert result.largest_change == pytest.approx(np.abs(p - measured.table.p).max(), abs=1e-15)
            changed, kept = changed + result.changed, kept + result.kept
        assert shape[-1] == 1 or (changed > 30 and kept > 0)

    def test_twice_is_the_same_as_once(self):
        for seed in range(40):
            once = smooth(counted(seed, (3, 6)))
            twice = smooth(once.acceptance)
            assert (twice.changed, twice.kept) == (0, once.kept)
            equal(twice.acceptance, once.acceptance)


class TestNoiseOrNot:
    def test_rises_of_many_positions_are_kept_and_of_few_are_pooled(self):
        p = [[0.2, 0.5, 0.1], [0.2, 0.5, 0.1]]
        result = smooth(acceptance(p, counts=[10_000.0, 10.0]))
        assert result.acceptance.table.p[0].tolist() == p[0]
        assert result.acceptance.table.p[1].tolist() == pytest.approx([0.35, 0.35, 0.1])
        assert result.kept == 1

    def test_standard_errors_without_counts(self):
        measured = acceptance([[0.3, 0.32]], standard_error=[[0.03, 0.04]])
        table = smooth(measured).acceptance.table
        assert table.p.tolist() == [pytest.approx([0.31, 0.31])]
        assert table.standard_error.tolist() == [pytest.approx([0.025, 0.025])]  # of the mean of two
        sure = acceptance([[0.3, 0.32]], standard_error=[[0.0003, 0.0004]])
        equal(smooth(sure).acceptance, sure)

    def test_never_accepted_rank_has_an_error(self):
        """No spread is no certainty: 0 of 10 positions is little reason to rank it below 1 of 10."""
        measured = acceptance([[0.5, 0.0, 0.1]], counts=[10.0], standard_error=[[0.1, 0.0, 0.1]])
        assert smooth(measured).acceptance.table.p.tolist() == [pytest.approx([0.5, 0.05, 0.05])]

    @pytest.mark.parametrize("p", [[0.1, 0.9], [[0.0, 0.0, 0.5], [0.3, 0.1, 0.2]], [[[0.0, 0.5], [0.4, 0.6]]]], ids=str)
    def test_exact_tables_are_untouched(self, p):
        measured = acceptance(p)
        result = smooth(measured)
        assert (result.changed, result.largest_change) == (0, 0)
        assert result.kept > 0
        assert result.acceptance.table.p.tolist() == p
        assert result.acceptance.table.standard_error is None

    @pytest.mark.parametrize(
        ("p", "counts"), [([[0.1, 0.2], [0.0, 0.0]], [10, 0]), ([[[0.1, 0.2], [0, 0]]], [[10, 0]])]
    )
    def test_rows_that_were_never_reached(self, p, counts):
        result = smooth(acceptance(p, counts=counts)).acceptance.table
        np.testing.assert_allclose(result.p, np.reshape([[0.15, 0.15], [0, 0]], np.shape(p)))


class TestCurves:
    """Medians of times that fall from one count to a larger one, by a number of their errors."""

    SPREAD = np.linspace(-1, 1, 25)

    def curve(self, *medians_s: float) -> LatencyTable:
        """Return a curve every median of which has an error of 1, as its 95 % interval says."""
        half = Timing(self.SPREAD, allow_negative=True).interval_s[1] / 1.959964
        return LatencyTable(range(1, 1 + len(medians_s)), [Timing(at + self.SPREAD / half) for at in medians_s])

    def pool(self, *medians_s: float) -> list[float]:
        table = self.curve(*medians_s)
        return pool(table.medians_s, find_noisy_runs(table)).tolist()

    def test_decrease_is_pooled_if_noise_explains_it_at_1_in_1000(self):
        for fall in (0.5, 3.0, 4.5, 4.8, 6.0, 9.0):
            by_chance = math.erfc(fall / math.sqrt(2) / math.sqrt(2))  # of the difference of two normal numbers
            middle = 20 - fall / 2
            expected = [middle, middle] if by_chance >= 1e-3 else [20, 20 - fall]
            assert self.pool(20, 20 - fall) == pytest.approx(expected), fall

    def test_a_run_becomes_its_mean_and_the_rest_stays(self):
        assert self.pool(10, 15, 14, 13, 30) == pytest.approx([10, 14, 14, 14, 30])


class TestTexts:
    def test_sums_stay_consistent_with_the_table(self):
        changed = 0
        for seed in range(20):
            measured = of_sequences(seed)
            result = smooth(measured)
            table, sequences = result.acceptance.table, result.acceptance.sequences
            changed += result.changed
            ratio = sequences.accepted.sum(axis=0) / sequences.reached.sum(axis=0)[:, None]
            np.testing.assert_allclose(ratio, table.p, rtol=1e-12, atol=1e-15)
            np.testing.assert_array_equal(sequences.reached, measured.sequences.reached)
            np.testing.assert_allclose(
                sequences.accepted.sum(axis=2), measured.sequences.accepted.sum(axis=2), rtol=1e-12
            )
        assert changed > 25

    def test_errors_are_those_of_the_sequences(self):
        """The ratio estimator's, worked out here text by text (Cochran, 1977, section 6.3)."""
        for seed in range(15):
            result = smooth(of_sequences(seed)).acceptance
            reached, accepted = result.sequences.reached, result.sequences.accepted
            sequences, total = len(reached), reached.sum(axis=0)
            for d, k in np.ndindex(result.table.p.shape):
                residual = [accepted[j, d, k] - result.table.p[d, k] * reached[j, d] for j in range(sequences)]
                error = np.sqrt(sum(r**2 for r in residual) * sequences / (sequences - 1)) / total[d]
                assert result.table.standard_error[d, k] == pytest.approx(error, rel=1e-9, abs=1e-12)

    def test_merged_ranks_of_one_text_move_together(self):
        measured = acceptance_of(SequenceSums([[20.0], [20.0]], [[[4.0, 8.0]], [[6.0, 6.0]]]))
        result = smooth(measured).acceptance
        assert result.sequences.accepted.tolist() == [[[6, 6]], [[6, 6]]]
        assert result.table.standard_error.tolist() == [[0, 0]]


class TestInPlans:
    measured = acceptance([[0.3, 0.4, 0.1]] * 3, counts=[20.0] * 3)
    profile = profile([latency(MACHINES["nodes almost free"])], [measured])

    def test_acceptance_is_smoothed_by_default(self):
        model = step_model(self.profile)
        assert isinstance(model.tokens.smoothing, Smoothing)
        assert model.tokens.smoothing.changed == 6
        assert model.acceptance.table.p.tolist() == [pytest.approx([0.35, 0.35, 0.1])] * 3
        assert plan(self.profile, 5).solution.certificate.method == "best-first"

    def test_raw_takes_the_table_as_measured(self):
        model = step_model(self.profile, PlanRequest(raw=True))
        assert model.tokens.smoothing is None
        assert model.acceptance is self.measured
        result = plan(self.profile, 5, raw=True)
        assert result.solution.table is self.measured.table
        assert result.solution.certificate.method == "dynamic-program"
