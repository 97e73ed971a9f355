"""Acceptance by position from a sweep's accept lengths, or estimated from its speeds.

An accept length is tokens per step, the target's own token included.  Its increase from one draft length to the next is
the probability that a step accepts the last draft token, which cannot increase with the draft length.
"""

from collections.abc import Mapping

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.engines.importers.acceptance_tables import solve_constant_rate
from treeopt.errors import InvalidValueError

MIN_SPEEDS = 3
"""Lengths, plain decoding included, that determine a rate and a straight line."""
RATES = np.linspace(0.0, 1.0, 1001)
TOLERANCE = 1e-9


def fit_survival(accept_lengths: Mapping[int, float]) -> tuple[list[float], bool]:
    """Return the share of steps that accept at least 1, 2, … draft tokens, and whether accept lengths had to change.

    Accept lengths that contradict each other are pooled (isotonic regression of their increase per token; Barlow et al.,
    1972).  Between two lengths, every token is accepted at the same conditional rate.  If that rate leaves less than the
    increase to the next length, every token between the two is reached equally often.

    Args:
        accept_lengths: by draft length above 0.
    """
    lengths = np.array(sorted(accept_lengths))
    counts = np.diff(lengths, prepend=0)
    measured = np.diff([accept_lengths[length] for length in lengths.tolist()], prepend=1.0) / counts
    gains = _pool_gains(measured, counts)
    survival: list[float] = []
    for index, count in enumerate(counts.tolist()):
        gain, before = float(gains[index]), survival[-1] if survival else 1.0
        rate = solve_constant_rate(gain / before * count, count) if gain > 0 else 0.0
        block = [before * rate**power for power in range(1, count + 1)]
        next_gain = gains[index + 1] if index + 1 < len(gains) else 0.0
        survival += block if block[-1] >= next_gain else [gain] * count
    return survival, bool(np.abs(gains - measured).max(initial=0.0) > TOLERANCE)


def _pool_gains(gains: Float64, counts: Int64) -> Float64:
    """Return the nearest increases per token that fall from at most 1 to at least 0, by pooling adjacent violators."""
    pools: list[tuple[float, int, int]] = []  # tokens gained, draft tokens, and entries of each
    for gain, count in zip(gains.tolist(), counts.tolist(), strict=True):
        pool = (gain * count, count, 1)
        while pools and pools[-1][0] * pool[1] < pool[0] * pools[-1][1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    pooled = np.repeat([gained / tokens for gained, tokens, _ in pools], [entries for *_, entries in pools])
    return np.asarray(np.clip(pooled, 0.0, 1.0))


def estimate_rate(token_s: Mapping[int, float]) -> float:
    """Return one rate at which every draft token is accepted.

    It is the rate for which the step times, seconds per token times tokens per step, are nearest to a straight line
    in the draft length that does not fall.  Errors count relative to the step time.

    Args:
        token_s: seconds per token of one sequence, by draft length.

    Raises InvalidValueError without plain decoding and two draft lengths, because any rate fits fewer.
    """
    if 0 not in token_s or len(token_s) < MIN_SPEEDS:
        raise InvalidValueError(
            "expected accept lengths, or speeds of plain decoding, which is length 0, and two draft lengths. Got speeds of "
            f"the lengths {', '.join(map(str, sorted(token_s))):.80}: add rows or the column accept_length.",
            field="content",
        )
    lengths = np.array(sorted(token_s))
    tokens = np.cumsum(RATES[:, None] ** np.arange(lengths[-1] + 1), axis=1)[:, lengths]
    step_s = tokens * np.array([token_s[length] for length in lengths.tolist()])
    errors = [_line_error(lengths, steps) for steps in step_s]
    return float(RATES[int(np.argmin(errors))])


def _line_error(lengths: Int64, step_s: Float64) -> float:
    """Return the sum of squared relative errors of the best line that does not fall."""
    columns = np.stack([1 / step_s, lengths / step_s], axis=1)
    for fitted in (columns, columns[:, :1]):
        line = np.linalg.lstsq(fitted, np.ones(len(lengths)), rcond=None)[0]
        if len(line) == 1 or line[1] >= 0:
            break
    return float(np.square(fitted @ line - 1).sum())
