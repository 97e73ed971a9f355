"""What an importer is: one kind of file that another program writes, and the function that reads it."""

from collections.abc import Callable
from dataclasses import dataclass

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_acceptance import ImportedAcceptance
from treeopt.engines.importers.imported_latency import ImportedLatency

ACCEPTANCE, TIMES, DRAFT_TIMES = "acceptance", "times", "draft times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What one file contains; at least one of the fields is set."""

    acceptance: ImportedAcceptance | None = None
    latencies: tuple[ImportedLatency, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One kind of file: a row of `IMPORTERS`, which `treeopt import --list` prints."""

    name: str
    title: str
    contains: tuple[str, ...]
    """Of `ACCEPTANCE`, `TIMES` and `DRAFT_TIMES`."""
    needs: str
    """What such a file must hold, in words."""
    matches: Callable[[ForeignFile], bool]
    """Whether a file is of this kind, judged by its content."""
    read: Callable[[ForeignFile], Measurements]
    """Raises FormatError naming the file, the line or field, and the reason."""
