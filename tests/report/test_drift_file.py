"""Files of streams that change: read as they were written, and refused where rates are not those of the texts."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.pages import HEADING, STREAM, STREAMS, timed
from treeopt.errors import FormatError
from treeopt.records.drift import DriftStreams
from treeopt.report.bench_file import is_bench, parse_benches
from treeopt.report.drift_bench import drift_json, drift_table


def read(text: str) -> DriftStreams:
    (found,) = parse_benches("d.json", text)
    assert isinstance(found.bench, DriftStreams)
    return found.bench


def test_streams_are_read_as_they_were_written() -> None:
    text = drift_json(HEADING, STREAMS.streams)
    assert is_bench(text.encode())
    assert read(text) == STREAMS
    assert drift_table(read(text).streams) == drift_table(STREAMS.streams)


def test_seconds_that_were_rounded_are_those_of_the_rates() -> None:
    """A file has six digits of a second, and texts may be as short as a millisecond."""
    short = replace(STREAM, **{way: timed(0.0011114, 0.0022226, 0.0012341) for way in ("fixed", "adapted", "best")})
    (found,) = read(drift_json(HEADING, [short])).streams
    assert found.fixed.texts[0].seconds == 0.001111
    assert found.gain == pytest.approx(short.gain, abs=1e-3)


def test_what_contradicts_itself_is_refused() -> None:
    texts = json.loads(drift_json(HEADING, [STREAM]))["streams"][0]["texts"]
    for change, reason in (
        ({"fixed": 400}, r"streams\[0\].fixed: expected about 333.333"),
        ({"best": None}, r"streams\[0\].best: expected a number"),
        ({"learning": None}, r"streams\[0\].learning: expected a number"),
        ({"behind": {}}, r"streams\[0\].behind.fixed: is missing"),
        ({"gain": 0.5}, "gain: expected about 1, which follows"),
        ({"adapted_gain": 1.0}, "adapted_gain: expected about 0.6"),
        ({"share_of_gain": "all"}, "share_of_gain: expected a number"),
        ({"drift_text": 3}, "drift_text: expected the number of a text, below 3"),
        ({"identical": 1}, "identical: expected true or false"),
        ({"changes": {}}, "changes: expected a list"),
        (
            {"changes": [{"text": 3, "why": "", "from": "", "to": ""}]},
            r"changes\[0\].text: expected the number of a text",
        ),
        ({"changes": [{"text": 0, "why": "\u001b[2J", "from": "", "to": ""}]}, r"changes\[0\].why: expected printable"),
        ({"texts": {key: value for key, value in texts.items() if key != "best"}}, "texts.best: is missing"),
        ({"texts": texts | {"worst": []}}, "texts.worst: unknown field"),
        ({"texts": texts | {"best": texts["best"][:2]}}, "texts: expected as many texts of every way"),
        ({"texts": texts | {"best": [[100, 0.0]] * 3}}, "texts.best: expected at least one pair"),
        ({"texts": texts | {"best": [[100]] * 3}}, "texts.best: expected at least one pair"),
        ({"texts": texts | {"best": []}}, "texts.best: expected at least one pair"),
        ({"more": 1}, "more: unknown field"),
        ({"name": 3}, "name: expected text"),
    ):
        content: Any = json.loads(drift_json(HEADING, [STREAM]))
        content["streams"][0] |= change
        with pytest.raises(FormatError, match=reason) as refused:
            read(json.dumps(content))
        assert "\n" not in str(refused.value)
