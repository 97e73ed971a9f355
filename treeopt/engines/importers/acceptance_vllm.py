"""Acceptance that vLLM writes into its log."""

import re
from pathlib import Path

from treeopt.errors import FormatError
from treeopt.records.engine import MAX_POSITIONS

LOG_MARK = "Per-position acceptance rate:"

_NUMBER = r"\d{1,15}(?:\.\d{1,17})?"
_LOG_LINE = re.compile(rf"{LOG_MARK}\s{{0,9}}({_NUMBER}(?:,\s{{0,9}}{_NUMBER}){{0,{MAX_POSITIONS}}})")


def read_log(path: Path | str, text: str) -> list[float]:
    """Return the rates of the last line that has them; raises FormatError where none has."""
    last = text.rfind(LOG_MARK)
    while last >= 0:
        if found := _LOG_LINE.match(text, last):
            return [float(rate) for rate in found[1].split(",")]
        last = text.rfind(LOG_MARK, 0, last)
    raise FormatError(path, "content", f"expected numbers with commas between after {LOG_MARK!r}. Got none.")
