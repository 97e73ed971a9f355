"""What the page shows of streams that change: every way text by text, the change, and what re-calibration did."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.pages import STEADY, STREAM, STREAMS, Page, planned, timed
from treeopt.records.drift import DriftStreams, TreeChange
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.page import page
from treeopt.report.html.shapes import Figure
from treeopt.report.html.streams import MOST_POINTS, figure, in_words, tables


def seen(*rows, **others) -> Page:
    return Page(page(Contents(benches=(LabelledBench("d.json", DriftStreams(streams=rows)),), **others)))


def line(drawn: Figure, colour: str) -> list[tuple[float, float]]:
    """Return the places of the line of a colour."""
    (path,) = [
        dict(each.attributes)["d"] for each in drawn.shapes if dict(each.attributes)["class"] == f"line {colour}"
    ]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_every_way_is_a_line_of_the_speed_of_its_texts() -> None:
    drawn = figure("d", STREAM)
    lines = {
        way: line(drawn, colour)
        for way, colour in (("fixed", "plain"), ("adapted", "tree"), ("learning", "s3"), ("best", "chain"))
    }
    bottom = next(
        float(dict(each.attributes)["y"]) - 4
        for each in drawn.shapes
        if each.text == "0" and "end" in dict(each.attributes)["class"]
    )
    pixels = (bottom - lines["fixed"][0][1]) / 1000  # the first texts have 1000 tokens per second
    for way, rates in (
        ("fixed", (1000, 250, 250)),
        ("adapted", (1000, 1000 / 3, 500)),
        ("learning", (1000, 400, 625)),
        ("best", (1000, 500, 500)),
    ):
        assert [(bottom - y) / pixels for _, y in lines[way]] == [pytest.approx(rate, abs=4) for rate in rates]
    gaps = [second[0] - first[0] for first, second in pairwise(lines["fixed"])]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.2)
    said = [each.title for each in drawn.shapes]
    assert "text 2, re-calibrated: 500 tokens per second" in said


def test_the_change_and_what_re_calibration_did_are_marked_where_they_were() -> None:
    drawn = figure("d", STREAM)
    first = line(drawn, "plain")[0][0]  # the end of text 0, where text 1 begins
    ((change, *_),) = [line(drawn, "ink dashed")]
    assert change[0] == pytest.approx(first, abs=0.2)
    (mark,) = [each for each in drawn.shapes if dict(each.attributes)["class"].startswith("mark ")]
    assert float(re.findall(r"M([\d.]+)", dict(mark.attributes)["d"])[0]) == pytest.approx(first, abs=0.2)
    assert mark.title == (
        "text 1: chain of 8 nodes → tree of 4 nodes: acceptance fell; tree of 4 nodes → plain decoding: a slower machine"
    )
    assert [each.text for each in drawn.legend] == [
        *("plan made before", "re-calibrated", "learning", "plan made behind", "the change"),
        "re-calibration changed the tree",
    ]
    steady = figure("d", STEADY)
    assert [each.text for each in steady.legend] == ["plan made before", "re-calibrated", "plan made behind"]


def test_long_streams_have_several_texts_to_the_point() -> None:
    texts = 10 * MOST_POINTS + 1
    seconds = [0.1 if place % 2 else 0.3 for place in range(texts)]
    row = replace(
        STREAM,
        **{way: timed(*seconds) for way in ("fixed", "adapted", "best")},
        learning=None,
        changes=tuple(TreeChange(text=place, why="w", before="a", after="b") for place in range(texts)),
    )
    drawn = figure("d", row)
    dots = [each for each in drawn.shapes if each.tag == "circle" and "made before" in each.title]
    assert len(dots) == -(-texts // 11) <= MOST_POINTS
    assert "A point is of 11 texts." in drawn.caption
    assert (
        dots[0].title
        == f"11 texts up to 1100 tokens, plan made before: {1100 / (6 * 0.3 + 5 * 0.1):.0f} tokens per second"
    )
    assert len([each for each in drawn.shapes if dict(each.attributes)["class"].startswith("mark ")]) == 100
    assert len(tables("d", "d", [row])[-1].rows) == 3 * texts


def test_the_tables_have_gains_changes_and_texts() -> None:
    gains, changes, texts = tables("d", "d.json", STREAMS.streams)
    rows = [dict(zip(gains.header, row, strict=True)) for row in gains.rows]
    assert [rows[0][name] for name in gains.header if name.endswith("behind") and "tokens/s" in name] == [
        *(pytest.approx(each) for each in (250.0, 400.0, 200 / 0.41, 500.0)),
    ]
    assert (rows[0]["gain, %"], rows[0]["re-calibrated gain, %"], rows[0]["share of gain"]) == (
        *(pytest.approx(100.0), pytest.approx(60.0), 0.6),
    )
    assert (rows[0]["change at text"], rows[0]["texts"]) == (1, "identical")
    assert (rows[1]["change at text"], rows[1]["share of gain"], rows[1]["texts"]) == (
        None,
        None,
        "sampled, not compared",
    )
    assert changes.rows[1] == ("code to prose", 1, "tree of 4 nodes", "plain decoding", "a slower machine")
    assert len(texts.rows) == 4 * 3 + 3 * 3
    assert texts.rows[5] == ("code to prose", "re-calibrated", 2, 100, 0.2)
    assert [each.name for each in tables("d", "d", [STEADY])] == ["d", "d-texts"]


def test_it_says_what_is_gained_and_why_nothing_learns() -> None:
    assert in_words(STREAM) == (
        "code to prose: behind the change the best plan gains 100.0 %, re-calibration 60.0 %, 0.60 of it; 2 changes of the "
        "tree, texts identical."
    )
    assert in_words(STEADY).startswith("steady: with nothing that changes the best plan gains 0.0 %, re-calibration ")
    said = seen(STREAM, STEADY).texts("bdi")
    assert in_words(STREAM) in said
    assert "No draft learns: the draft is quantized" in said


def test_streams_have_a_part_of_the_page_with_files() -> None:
    found = seen(STREAM, STEADY)
    assert found.attributes("section", "id") == ["streams"]
    assert {"drift-0-0", "drift-0-1"} <= set(found.attributes("figure", "id"))
    assert found.attributes("a", "download") == ["drift-0.csv", "drift-0-changes.csv", "drift-0-texts.csv"]
    assert found.file("drift-0-changes.csv")[1] == [
        "code to prose",
        "1",
        "chain of 8 nodes",
        "tree of 4 nodes",
        "acceptance fell",
    ]


def test_texts_that_differ_are_warned_of() -> None:
    said = seen(STREAM, replace(STREAM, identical=False)).texts("bdi")
    assert (
        "D.json: the texts of 1 streams DIFFER between ways of decoding, not at near-ties. Report it, with --output."
        in said
    )
    assert not any("DIFFER" in each for each in seen(STREAM, STEADY).texts("bdi"))


def test_streams_race_plans_of_their_own_and_not_the_pages() -> None:
    said = seen(STREAM, planned=planned()).texts("bdi")
    assert any("Race the choice" in each for each in said)
