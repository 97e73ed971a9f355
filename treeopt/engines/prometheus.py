"""Counters of speculation in Prometheus text, for whoever reads them: a probe of a server, or the importer of a file.

vLLM and llama.cpp count under the same names, with or without the ending `_total`, vLLM once per engine:

    vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
    vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
    vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 140.0
    vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 80.0
    llamacpp:spec_decode_num_drafts_total 100

Lines of TYPE and HELP are not needed: a Prometheus that federates others passes on none. What Prometheus' own API answers
to a query is the same in JSON.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from treeopt.records.engine import parse_position

DRAFTS, DRAFTED, ACCEPTED, BY_POSITION = "drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"
NAME = re.compile(
    rf"([A-Za-z][A-Za-z0-9]*)[:_]spec_decode_num_({DRAFTS}|{DRAFTED}|{ACCEPTED}|{BY_POSITION})(?:_total)?"
)
MARK = re.compile(r"^[ \t]{0,9}[A-Za-z][A-Za-z0-9]{0,40}[:_]spec_decode_num_", re.MULTILINE)
MAX_LINE = 4000
"""Characters of a counter's line."""


class Counter(NamedTuple):
    """One counter."""

    place: str
    """Where it stands, such as `line 3`."""
    program: str
    """Its prefix, such as `vllm`."""
    name: str
    """`DRAFTS`, `DRAFTED`, `ACCEPTED` or `BY_POSITION`."""
    position: int | None
    """Of `BY_POSITION`, from 0."""
    labels: tuple[tuple[str, str], ...]
    """All others, in alphabetical order: an engine has the same on all its counters."""
    value: float


class CounterError(ValueError):
    """A line that is no counter; `place` is where it stands."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place


def read_counters(lines: Iterable[str]) -> Iterator[Counter]:
    """Yield the counters of Prometheus text; raises CounterError for a line of theirs that is torn.

    >>> next(read_counters(['vllm:spec_decode_num_drafts{engine="0"} 7'])).value
    7.0
    """
    from prometheus_client.parser import text_string_to_metric_families

    for number, line in enumerate(lines, start=1):
        if not MARK.match(line):
            continue
        place = f"line {number}"
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"more than {MAX_LINE} characters")
            (family,) = text_string_to_metric_families(line)
            sample = family.samples[0]
        except (ValueError, IndexError) as error:
            reason = (
                f"expected a counter of Prometheus, a name, labels and a value ({error!s:.60}). Is the line complete?"
            )
            raise CounterError(place, " ".join(reason.split())) from None
        if counter := _counter(place, sample.name, dict(sample.labels), float(sample.value)):
            yield counter


def is_api_answer(content: object) -> bool:
    """Return whether parsed JSON is what Prometheus' `/api/v1/query` answers about such counters."""
    return any(NAME.fullmatch(str(metric.get("__name__", ""))) for metric, _ in _series(content))


def read_api_answer(content: object) -> Iterator[Counter]:
    """Yield the counters of an answer of `/api/v1/query` or `/api/v1/query_range`, of the latter their last values."""
    for number, (metric, value) in enumerate(_series(content)):
        place = f"data.result[{number}]"
        name, labels = (
            str(metric.get("__name__", "")),
            {key: str(each) for key, each in metric.items() if key != "__name__"},
        )
        try:
            counter = _counter(place, name, labels, float(value))
        except (TypeError, ValueError):
            raise CounterError(
                place, f"expected a time and a number as text. Got {value!r:.40}: save the answer again."
            ) from None
        if counter:
            yield counter


def _series(content: object) -> list[tuple[dict[str, Any], Any]]:
    """Return the labels and the last value of every series in an answer; none of anything else."""
    data = content.get("data") if isinstance(content, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    series = []
    for each in result if isinstance(result, list) else []:
        if isinstance(each, dict) and isinstance(metric := each.get("metric"), dict):
            values = each.get("values")
            pair = values[-1] if isinstance(values, list) and values else each.get("value")
            series.append((metric, pair[1] if isinstance(pair, list) and len(pair) == 2 else None))
    return series


def _counter(place: str, name: str, labels: dict[str, str], value: float) -> Counter | None:
    """Return a counter, None for another name; raises CounterError for a position that no draft has."""
    parts = NAME.fullmatch(name)
    if parts is None:
        return None
    position = None
    if parts[2] == BY_POSITION:
        label = labels.pop("position", "")
        try:
            position = parse_position(label)
        except ValueError:
            raise CounterError(place, f"position: expected a whole number from 0. Got {label!r:.60}.") from None
    return Counter(place, parts[1], parts[2], position, tuple(sorted(labels.items())), value)
