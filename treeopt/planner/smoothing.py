"""Noise taken out of rows and curves: isotonic regression, where noise alone can explain what is out of order.

Acceptance is expected to fall from rank to rank, and seconds to rise with tokens.  Neighbours that stand the other way
round are replaced by their mean where their errors explain it; a rise or a drop that they do not explain is left alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64
from treeopt.records.acceptance import NORMAL_95, AcceptanceTable, TextSums
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_acceptance import MeasuredAcceptance

SIGNIFICANCE = 1e-3
"""What noise explains with less than this probability is taken for real and left alone."""


UNSEEN = 1e-6
"""Stands for a count of 0: next to nothing is known."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Smoothing(ShortRepr):
    """An acceptance whose rows fall where they may, and what was done to it."""

    acceptance: MeasuredAcceptance
    changed: int
    """Entries of the table that changed."""
    largest_change: float
    """Largest change of an entry."""
    kept: int
    """Runs of ranks that rise by more than noise explains, left as measured."""


def smooth(acceptance: MeasuredAcceptance) -> Smoothing:
    """Return the acceptance with every run of ranks that rises replaced by the run's mean, where noise explains it.

    The mean over a run is what isotonic regression with equal weights gives (Barlow et al., 1972); sums of rows stay
    as they are.  A table without errors and counts is taken to be exact: none of its rises is noise.
    """
    table = acceptance.table
    p = table.p.reshape(-1, table.branching)
    variance = _variance(table).reshape(p.shape)
    runs = [_runs(row) for row in p]
    pooled = [_explained(*each) for each in zip(p, variance, runs, strict=True)]
    mixing = np.stack([_mixing(table.branching, each) for each in pooled])
    smoothed = np.einsum("rij,rj->ri", mixing, p).reshape(table.p.shape)
    error = table.standard_error
    if error is not None:
        error = np.sqrt(np.einsum("rij,rj->ri", mixing**2, error.reshape(p.shape) ** 2)).reshape(table.p.shape)
    texts = acceptance.texts
    if texts is not None:
        texts = TextSums(texts.reached, np.einsum("dij,tdj->tdi", mixing, texts.accepted))
        error = np.sqrt((texts.deviations() ** 2).sum(axis=0)).reshape(table.p.shape)
    return Smoothing(
        acceptance=replace(
            acceptance,
            table=AcceptanceTable(smoothed, counts=table.counts, standard_error=error),
            texts=texts,
        ),
        changed=int((smoothed != table.p).sum()),
        largest_change=float(np.abs(smoothed - table.p).max()),
        kept=sum(map(len, runs)) - sum(map(len, pooled)),
    )


@lru_cache(maxsize=1024)
def pooling(table: LatencyTable) -> tuple[slice, ...]:
    """Return the runs of a table's counts whose medians noise put out of order; see `pooled`.

    They are kept, because many conditions are mixed from the same tables.
    """
    ends = np.array([timing.interval_s for timing in table.timings])
    variance = (np.diff(ends, axis=1)[:, 0] / (2 * NORMAL_95)) ** 2
    return tuple(_explained(table.medians_s, variance, _runs(-table.medians_s)))


def pooled(seconds: Float64, runs: Sequence[slice]) -> Float64:
    """Return (…, m): seconds with every run of `pooling` replaced by its mean."""
    result = np.array(seconds)
    for run in runs:
        result[..., run] = seconds[..., run].mean(axis=-1, keepdims=True)
    return result


def _variance(table: AcceptanceTable) -> Float64:
    """Return the variance of each entry, at least that of a mean over as many positions as were counted."""
    variance = np.zeros_like(table.p) if table.standard_error is None else table.standard_error**2
    if table.counts is None:
        return variance
    # one hit more: a rank that was never seen accepted is not known to be never accepted
    counts = np.maximum(table.counts, UNSEEN).reshape(*table.p.shape[:-1], 1)
    likely = np.minimum(0.5, table.p + 1 / counts)
    return np.asarray(np.maximum(variance, likely * (1 - likely) / counts))


def _runs(row: Float64) -> list[slice]:
    """Return the runs of entries, out of falling order, that isotonic regression makes equal."""
    from scipy.optimize import isotonic_regression

    blocks = isotonic_regression(row, increasing=False).blocks
    runs = [slice(int(start), int(end)) for start, end in pairwise(blocks)]
    return [run for run in runs if np.ptp(row[run]) > 0]


def _explained(row: Float64, variance: Float64, runs: list[slice]) -> list[slice]:
    """Return the runs whose differences noise explains (chi-squared test of equal means)."""
    from scipy.special import chdtri  # the inverse of chi-squared's tail; scipy.stats takes half a second to import

    explained = []
    for run in runs:
        squares = (row[run] - row[run].mean()) ** 2
        if variance[run].min() > 0 and (squares / variance[run]).sum() <= chdtri(len(squares) - 1, SIGNIFICANCE):
            explained.append(run)
    return explained


def _mixing(entries: int, runs: list[slice]) -> Float64:
    """Return (entries, entries): the matrix that replaces each run by its mean."""
    mixing = np.eye(entries)
    for run in runs:
        mixing[run, run] = 1 / (run.stop - run.start)
    return mixing
