"""The parts of an engine's whole steps, as far as the measured steps determine them.

    T(B, K) = h + a(B) + t(B (K + 1)) + K c(B)

for B sequences with K draft tokens each: h for speculating at all (0 if K is 0), a for a step, t for verifying B (K + 1)
tokens, c for drafting one token of each sequence.  Every h, a(B), t(n) and c(B) is a separate unknown; a of the smallest
batch is part of t.  Solved by least squares.  An unknown is determined if every solution has the same value of it: if its
unit vector lies in the row space of the equations (Strang, 2016, section 7.4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.planner.resampling import SEED, draw_medians, estimate
from treeopt.records.engine import ChainLatency
from treeopt.records.latency import Estimate, Timing

SPECULATING, STEP, VERIFY, DRAFT = "speculating", "step", "verify", "draft"
ORDER = (SPECULATING, STEP, DRAFT, VERIFY)
ROUNDING = 1e-8
Terms = dict[tuple[str, int], int]
"""The coefficient of each unknown, by part and size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One unknown of the equations."""

    part: str
    """`speculating` (h), `step` (a), `verify` (t) or `draft` (c)."""
    size: int
    """Sequences for `step` and `draft`, tokens for `verify`; 0 for `speculating`."""
    seconds: Estimate | None
    """None if the measured steps do not determine it."""


def step_parts(latencies: Sequence[ChainLatency]) -> tuple[StepPart, ...]:
    """Return every part of steps that were measured at one context length and several batch sizes.

    Args:
        latencies: whole steps by draft length, one for each batch size.
    """
    measured = [equation for latency in latencies for equation in _equations(latency)]
    unknowns = sorted(
        {unknown for terms, _ in measured for unknown in terms},
        key=lambda unknown: (ORDER.index(unknown[0]), unknown[1]),
    )
    coefficients = np.array([[terms.get(unknown, 0) for unknown in unknowns] for terms, _ in measured], np.float64)
    timings = tuple(timing for _, timing in measured)
    inverse = np.linalg.pinv(coefficients)
    determined = np.abs(inverse @ coefficients - np.eye(len(unknowns))).max(axis=1) < ROUNDING
    values = inverse @ np.array([timing.median_s for timing in timings])
    draws = draw_medians(timings, np.random.default_rng(SEED)) @ inverse.T
    return tuple(
        StepPart(
            part=part,
            size=size,
            seconds=estimate(float(values[index]), draws[:, index]) if determined[index] else None,
        )
        for index, (part, size) in enumerate(unknowns)
    )


def _equations(latency: ChainLatency) -> Iterator[tuple[Terms, Timing]]:
    """Yield each time that was measured at one batch size, with its terms."""
    batch = latency.batch_size
    for chain in latency.chains:
        verify: Terms = {(VERIFY, batch * (chain.length + 1)): 1}
        draft: Terms = {(DRAFT, batch): chain.length} if chain.length else {}
        speculating: Terms = {(SPECULATING, 0): 1} if chain.length else {}
        yield {(STEP, batch): 1} | verify | draft | speculating, chain.steps
        if chain.verify is not None:
            yield verify, chain.verify
        if chain.draft is not None and chain.length:
            yield draft, chain.draft
