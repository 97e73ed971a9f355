"""What an engine's whole steps are made of, as far as the measured ones tell it apart.

    T(B, K) = h + a(B) + t(B (K + 1)) + K c(B)

B texts at a time with K draft tokens each: h for speculating at all (none where K is 0), a for a step, t for verifying so
many tokens, c for drafting one token of each text.  Every h, a(B), t(n) and c(B) is an unknown of its own, with a of the
fewest texts counted among t.  Solved by least squares; an unknown is told apart where no other solution has another value
of it: where its unit vector lies in the row space of the equations (Strang, 2016, section 7.4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.planner.resampling import SEED, draw_medians, estimate
from treeopt.records.engine import ChainLatency
from treeopt.records.latency import Estimate, Timing

SPECULATING, STEP, VERIFY, DRAFT = "speculating", "step", "verify", "draft"
ROUNDING = 1e-8
Terms = dict[tuple[str, int], int]
"""How many times something takes each unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One unknown of the equation, in seconds."""

    part: str
    """`speculating` (h), `step` (a), `verify` (t) or `draft` (c)."""
    size: int
    """Texts of `step` and `draft`, tokens of `verify`; 0 of `speculating`."""
    seconds: Estimate | None
    """With its 95 % interval; None where the measured steps do not tell it apart."""


def step_parts(latencies: Sequence[ChainLatency]) -> tuple[StepPart, ...]:
    """Return every part of steps that were measured at one context length and several batch sizes.

    Args:
        latencies: whole steps by draft length, one for each batch size.
    """
    measured = [each for latency in latencies for each in _measured(latency)]
    unknowns = sorted({unknown for terms, _ in measured for unknown in terms}, key=_order)
    equations = np.array([[terms.get(unknown, 0) for unknown in unknowns] for terms, _ in measured], np.float64)
    times = tuple(timing for _, timing in measured)
    solve = np.linalg.pinv(equations)
    told_apart = np.abs(solve @ equations - np.eye(len(unknowns))).max(axis=1) < ROUNDING
    values = solve @ np.array([timing.median_s for timing in times])
    draws = draw_medians(times, np.random.default_rng(SEED)) @ solve.T
    return tuple(
        StepPart(part=part, size=size, seconds=estimate(float(values[index]), draws[:, index]) if told else None)
        for index, ((part, size), told) in enumerate(zip(unknowns, told_apart.tolist(), strict=True))
    )


def _measured(latency: ChainLatency) -> Iterator[tuple[Terms, Timing]]:
    """Yield what was timed at one batch size, and which unknowns each took how many times."""
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


def _order(unknown: tuple[str, int]) -> tuple[int, int]:
    part, size = unknown
    return (SPECULATING, STEP, DRAFT, VERIFY).index(part), size
