"""What the samples leave open: the predictions of a tree under many plausible tables and curves."""

import numpy as np
import numpy.typing as npt

from treeopt.acceptance import NORMAL_95, AcceptanceTable
from treeopt.latency import LatencyTable, Timing
from treeopt.profile import StepLatency
from treeopt.trees import TokenTree

FloatArray = npt.NDArray[np.float64]

DRAWS = 400
SEED = 20240219


class Draws:
    """A parametric bootstrap of a profile's condition, the same draws for every tree, so that trees can be compared.

    Every acceptance entry and every median time is drawn from the normal law of its 95 % interval, independently;
    rows of acceptance are cut to probabilities that sum to at most 1.
    """

    def __init__(self, latency: StepLatency, table: AcceptanceTable) -> None:
        generator = np.random.default_rng(SEED)
        self._table = table
        self._p = _draw_acceptance(table, generator)
        self._verify = latency.verify
        self._draft = latency.draft
        self._verify_s = _draw_medians(latency.verify.timings, generator)
        self._draft_s = _draw_medians(latency.draft.timings, generator)
        self._overhead_s = np.maximum(0.0, _draw_medians((latency.overhead,), generator)[:, 0])

    def of(self, tree: TokenTree) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return tokens per step, seconds of a step and speedup, each float64 (draws,)."""
        tokens = self._tokens(tree)
        plain_s = _at(self._verify, self._verify_s, np.array([1]))[:, 0]
        step_s = _at(self._verify, self._verify_s, np.array([tree.nodes]))[:, 0]
        if tree.max_depth > 0:
            draft_s = _at(self._draft, self._draft_s, tree.draft_widths).sum(axis=1)
            step_s = step_s + draft_s + self._overhead_s
        return tokens, step_s, tokens * (plain_s / step_s)

    def _tokens(self, tree: TokenTree) -> FloatArray:
        self._table.rows(tree.max_depth)  # refuses a tree deeper than the table
        reach = np.ones((DRAWS, tree.nodes))
        for depth, level in enumerate(tree.levels[1:], start=1):
            row = self._p[:, 0 if self._table.position_invariant else depth - 1]
            rank = tree.rank[level]
            accepted = np.where(rank < row.shape[1], row[:, np.minimum(rank, row.shape[1] - 1)], 0.0)
            reach[:, level] = reach[:, tree.parents[level]] * accepted
        return np.asarray(reach.sum(axis=1))


def _draw_acceptance(table: AcceptanceTable, generator: np.random.Generator) -> FloatArray:
    """Return float64 (draws, D, B)."""
    p = np.atleast_2d(table.p)
    error = np.zeros_like(p) if table.standard_error is None else np.atleast_2d(table.standard_error)
    drawn = np.clip(p + error * generator.standard_normal((DRAWS, *p.shape)), 0.0, 1.0)
    return np.asarray(drawn / np.maximum(1.0, drawn.sum(axis=-1, keepdims=True)))


def _draw_medians(timings: tuple[Timing, ...], generator: np.random.Generator) -> FloatArray:
    """Return float64 (draws, len(timings))."""
    estimates = [timing.estimate for timing in timings]
    median = np.array([estimate.value for estimate in estimates])
    error = np.array([(estimate.high - estimate.low) / (2 * NORMAL_95) for estimate in estimates])
    drawn = median + error * generator.standard_normal((DRAWS, len(timings)))
    return np.asarray(np.clip(drawn, [timing.samples_s.min() for timing in timings], None))


def _at(table: LatencyTable, drawn_s: FloatArray, tokens: npt.NDArray[np.integer]) -> FloatArray:
    """Return float64 (draws, len(tokens)): each draw's curve at the given counts, straight between the measured."""
    table.seconds(tokens)  # refuses counts outside the measured range
    right = np.clip(np.searchsorted(table.tokens, tokens), 1, max(1, len(table.tokens) - 1))
    if len(table.tokens) == 1:
        return np.asarray(drawn_s[:, np.zeros(len(tokens), np.int64)])
    left = right - 1
    share = (tokens - table.tokens[left]) / (table.tokens[right] - table.tokens[left])
    return np.asarray((1 - share) * drawn_s[:, left] + share * drawn_s[:, right])
