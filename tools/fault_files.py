"""Faults as files: what each does wrong, which tests ought to find it, and the change itself as a unified diff."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FORMAT = re.compile(r"(?P<sentence>\S[^\n]*)\n\nTests: (?P<tests>\S[^\n]*)\n\ndiff --git ")
CHANGED = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)
HUNK = re.compile(r"^@@ ", re.MULTILINE)


class FaultError(Exception):
    """What is wrong with a fault's file, or with planting it, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One small fault in product code."""

    name: str
    sentence: str
    """What is wrong, and what it would do to a user."""
    tests: tuple[str, ...]
    """Test files and folders that ought to find it, relative to the root."""
    patch: Path
    files: tuple[str, ...]
    """Files that the patch changes, relative to the root."""


def read_fault(path: Path) -> Fault:
    """Return the fault of a file; raises FaultError where it has no heading, or no change below it."""
    text = path.read_text("utf-8")
    heading, files = FORMAT.match(text), tuple(CHANGED.findall(text))
    if heading is None or not files or not HUNK.search(text):
        raise FaultError(
            f"{path.name}: expected a sentence, an empty line, 'Tests: PATH …', an empty line, and what git diff prints. "
            "Put the heading back."
        )
    return Fault(
        name=path.stem,
        sentence=heading["sentence"],
        tests=tuple(heading["tests"].split()),
        patch=path.resolve(),
        files=files,
    )


def read_faults(folder: Path, names: Sequence[str] = ()) -> list[Fault]:
    """Return the faults of a folder in alphabetical order, or those of some names; raises FaultError for an unknown one."""
    paths = {path.stem: path for path in sorted(folder.glob("*.patch"))}
    for name in names:
        if name not in paths:
            raise FaultError(f"{name}: no such fault. Look for its name with --list.")
    if not paths:
        raise FaultError(f"{folder}: no faults. Expected files that end in .patch.")
    return [read_fault(path) for name, path in paths.items() if not names or name in names]
