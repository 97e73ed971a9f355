"""Isotonic regression of acceptance rows and latency curves, where noise explains what is out of order.

Acceptance should not increase from rank to rank, and seconds should not decrease with tokens.  A run of values that are
out of order is replaced by its mean if its standard errors explain the differences; otherwise it is left as measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64
from treeopt.records.acceptance import NORMAL_95, AcceptanceTable, SequenceSums
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_acceptance import MeasuredAcceptance

SIGNIFICANCE = 1e-3
"""Differences that noise produces with a smaller probability are left as measured."""
UNSEEN = 1e-6
"""Replaces a count of 0."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Smoothing(ShortRepr):
    """An acceptance with smoothed rows, and a summary of the changes."""

    acceptance: MeasuredAcceptance
    changed: int
    """Entries of the table that changed."""
    largest_change: float
    """Largest change of an entry."""
    kept: int
    """Increasing runs of ranks that noise does not explain, left as measured."""


def smooth(acceptance: MeasuredAcceptance) -> Smoothing:
    """Return the acceptance with every increasing run of ranks replaced by its mean, if noise explains it.

    The means are those of isotonic regression with equal weights (Barlow et al., 1972); row sums do not change.  A
    table without errors and counts is exact, so nothing in it is noise.
    """
    table, sums = acceptance.table, acceptance.sequences
    averaging, kept = _averaging_matrices(table)
    smoothed = _average(table, averaging)
    if sums is not None:
        sums = SequenceSums(sums.reached, np.einsum("dij,tdj->tdi", averaging, sums.accepted))
        error = np.sqrt((sums.deviations() ** 2).sum(axis=0)).reshape(table.p.shape)
        smoothed = AcceptanceTable(smoothed.p, counts=table.counts, standard_error=error)
    return Smoothing(
        acceptance=replace(acceptance, table=smoothed, sequences=sums),
        changed=int((smoothed.p != table.p).sum()),
        largest_change=float(np.abs(smoothed.p - table.p).max()),
        kept=kept,
    )


def smooth_table(table: AcceptanceTable) -> AcceptanceTable:
    """Return the table that `smooth` returns for an acceptance without sums over sequences."""
    return _average(table, _averaging_matrices(table)[0])


def _averaging_matrices(table: AcceptanceTable) -> tuple[Float64, int]:
    """Return (rows, B, B): the matrix that smooths each row, and the number of increasing runs that stay."""
    p = table.p.reshape(-1, table.branching)
    runs = [_unordered_runs(row) for row in p]
    pooled = [_noisy_runs(*row) for row in zip(p, _variance(table).reshape(p.shape), runs, strict=True)]
    matrices = [_averaging_matrix(table.branching, row_runs) for row_runs in pooled]
    return np.stack(matrices), sum(map(len, runs)) - sum(map(len, pooled))


def _average(table: AcceptanceTable, averaging: Float64) -> AcceptanceTable:
    """Return the table whose rows are multiplied by their matrices, (rows, B, B)."""
    rows, error = (-1, table.branching), table.standard_error
    if error is not None:
        error = np.sqrt(np.einsum("rij,rj->ri", averaging**2, error.reshape(rows) ** 2)).reshape(table.p.shape)
    p = np.einsum("rij,rj->ri", averaging, table.p.reshape(rows)).reshape(table.p.shape)
    return AcceptanceTable(p, counts=table.counts, standard_error=error)


@lru_cache(maxsize=1024)
def find_noisy_runs(table: LatencyTable) -> tuple[slice, ...]:
    """Return the runs of counts whose medians decrease by no more than noise explains.

    Cached, because many operating points are interpolated between the same tables.
    """
    ends = np.array([timing.interval_s for timing in table.timings])
    variance = (np.diff(ends, axis=1)[:, 0] / (2 * NORMAL_95)) ** 2
    return tuple(_noisy_runs(table.medians_s, variance, _unordered_runs(-table.medians_s)))


def pool(seconds: Float64, runs: Sequence[slice]) -> Float64:
    """Return (…, m): seconds with every run replaced by its mean."""
    result = np.array(seconds)
    for run in runs:
        result[..., run] = seconds[..., run].mean(axis=-1, keepdims=True)
    return result


def _variance(table: AcceptanceTable) -> Float64:
    """Return the variance of each entry, at least that of a mean over the counted positions."""
    variance = np.zeros_like(table.p) if table.standard_error is None else table.standard_error**2
    if table.counts is None:
        return variance
    # one more accepted position: a rank that was never accepted may still have a positive probability
    counts = np.maximum(table.counts, UNSEEN).reshape(*table.p.shape[:-1], 1)
    p = np.minimum(0.5, table.p + 1 / counts)
    return np.asarray(np.maximum(variance, p * (1 - p) / counts))


def _unordered_runs(row: Float64) -> list[slice]:
    """Return the runs of entries that non-increasing isotonic regression makes equal."""
    from scipy.optimize import isotonic_regression

    blocks = isotonic_regression(row, increasing=False).blocks
    runs = [slice(int(start), int(end)) for start, end in pairwise(blocks)]
    return [run for run in runs if np.ptp(row[run]) > 0]


def _noisy_runs(row: Float64, variance: Float64, runs: list[slice]) -> list[slice]:
    """Return the runs whose differences noise explains (chi-squared test of equal means)."""
    from scipy.special import chdtri  # the inverse of chi-squared's tail; scipy.stats takes half a second to import

    noisy = []
    for run in runs:
        squares = (row[run] - row[run].mean()) ** 2
        if variance[run].min() > 0 and (squares / variance[run]).sum() <= chdtri(len(squares) - 1, SIGNIFICANCE):
            noisy.append(run)
    return noisy


def _averaging_matrix(entries: int, runs: list[slice]) -> Float64:
    """Return (entries, entries): the matrix that replaces each run by its mean."""
    averaging = np.eye(entries)
    for run in runs:
        averaging[run, run] = 1 / (run.stop - run.start)
    return averaging
