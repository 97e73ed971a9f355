"""An importer, a function that reads one kind of file, and the records that it returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.engines.importers.foreign_file import ForeignFile, source_text
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.latency import LatencyTable, Timing

ACCEPTANCE, TIMES, DRAFT_TIMES, SWEEP = "acceptance", "times", "draft times", "a sweep over the draft length"
MIN_S, MAX_S = 1e-9, 1e6
"""Seconds of a pass outside this range are a wrong unit or a broken file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAcceptance:
    """Acceptance of one file, without the rule and the sampling, which files do not contain."""

    table: AcceptanceTable
    kind: str
    """The kind of file, and caveats about it."""
    prompts: int | None = None
    """Requests; None if the file does not contain their number."""
    positions: int | None = None
    """Steps that drafted; None if the file does not contain their number."""
    sequences: SequenceSums | None = None
    """Sums per request that the table was made of; None if the file does not separate requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedLatency:
    """Times at one context length and batch size; at least one of the three.

    Raises InvalidValueError for a curve that does not begin at 1 token, and without any times.
    """

    context_tokens: int | None
    """Tokens in the cache; None if the file does not contain it."""
    batch_size: int
    verify: LatencyTable | None = None
    """The target's pass against the nodes of one sequence, `batch_size` of which are verified together."""
    draft: LatencyTable | None = None
    """Drafting one level against the internal nodes of a sequence; if `per_block`, all levels against their number."""
    per_block: bool = False
    overhead: Timing | None = None
    """Host overhead of a step; None if `verify` includes it."""
    source: str
    """The file and its kind."""

    def __post_init__(self) -> None:
        if self.verify is None and self.draft is None and self.overhead is None:
            raise InvalidValueError("latency: expected times of verification, drafting or overhead. Got none.")
        _check_start("verify", self.verify, "plain decoding's pass, against which speedups count")
        _check_start("draft", self.draft, "a level of one node, as in a chain")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One measurement of a sweep over the draft length."""

    length: int
    """Draft tokens; 0 is plain decoding."""
    tree: bool
    """Whether the engine drafted trees instead of chains."""
    batch_size: int
    context_tokens: int | None
    """None if the file does not contain it."""
    step_s: float | None
    """None if the file contains a speed instead."""
    token_s: float | None
    """Seconds per token of one sequence; None if the file contains a step time."""
    tokens_per_step: float | None
    """Accept length of one sequence, including the target's own token; None if the file does not contain it."""
    model: str | None = None
    """Name of the target; None if the file does not contain it."""


Measurements = ImportedAcceptance | tuple[ImportedLatency, ...] | tuple[SweepRow, ...]
"""Content of one file: acceptance, times by context and batch size, or the rows of a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One kind of file: an entry of `IMPORTERS` and of `treeopt import --list`.

    A new kind is one module with an `Importer`, and one line in `IMPORTERS`.
    """

    name: str
    title: str
    contains: tuple[str, ...] = (ACCEPTANCE,)
    """Of `ACCEPTANCE`, `TIMES`, `DRAFT_TIMES` and `SWEEP`; empty for a kind that is always refused with advice."""
    needs: str
    """What such a file must contain, in words."""
    matches: Callable[[ForeignFile], bool]
    """Whether a file is of this kind, judged by its content."""
    read: Callable[[ForeignFile], Measurements]
    """Returns what `ForeignFile.part` names; raises FormatError naming the file, the line or field, and the reason."""


def build_latency(
    file: ForeignFile,
    field: str,
    kind: str,
    samples_s: Mapping[int, Sequence[float]],
    *,
    context_tokens: int | None = None,
    batch_size: int = 1,
    drafts: bool = False,
) -> ImportedLatency:
    """Return times of verification, or with `drafts` of drafting, from seconds by token count.

    Raises FormatError naming the field, for seconds out of range and a curve that does not begin at 1 token.
    """
    curve = file.build(field, build_curve, samples_s)
    return file.build(
        field,
        ImportedLatency,
        context_tokens=context_tokens,
        batch_size=batch_size,
        verify=None if drafts else curve,
        draft=curve if drafts else None,
        source=source_text(file.path, kind),
    )


def build_curve(samples_s: Mapping[int, Sequence[float]]) -> LatencyTable:
    """Return the latency table of seconds by token count; raises InvalidValueError for seconds out of range."""
    counts = sorted(samples_s)
    return LatencyTable(counts, [_build_timing(count, samples_s[count]) for count in counts])


def _build_timing(tokens: int, samples_s: Sequence[float]) -> Timing:
    samples = np.array(samples_s, np.float64)
    in_range = (samples >= MIN_S) & (samples <= MAX_S)
    if not np.all(in_range):
        raise InvalidValueError(
            f"seconds: expected {MIN_S:g} to {MAX_S:g}. Got {samples[~in_range][0]:g} at {tokens} tokens: is it another "
            "unit?"
        )
    return Timing(samples)


def _check_start(name: str, curve: LatencyTable | None, first_point: str) -> None:
    if curve is not None and curve.tokens[0] != 1:
        raise InvalidValueError(
            f"{name}: expected times from 1 token, {first_point}. Got the first at {curve.tokens[0]}: time 1 token too."
        )
