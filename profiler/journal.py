"""Every measurement on disk as soon as it is made, so that an interrupted profile can go on where it stopped."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.whole_files import numbered_files, read_text
from treeopt.profiler.processes.processes import OneProcess, Processes, what_is_kept

MAX_BYTES = 64_000_000
_PART = re.compile(r", (?=[a-z_]+ |\w+\(|\{)")
"""Between the parts of a heading: a name and its value, or a whole record."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One measurement."""

    kind: str
    """What was measured: `verify`, `draft`, `step`, and with a rule or a tree behind them `acceptance`, `reach`."""
    key: int
    """Tokens of the pass, number of the step timed, number of the prompt."""
    values: tuple[float, ...]


class Journal:
    """A file of measurements, one JSON line each, under a first line that says what they are measurements of.

    Each of several processes appends to a file of its own, beside that of process 0; all begin with what all files hold.
    In memory the measurements lie by kind, so that asking for one kind never costs more because of the others.

    Args:
        path: the file, or None to keep nothing.
        heading: the conditions; a journal made under others is not continued.
        resume: read what is there instead of starting anew.
        processes: those that measure together; the conditions are those of process 0.

    Raises TreeoptError when there is nothing to resume or its conditions differ.
    """

    def __init__(
        self, path: Path | None, heading: str, *, resume: bool = False, processes: Processes | None = None
    ) -> None:
        processes = processes or OneProcess()
        self._entries: dict[str, list[Entry]] = {}
        self._samples: dict[str, dict[int, list[float]]] = {}
        self._shared = path
        self._path = path and _own_file(path, processes.rank) if processes.keeps_journal else None
        self._measured = False
        heading = processes.from_first(lambda: heading + processes.conditions)
        for entry in processes.from_first(lambda: _begin(path, heading, resume=resume)):
            self._keep(entry)
        if self._path is None:
            return
        if resume and self._path.exists():
            self._measured = _cut_torn_line(self._path) > 1  # the heading is a line too
        else:
            self._write("w", json.dumps({"conditions": heading}))

    def append(self, kind: str, key: int, values: tuple[float, ...]) -> None:
        """Keep one measurement.

        Raises TreeoptError when the file cannot be written; one without a measurement is removed.
        """
        self._keep(Entry(kind, key, values))
        if self._path is not None:
            self._write("a", json.dumps([kind, key, list(values)]))
            self._measured = True

    def kinds(self) -> Iterator[str]:
        """Yield the kinds of which there are measurements."""
        return iter(self._entries)

    def entries(self, kind: str) -> Iterator[Entry]:
        """Yield the measurements of one kind in the order they were made."""
        return iter(self._entries.get(kind, ()))

    def samples(self, kind: str) -> dict[int, list[float]]:
        """Return the single numbers of one kind by key, keys rising."""
        found = self._samples.get(kind, {})
        return {key: found[key].copy() for key in sorted(found)}

    def remove(self) -> None:
        """Delete the files of all processes: what they held has been written elsewhere."""
        if self._shared is not None:
            for file in [self._shared, *numbered_files(self._shared)]:
                file.unlink(missing_ok=True)

    def _keep(self, entry: Entry) -> None:
        self._entries.setdefault(entry.kind, []).append(entry)
        self._samples.setdefault(entry.kind, {}).setdefault(entry.key, []).extend(entry.values)

    def _write(self, mode: str, line: str) -> None:
        """Write one line; the file is closed at once, so that the line outlives whatever ends the process."""
        assert self._path is not None
        opened = False
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                opened = True
                file.write(line + "\n")
        except OSError as error:
            what_next = what_is_kept(self._path) if self._measured else "Make room, or choose another output."
            if opened and not self._measured:
                self._path.unlink(missing_ok=True)
            raise TreeoptError(f"{self._path}: cannot be written ({error.strerror}). {what_next}") from None


def _own_file(path: Path, rank: int) -> Path:
    """Return the file of one process."""
    return path if rank == 0 else path.with_name(f"{path.name}.{rank}")


def _begin(path: Path | None, heading: str, *, resume: bool) -> list[Entry]:
    """Return what all files hold where that is to be continued; otherwise remove what an earlier run left beside."""
    if path is None:
        return []
    if resume:
        return [entry for file in (path, *numbered_files(path)) for entry in _read(file, heading)]
    for file in numbered_files(path):
        file.unlink(missing_ok=True)
    return []


def _read(path: Path, heading: str) -> list[Entry]:
    lines = read_text(path, limit_bytes=MAX_BYTES).split("\n")
    try:
        conditions = json.loads(lines[0])["conditions"]
        # a line is complete once its line end is there; the last piece is what an interruption cut off
        entries = [
            Entry(str(kind), int(key), tuple(map(float, values))) for kind, key, values in map(json.loads, lines[1:-1])
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(path, "content", f"expected a journal of measurements ({error}).") from None
    if conditions != heading:
        raise TreeoptError(
            f"{path}: was measured under other conditions ({_parts_without(conditions, heading)}) than asked for now "
            f"({_parts_without(heading, conditions)}). "
            "Start over with --force in place of --resume, or give the options of the interrupted run."
        )
    return entries


def _parts_without(heading: object, other: object) -> str:
    """Return the parts of a heading that another does not have."""
    own, others = (_PART.split(str(each)) for each in (heading, other))
    return ", ".join(part for part in own if part not in others) or "nothing more"


def _cut_torn_line(path: Path) -> int:
    """Remove what an interruption left of a last line, so that the next one does not begin behind it.

    Returns the number of whole lines.
    """
    try:
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Choose another output.") from None
    return content.count(b"\n")
