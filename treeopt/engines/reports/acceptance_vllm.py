"""Acceptance that vLLM reports: its counters, and the line in its log.

Counters of `/metrics`, with or without the ending `_total`, one per engine:

    vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
    vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 80.0
"""

import math
import re
from collections import defaultdict
from pathlib import Path

from treeopt.errors import FormatError

METRICS_MARK = re.compile(r"^[ \t]{0,9}vllm[:_]spec_decode_num_", re.MULTILINE)
LOG_MARK = "Per-position acceptance rate:"
MAX_POSITIONS = 10_000
MAX_LINE = 4000
"""Characters of a counter's line."""

_NUMBER = r"\d{1,15}(?:\.\d{1,17})?"
_LOG_LINE = re.compile(rf"{LOG_MARK}\s{{0,9}}({_NUMBER}(?:,\s{{0,9}}{_NUMBER}){{0,{MAX_POSITIONS}}})")
_SERIES = re.compile(
    r"\s*vllm[:_]spec_decode_num_(drafts|accepted_tokens_per_pos)(?:_total)?(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*"
)
_LABEL = re.compile(r'(\w{1,40})="((?:[^"\\]|\\.)*)"')


def read_metrics(path: Path | str, text: str) -> tuple[float, list[float]]:
    """Return the drafts, and how many had each position accepted, summed over engines.

    Raises FormatError naming the line, and for the counters of several models.
    """
    drafts, accepted = 0.0, defaultdict[int, float](float)
    models = set()
    for number, content in enumerate(text.split("\n"), start=1):
        series = _SERIES.fullmatch(content) if len(content) <= MAX_LINE else None
        if series is None:
            continue
        labels, value = dict(_LABEL.findall(series[2] or "")), _count(path, number, series[3])
        models.add(labels.get("model_name", ""))
        if series[1] == "drafts":
            drafts += value
        else:
            accepted[_position(path, number, labels.get("position", ""))] += value
    if len(models) > 1:
        raise FormatError(path, "model_name", f"expected the counters of one model. Got {len(models)}: keep one's.")
    if not drafts or sorted(accepted) != list(range(len(accepted))) or not accepted:
        raise FormatError(
            path,
            "content",
            "expected vllm:spec_decode_num_drafts above 0, and vllm:spec_decode_num_accepted_tokens_per_pos for every "
            f"position from 0 on. Got {drafts:g} drafts and {len(accepted)} positions: has it drafted yet?",
        )
    return drafts, [accepted[position] for position in sorted(accepted)]


def read_log(path: Path | str, text: str) -> list[float]:
    """Return the rates of the last line that has them; raises FormatError where none has."""
    last = text.rfind(LOG_MARK)
    while last >= 0:
        if found := _LOG_LINE.match(text, last):
            return [float(rate) for rate in found[1].split(",")]
        last = text.rfind(LOG_MARK, 0, last)
    raise FormatError(path, "content", f"expected numbers with commas between after {LOG_MARK!r}. Got none.")


def _count(path: Path | str, number: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e18:
        raise FormatError(path, f"line {number}", f"expected a count of at least 0. Got {text!r:.60}.")
    return value


def _position(path: Path | str, number: int, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) < MAX_POSITIONS):
        raise FormatError(path, f"line {number}", f"position: expected a whole number from 0. Got {text!r:.60}.")
    return int(text)
