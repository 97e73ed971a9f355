"""What the numbers of a journal mean: which treeopt wrote it, in which form, and with which probe trees.

Measurements are numbered, so a file of another version, or of other trees, would be read as something it is not.
"""

import json
import re
from pathlib import Path
from zlib import crc32

from treeopt.errors import TreeoptError
from treeopt.profiler.latency.passes import PROBE_TREES
from treeopt.version import __version__

JOURNAL_VERSION = 2
MAX_HEADING_BYTES = 1_000_000
_EDITION = re.compile(r"treeopt [\w.+-]+, journal \d+, probe trees [0-9a-f]{8}(?=, )")


def edition() -> str:
    """Return what a journal's heading begins with: the versions of treeopt and of the journal, and the probe trees."""
    checksum = crc32(repr([tree.parents.tolist() for tree in PROBE_TREES]).encode())
    return f"treeopt {__version__}, journal {JOURNAL_VERSION}, probe trees {checksum:08x}"


def check_edition(path: Path) -> None:
    """Refuse to go on with a journal that another treeopt, or one with other probe trees, began.

    A file that cannot be read, or is no journal, is left to `Journal`, which says so.  Raises TreeoptError.
    """
    heading = _heading(path)
    if heading is None or heading.startswith(f"{edition()}, "):
        return
    theirs = found[0] if (found := _EDITION.match(heading)) else "a treeopt that does not tell its version"
    raise TreeoptError(
        f"{path}: was measured by {theirs}, which may time other things under the same numbers than this {edition()}. "
        "Start over with --force in place of --resume, or continue with the treeopt that began it."
    )


def _heading(path: Path) -> str | None:
    """Return the heading of a journal, None where there is none."""
    try:
        with path.open("rb") as file:
            heading = json.loads(file.readline(MAX_HEADING_BYTES))["conditions"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return heading if isinstance(heading, str) else None
