"""What an importer is: one kind of file that another program writes, and the function that reads it."""

from collections.abc import Callable
from dataclasses import dataclass

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.imported_latency import ImportedLatency

ACCEPTANCE, TIMES, DRAFT_TIMES, SWEEP = "acceptance", "times", "draft times", "a sweep over the draft length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One measurement of a sweep over the draft length."""

    length: int
    """Draft tokens; 0 is plain decoding."""
    tree: bool
    """Whether trees were drafted, not chains."""
    batch_size: int
    context_tokens: int | None
    """None where the file does not contain it."""
    step_s: float
    tokens_per_step: float
    """Of one sequence, with the target's own token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What one file contains; at least one of the fields is set."""

    acceptance: ImportedAcceptance | None = None
    latencies: tuple[ImportedLatency, ...] = ()
    sweep: tuple[SweepRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One kind of file: a row of `IMPORTERS`, which `treeopt import --list` prints."""

    name: str
    title: str
    contains: tuple[str, ...]
    """Of `ACCEPTANCE`, `TIMES`, `DRAFT_TIMES` and `SWEEP`; empty for files whose reader only says what to take instead."""
    needs: str
    """What such a file must hold, in words."""
    matches: Callable[[ForeignFile], bool]
    """Whether a file is of this kind, judged by its content."""
    read: Callable[[ForeignFile], Measurements]
    """Raises FormatError naming the file, the line or field, and the reason."""
