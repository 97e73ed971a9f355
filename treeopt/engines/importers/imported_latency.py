"""The record of times that were measured elsewhere, under one condition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.errors import InvalidValueError
from treeopt.records.latency import LatencyTable, Timing

LEAST_S, MOST_S = 1e-9, 1e6
"""Seconds of a pass outside of these are a wrong unit or a broken file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedLatency:
    """Times of one context length and batch size; at least one of the three.

    Raises InvalidValueError for a curve that does not begin at 1 token, and where there are no times.
    """

    context_tokens: int | None
    """Tokens in the cache; None where the file does not say."""
    batch_size: int
    verify: LatencyTable | None = None
    """The target's pass against the nodes of one sequence, `batch_size` of them verified together."""
    draft: LatencyTable | None = None
    """Drafting one level against the internal nodes of one sequence, or where `per_block` all levels against their number."""
    per_block: bool = False
    overhead: Timing | None = None
    """The rest of a step; None where it is part of `verify`."""
    source: str
    """The file and what it is."""

    def __post_init__(self) -> None:
        if self.verify is None and self.draft is None and self.overhead is None:
            raise InvalidValueError("latency: expected times of verification, drafting or overhead. Got none.")
        _check_start("verify", self.verify, "plain decoding's pass, against which speedups count")
        _check_start("draft", self.draft, "a level of one node, as in a chain")


def curve(samples_s: Mapping[int, Sequence[float]]) -> LatencyTable:
    """Return the table of samples by their count of tokens; raises InvalidValueError naming the count."""
    tokens = sorted(samples_s)
    return LatencyTable(tokens, [_timing(count, samples_s[count]) for count in tokens])


def curves(
    samples_s: Mapping[int, Mapping[int, Sequence[float]]], *, drafts: bool, source: str
) -> tuple[ImportedLatency, ...]:
    """Return a curve of a batch of 1 for every context; raises InvalidValueError for one that does not begin at 1 token.

    Args:
        samples_s: seconds by context and count of tokens.
        drafts: whether the passes are the draft model's.
        source: the file and what it is.
    """
    tables = {context: curve(times) for context, times in sorted(samples_s.items())}
    return tuple(
        ImportedLatency(
            context_tokens=context,
            batch_size=1,
            verify=None if drafts else table,
            draft=table if drafts else None,
            source=source,
        )
        for context, table in tables.items()
    )


def _timing(tokens: int, samples_s: Sequence[float]) -> Timing:
    samples = np.array(samples_s, np.float64)
    fine = (samples >= LEAST_S) & (samples <= MOST_S)
    if not np.all(fine):
        wrong = samples[~fine][0]
        raise InvalidValueError(
            f"seconds: expected {LEAST_S:g} to {MOST_S:g}. Got {wrong:g} at {tokens} tokens: is it another unit?"
        )
    return Timing(samples)


def _check_start(name: str, table: LatencyTable | None, what: str) -> None:
    if table is not None and table.tokens[0] != 1:
        raise InvalidValueError(
            f"{name}: expected times from 1 token, {what}. Got the first at {table.tokens[0]}: time 1 token too."
        )
