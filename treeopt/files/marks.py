"""What tells the files that treeopt wrote from all others, so that no command overwrites one of a user's own.

Every format of treeopt's begins with a mark, pictures carry one in their metadata, and files in other programs' formats,
which have no room for one, are listed with their checksums in a file beside them.
"""

import hashlib
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

SIDECAR_SUFFIX = ".provenance.json"
HEAD_BYTES, TAIL_BYTES = 8192, 4096
SIDECAR_MAX_BYTES = 8_000_000
JOURNAL_SUFFIX = ".partial"
_TEXT = re.compile(rb'\s*(?:\{\s*"(?:format|tool)":\s*"treeopt\b|format: treeopt-)')
_JOURNAL = re.compile(rb'\{[^\n]*"conditions":')
_PICTURES = (
    (b"<?xml", b"<dc:title>treeopt</dc:title>"),
    (b"\x89PNG", b"Software\x00treeopt"),
    (b"%PDF", b"/Creator (treeopt)"),
    (b"<!doctype html>", b'<meta name="generator" content="treeopt '),
)
_ARCHIVE_FORMAT = "format.npy"
_ARCHIVE_MARK = "treeopt-".encode("utf-32-le")  # numpy keeps four bytes a character


def written_by_treeopt(path: Path, *, sidecar: Path | None = None) -> bool:
    """Return whether a file is empty, carries treeopt's mark, or is listed, unchanged, in a file beside it.

    Args:
        path: a regular file.
        sidecar: where it would be listed, by default beside it under its own name.

    Raises OSError when it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        size_bytes = file.seek(0, 2)
        file.seek(max(0, size_bytes - TAIL_BYTES))
        tail = file.read(TAIL_BYTES)
    if not head or _TEXT.match(head):
        return True
    if path.suffix == JOURNAL_SUFFIX and _JOURNAL.match(head):
        return True
    if head.startswith(b"PK"):
        if _is_marked_archive(path):
            return True
    elif any(head.startswith(start) and mark in head + tail for start, mark in _PICTURES):
        return True
    return _is_listed(path, sidecar or path.with_name(path.name + SIDECAR_SUFFIX))


def checksum(data: bytes) -> str:
    """Return the SHA-256 of some bytes as sidecars hold it."""
    return hashlib.sha256(data).hexdigest()


def _is_marked_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_ARCHIVE_FORMAT) as entry:
            return _ARCHIVE_MARK in entry.read(HEAD_BYTES)
    except (KeyError, ValueError, NotImplementedError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error):
        return False


def _is_listed(path: Path, sidecar: Path) -> bool:
    """Return whether a sidecar of treeopt's lists a file with the checksum that it has now.

    Sidecars of treeopt 0.1.0 list no files: they stand for the one that they are named after, whatever it holds.
    """
    if not sidecar.is_file():
        return False
    with sidecar.open("rb") as file:
        text = file.read(SIDECAR_MAX_BYTES)
    if not _TEXT.match(text):
        return False
    try:
        content: Any = json.loads(text)
        if "files" not in content:
            return sidecar.name == path.name + SIDECAR_SUFFIX
        listed = content["files"][path.relative_to(sidecar.parent).as_posix()]["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return bool(listed == checksum(path.read_bytes()))
