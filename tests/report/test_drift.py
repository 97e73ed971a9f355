"""The table, the JSON and the picture of streams that change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pages import HEADING, STREAM, timed
from tests.support.pictures import drawn
from treeopt.records.drift import TreeChange
from treeopt.report.drift_bench import drift_json, drift_table
from treeopt.report.drift_figure import _draw, save_drift_figure

ROW = replace(
    STREAM,
    learning=None,
    learning_missing="nothing learns here",
    changes=(TreeChange(text=1, why="acceptance", before="chain of 8 nodes", after="plain decoding"),),
)


def test_the_json_has_tokens_per_second_of_every_way_and_what_is_missing():
    (found,) = json.loads(drift_json(HEADING, [ROW]))["streams"]
    assert found["name"] == "code to prose"
    assert [found[way] for way in ("fixed", "adapted", "best")] == [333.33, 500.0, 600.0]
    assert found["learning"] is None
    assert found["learning_missing"] == "nothing learns here"
    assert [found["behind"][way] for way in ("fixed", "adapted", "best")] == [250.0, 400.0, 500.0]
    assert found["gain"] == pytest.approx(1.0)
    assert found["adapted_gain"] == pytest.approx(0.6)
    assert found["share_of_gain"] == pytest.approx(0.6)
    assert found["texts"]["adapted"] == [[100, 0.1], [100, 0.3], [100, 0.2]]
    assert found["changes"] == [{"text": 1, "why": "acceptance", "from": "chain of 8 nodes", "to": "plain decoding"}]


def test_where_there_is_nothing_to_gain_no_share_is_told():
    row = replace(ROW, best=ROW.fixed)
    (found,) = json.loads(drift_json(HEADING, [row]))["streams"]
    assert found["share_of_gain"] is None
    assert drift_table([row]).splitlines()[3].split()[-2] == "-"


def test_the_table_tells_speeds_gains_changes_and_texts_that_differ():
    text = drift_table([ROW, replace(ROW, identical=False, learning=timed(0.1, 0.1, 0.1), learning_missing=None)])
    first, second = (line for line in text.splitlines() if line.startswith("code to prose"))
    assert first.split()[3:] == ["250", "400", "-", "500", "100.0", "%", "60.0", "%", "0.60", "identical"]
    assert second.split()[3:7] == ["250", "400", "1000", "500"]
    assert second.endswith("DIFFER")
    assert "text 1: chain of 8 nodes -> plain decoding (acceptance)" in text
    assert "\n\nlearning: nothing learns here\nthe texts of 1 streams DIFFER" in text
    assert drift_table([ROW]).endswith("\n\nlearning: nothing learns here")


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_any_number_of_streams_fits_into_the_picture(tmp_path: Path, streams: int):
    rows = [replace(ROW, name=f"stream {number}") for number in range(streams)]
    found = drawn(lambda at: save_drift_figure(rows, at, title="pair on machine"), tmp_path / "drift.png")
    for text in ("stream 0", "plan made before", "re-calibrated", "plan made behind", "pair on machine"):
        assert text in found.words
    assert found.cut_off() == []
    assert found.overlapping() == []


def test_panels_hold_the_speed_of_every_text():
    (axes,) = _draw([ROW], title="t", subtitle="").axes
    lines = [line.get_xydata().tolist() for line in axes.lines]
    for rates in ([1000, 250, 250], [1000, 1000 / 3, 500], [1000, 500, 500]):
        assert any(
            line == [pytest.approx([100.0 * (place + 1), rate]) for place, rate in enumerate(rates)] for line in lines
        )
