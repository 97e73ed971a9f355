"""A checkpoint: every measurement on disk as soon as it is made, so that an interrupted profile can be resumed.

Measurements are numbered, so a checkpoint of another treeopt version, or of other probe trees, is refused.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.atomic_files import numbered_files, read_text
from treeopt.profiler.latency.passes import PROBE_TREES
from treeopt.profiler.processes.processes import Processes, describe_checkpoint
from treeopt.version import __version__

CHECKPOINT_VERSION = 3
MAX_BYTES = 64_000_000
MAX_HEADING_BYTES = 1_000_000
_ORIGIN = re.compile(r"treeopt [\w.+-]+, checkpoint \d+, probe trees [0-9a-f]{8}(?=, )")
_ITEM_SEPARATOR = re.compile(r", (?=[a-z_]+ |\w+\(|\{)")
"""Between the items of a heading: a name and its value, or a whole record."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One measurement."""

    kind: str
    """`verify`, `draft` or `step` at an operating point, `acceptance`, `reach` of a tree, …"""
    key: int
    """Tokens of the pass, number of the timed step, or number of the prompt."""
    values: tuple[float, ...]


class Checkpoint:
    """A file of measurements, one JSON line each, after a first line with the conditions they were made under.

    The first measurement creates it, because a file without one would hinder the next run and help none.
    Each of several processes appends to a file of its own, next to that of process 0.  All start with the entries of all
    files.

    Args:
        path: the file; None stores nothing.
        heading: the conditions; a checkpoint made under others is refused.
        resume: read the existing file, if there is one, instead of starting again.
        processes: those that measure together; the conditions are those of process 0.

    Raises TreeoptError if the conditions of an existing file differ.
    """

    def __init__(
        self, path: Path | None, heading: str, *, resume: bool = False, processes: Processes | None = None
    ) -> None:
        processes = processes or Processes()
        self._entries: dict[str, list[Entry]] = {}
        self._first_path = path
        self._path = path and _process_path(path, processes.rank) if processes.writes_checkpoint else None
        self._has_entries = False
        self._heading = processes.run_on_first(lambda: heading + processes.conditions)
        for entry in processes.run_on_first(lambda: _start(path, self._heading, resume=resume)):
            self._entries.setdefault(entry.kind, []).append(entry)
        if self._path is not None and self._path.exists():
            self._has_entries = _truncate_partial_line(self._path) > 1  # the heading is a line too

    def append(self, kind: str, key: int, values: tuple[float, ...]) -> None:
        """Store one measurement.

        Raises TreeoptError if the file cannot be written; a file without a measurement is removed.
        """
        self._entries.setdefault(kind, []).append(Entry(kind, key, values))
        if self._path is not None:
            lines = [json.dumps([kind, key, list(values)])]
            if not self._has_entries:
                lines.insert(0, json.dumps({"conditions": self._heading}))
            self._write("".join(f"{line}\n" for line in lines))
            self._has_entries = True

    @property
    def is_saved(self) -> bool:
        """Whether the file exists, which it does from the first measurement on."""
        return self._has_entries

    def kinds(self) -> Iterator[str]:
        return iter(self._entries)

    def entries(self, kind: str) -> Sequence[Entry]:
        """Return the measurements of one kind in the order they were made."""
        return self._entries.get(kind, ())

    def rows(self, kind: str) -> dict[int, tuple[float, ...]]:
        """Return the last values of one kind by key, where a key is measured once, such as the number of a prompt."""
        return {entry.key: entry.values for entry in self.entries(kind)}

    def samples(self, kind: str) -> dict[int, list[float]]:
        """Return all values of one kind by key, in ascending order of keys."""
        samples: dict[int, list[float]] = {}
        for entry in self.entries(kind):
            samples.setdefault(entry.key, []).extend(entry.values)
        return dict(sorted(samples.items()))

    def remove(self) -> None:
        """Delete the files of all processes."""
        if self._first_path is not None:
            for file in [self._first_path, *numbered_files(self._first_path)]:
                file.unlink(missing_ok=True)

    def _write(self, lines: str) -> None:
        """Add lines to the measurements and close the file, so that they survive the end of the process."""
        assert self._path is not None
        opened = False
        try:
            with self._path.open("a" if self._has_entries else "w", encoding="utf-8") as file:
                opened = True
                file.write(lines)
        except OSError as error:
            hint = describe_checkpoint(self._path) if self._has_entries else "Make room, or choose another output."
            if opened and not self._has_entries:
                self._path.unlink(missing_ok=True)
            raise TreeoptError(f"{self._path}: cannot be written ({error.strerror}). {hint}") from None


def describe_origin() -> str:
    """Return the start of a heading: the versions of treeopt and of the checkpoint format, and the probe trees."""
    checksum = crc32(repr([tree.parents.tolist() for tree in PROBE_TREES]).encode())
    return f"treeopt {__version__}, checkpoint {CHECKPOINT_VERSION}, probe trees {checksum:08x}"


def check_origin(path: Path) -> None:
    """Raise TreeoptError for a checkpoint of another treeopt, or of other probe trees.

    A file that cannot be read, or is no checkpoint, is left to `Checkpoint`.
    """
    heading = _read_heading(path)
    if heading is None or heading.startswith(f"{describe_origin()}, "):
        return
    origin = match[0] if (match := _ORIGIN.match(heading)) else "a treeopt of unknown version"
    raise TreeoptError(
        f"{path}: was measured by {origin}, which may time other things under the same numbers than this {describe_origin()}. "
        "Start over with --force in place of --resume, or continue with the treeopt that began it."
    )


def _read_heading(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            heading = json.loads(file.readline(MAX_HEADING_BYTES))["conditions"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return heading if isinstance(heading, str) else None


def _process_path(path: Path, rank: int) -> Path:
    return path if rank == 0 else path.with_name(f"{path.name}.{rank}")


def _start(path: Path | None, heading: str, *, resume: bool) -> list[Entry]:
    """Return the entries of all files if they are to be resumed, else remove the files."""
    if path is None:
        return []
    if resume:
        files = (file for file in (path, *numbered_files(path)) if file.exists())
        return [entry for file in files for entry in _read(file, heading)]
    for file in (path, *numbered_files(path)):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise TreeoptError(f"{file}: cannot be removed ({error.strerror}). Choose another output.") from None
    return []


def _read(path: Path, heading: str) -> list[Entry]:
    lines = read_text(path, limit_bytes=MAX_BYTES).split("\n")
    try:
        conditions = json.loads(lines[0])["conditions"]
        # a line is complete once its line end is there; the last piece was cut off by an interruption
        entries = [
            Entry(str(kind), int(key), tuple(map(float, values))) for kind, key, values in map(json.loads, lines[1:-1])
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(path, "content", f"expected a checkpoint of measurements ({error}).") from None
    if conditions != heading:
        raise TreeoptError(
            f"{path}: was measured under other conditions ({_items_missing_in(heading, conditions)}) than asked for now "
            f"({_items_missing_in(conditions, heading)}). "
            "Start over with --force in place of --resume, or give the options of the interrupted run."
        )
    return entries


def _items_missing_in(other: object, heading: object) -> str:
    """Return the items of a heading that another one lacks."""
    items, other_items = (_ITEM_SEPARATOR.split(str(text)) for text in (heading, other))
    return ", ".join(item for item in items if item not in other_items) or "nothing more"


def _truncate_partial_line(path: Path) -> int:
    """Remove an incomplete last line and return the number of whole lines."""
    try:
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Choose another output.") from None
    return content.count(b"\n")
