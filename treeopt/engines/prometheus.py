"""Samples of Prometheus text, and speculation counters in it or in JSON, for probes of servers and importers of files.

vLLM and llama.cpp use the same names, with or without the ending `_total`. vLLM labels them by engine; under Ray its
names begin with `ray_vllm_`:

    vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
    vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
    vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 140.0
    vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 80.0
    llamacpp:spec_decode_num_drafts_total 100

TYPE and HELP lines are not required, because a Prometheus that federates others omits them. Prometheus' own API returns
the same counters as JSON.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from treeopt.errors import InvalidValueError

DRAFTS, DRAFTED, ACCEPTED, BY_POSITION = "drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"
NAME = re.compile(
    rf"(?:ray_)?([A-Za-z][A-Za-z0-9]*)[:_]spec_decode_num_({DRAFTS}|{DRAFTED}|{ACCEPTED}|{BY_POSITION})(?:_total)?"
)
MARK = re.compile(r"^[ \t]{0,9}(?:ray_)?[A-Za-z][A-Za-z0-9]{0,40}[:_]spec_decode_num_", re.MULTILINE)
MAX_POSITIONS = 10_000
MAX_LINE = 4000
"""Characters of a counter's line."""


class Sample(NamedTuple):
    """A line of Prometheus text."""

    place: str
    """Its place in the text, such as `line 3`."""
    name: str
    labels: dict[str, str]
    value: float


class Counter(NamedTuple):
    place: str
    """Its place in the file."""
    program: str
    """Prefix of the name, such as `vllm`."""
    name: str
    """`DRAFTS`, `DRAFTED`, `ACCEPTED` or `BY_POSITION`."""
    position: int | None
    """Draft position from 0; None for totals."""
    labels: tuple[tuple[str, str], ...]
    """All other labels, sorted by name; all counters of one engine share them."""
    value: float


def read_counters(lines: Iterable[str]) -> Iterator[Counter]:
    """Yield the speculation counters of Prometheus text; raises InvalidValueError as `read_samples` does.

    >>> next(read_counters(['vllm:spec_decode_num_drafts{engine="0"} 7'])).value
    7.0
    """
    for sample in read_samples(lines, MARK):
        if counter := _build_counter(*sample):
            yield counter


def read_samples(lines: Iterable[str], mark: re.Pattern[str]) -> Iterator[Sample]:
    """Yield the samples of Prometheus text in lines that begin with `mark`.

    Raises InvalidValueError for a broken one, whose place is the error's field.
    """
    from prometheus_client.parser import text_string_to_metric_families

    for number, line in enumerate(lines, start=1):
        if not mark.match(line):
            continue
        place = f"line {number}"
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"more than {MAX_LINE} characters")
            (family,) = text_string_to_metric_families(line)
            sample = family.samples[0]
            value = float(sample.value)
        except (ValueError, IndexError) as error:
            reason = f"expected a name, labels and a value of Prometheus ({error!s:.60}). Is the line complete?"
            raise InvalidValueError(" ".join(reason.split()), field=place) from None
        yield Sample(place, sample.name, dict(sample.labels), value)


def is_api_response(content: object) -> bool:
    """Return whether parsed JSON is a response of Prometheus' `/api/v1/query` with speculation counters."""
    return any(NAME.fullmatch(str(metric.get("__name__", ""))) for metric, _ in _read_series(content))


def read_api_response(content: object) -> Iterator[Counter]:
    """Yield the counters of a response of `/api/v1/query`, or the last values of `/api/v1/query_range`."""
    for index, (metric, value) in enumerate(_read_series(content)):
        place = f"data.result[{index}]"
        name = str(metric.get("__name__", ""))
        labels = {label: str(text) for label, text in metric.items() if label != "__name__"}
        try:
            counter = _build_counter(place, name, labels, float(value))
        except (TypeError, ValueError):
            raise InvalidValueError(
                f"expected a time and a number as text. Got {value!r:.40}: save the response again.", field=place
            ) from None
        if counter:
            yield counter


def _read_series(content: object) -> list[tuple[dict[str, Any], Any]]:
    """Return the labels and the last value of every series in a response; empty for other content."""
    data = content.get("data") if isinstance(content, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    series = []
    for item in result if isinstance(result, list) else []:
        if isinstance(item, dict) and isinstance(metric := item.get("metric"), dict):
            values = item.get("values")
            sample = values[-1] if isinstance(values, list) and values else item.get("value")
            series.append((metric, sample[1] if isinstance(sample, list) and len(sample) == 2 else None))
    return series


def _build_counter(place: str, name: str, labels: dict[str, str], value: float) -> Counter | None:
    """Return a counter, None for another name; raises InvalidValueError for a position that is not a whole number."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    position = None
    if match[2] == BY_POSITION:
        label = labels.pop("position", "")
        if not (label.isascii() and label.isdecimal() and len(label) < 9 and int(label) < MAX_POSITIONS):
            raise InvalidValueError(f"position: expected a whole number from 0. Got {label!r:.60}.", field=place)
        position = int(label)
    return Counter(place, match[1], match[2], position, tuple(sorted(labels.items())), value)
