"""What the page shows of several texts at a time: every way where it was measured, and what follows from it."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.invented import FOUR_CONDITIONS, TABLE, invented
from tests.support.pages import BATCHES, DIVERGENCE, HEADING, UNKNOWN, Page, bench_of, planned, way
from treeopt.records.batch_bench import BatchBench, BatchSize
from treeopt.report.html.batches import figures, overhead_in_words, tables
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.page import page
from treeopt.report.html.shapes import Figure
from treeopt.report.html.verdict import verdict
from treeopt.trees import chain, level_widths


def of(bench: Any, **others: Any) -> Contents:
    return Contents(benches=(LabelledBench("b.json", bench, HEADING),), **others)


def seen(bench: BatchBench) -> Page:
    return Page(page(of(bench)))


def places(figure: Figure, word: str) -> list[tuple[float, float]]:
    """Return where the dots lie of which something is said."""
    found = [dict(each.attributes) for each in figure.shapes if each.tag == "circle" and word in each.title]
    return [(float(each["cx"]), float(each["cy"])) for each in found]


def test_every_way_lies_at_its_batch_size_and_rate() -> None:
    drawn, _ = figures("b", "b.json", BATCHES)
    ticks = {
        each.text: float(dict(each.attributes)["x" if "middle" in dict(each.attributes)["class"] else "y"])
        for each in drawn.shapes
        if each.tag == "text" and "tick" in dict(each.attributes)["class"]
    }
    assert {"1", "2", "4", "8", "0", "500", "1000", "1500"} == set(ticks)
    ((x, y),) = places(drawn, "1 text, tree of 5 nodes, depth 2: 600 tokens per second, predicted 594")
    pixels = (ticks["1000"] - ticks["0"]) / 1000
    assert x == pytest.approx(ticks["1"], abs=0.1)
    assert y - 4 == pytest.approx(ticks["0"] - 4 + 600 * pixels - 4, abs=0.2)
    ((x, _),) = places(drawn, "6 texts, chain of 4 nodes: 1680 tokens per second, predicted 1663; 1.05 times plain")
    share = (x - ticks["4"]) / (ticks["8"] - ticks["4"])
    assert share == pytest.approx(0.585, abs=0.01)  # log2(6) - 2
    assert len(places(drawn, "")) == 6
    assert (
        len(places(drawn, "6 texts, chain of 3 nodes: 1500 tokens per second; 0.94 times plain; no model runs in 8 %"))
        == 1
    )


def test_choices_are_marked_where_they_were_made() -> None:
    drawn, ways = figures("b", "b.json", BATCHES)
    stars = [each.title for each in drawn.shapes if "star" in dict(each.attributes)["class"]]
    assert [each.partition(":")[0] for each in stars] == [
        "the choice, 1 text, tree of 5 nodes, depth 2",
        "the choice, 6 texts, plain",
    ]
    labels = [each.text for each in ways.shapes if dict(each.attributes)["class"] == "label"]
    assert labels == [
        "★ 1 text: tree of 5 nodes, depth 2",
        "1 text: chain of 4 nodes",
        "★ 6 texts: plain",
        "6 texts: chain of 4 nodes",
        "6 texts: chain of 3 nodes",
    ]
    said = [each.title for each in ways.shapes if each.title]
    assert "★ 1 text: tree of 5 nodes, depth 2: measured 1.50" in said
    assert "★ 1 text: tree of 5 nodes, depth 2: predicted 1.48" in said
    assert not any("chain of 3 nodes: predicted" in each for each in said)
    unchosen = replace(BATCHES.sizes[0], rows=tuple(replace(each, chosen=False) for each in BATCHES.sizes[0].rows))
    drawn, _ = figures("b", "b", replace(BATCHES, sizes=(unchosen,)))
    assert not any("star" in dict(each.attributes)["class"] for each in drawn.shapes)
    assert "star" not in [each.mark for each in drawn.legend]


def test_ways_beyond_the_colours_are_counted_and_no_two_have_one_colour() -> None:
    rows = tuple(way(chain(length), 400.0 + length, 3) for length in range(9))
    drawn, ways = figures("b", "b", replace(BATCHES, sizes=(BatchSize(batch_size=3, rows=rows),)))
    lines = [each for each in drawn.legend if each.mark == "line"]
    assert len({each.colour for each in lines}) == len(lines) == 5
    assert drawn.caption.endswith("Only in the table: 4 ways.")
    assert len([each for each in ways.shapes if dict(each.attributes)["class"] == "label"]) == 8
    by_kind = {each.text: each.colour for each in figures("b", "b", BATCHES)[0].legend}
    assert (by_kind["plain"], by_kind["tree of 5 nodes, depth 2"], by_kind["chain of 4 nodes"]) == (
        "plain",
        "tree",
        "chain",
    )
    assert by_kind["chain of 3 nodes"] not in ("plain", "tree", "chain", "choice")


def test_the_tables_have_every_number() -> None:
    ways, choices = tables("b", "b.json", BATCHES)
    rows = [dict(zip(ways.header, row, strict=True)) for row in ways.rows]
    assert [(row["texts at a time"], row["way"], row["chosen"]) for row in rows] == [
        (1, "plain", ""),
        (1, "tree of 5 nodes, depth 2", "yes"),
        (1, "chain of 4 nodes", ""),
        (6, "plain", "yes"),
        (6, "chain of 4 nodes", ""),
        (6, "chain of 3 nodes", ""),
    ]
    assert [rows[4][name] for name in ways.header[3:]] == [
        *(
            1680.0,
            pytest.approx(1663.2),
            1.05,
            pytest.approx(1.0395),
            1.03,
            2.5,
            2.4,
            10.0,
            11.0,
            0.04,
            0.083,
            0.5,
            16,
            15,
            1,
        )
    ]
    assert [rows[5][name] for name in ways.header if name.startswith("predicted")] == [None] * 5
    assert choices.rows == (
        (1, "tree of 5 nodes, depth 2", "tree of 5 nodes, depth 2", 0.0),
        (6, "plain", "chain of 4 nodes", pytest.approx(0.05)),
    )


def test_it_says_what_choices_leave_host_overhead_and_whether_texts_are_the_same() -> None:
    found = seen(BATCHES)
    said = found.texts("bdi")
    for sentence in (
        "1 text: the choice, tree of 5 nodes, depth 2, is the fastest measured.",
        "6 texts: chain of 4 nodes is 5.0% faster than the choice, plain; rounds lie 4% apart.",
        "1 of 96 texts part from those decoded alone, each at a near-tie of the top logits; all others are the same, token by token.",
        "5 to 8 % of a step's time is host overhead.",
    ):
        assert sentence in said, sentence
    one = BatchSize(batch_size=1, rows=BATCHES.sizes[0].rows[1:2])
    assert overhead_in_words(replace(BATCHES, sizes=(one,))) == "8 % of a step's time is host overhead."
    assert "several-texts" in found.attributes("section", "id")
    assert {"batch-0.csv", "batch-0-choices.csv"} <= set(found.attributes("a", "download"))
    twice = Page(
        page(Contents(benches=(LabelledBench("a.json", BATCHES, HEADING), LabelledBench("c.json", BATCHES, HEADING))))
    )
    assert "c.json: 1 text: the choice, tree of 5 nodes, depth 2, is the fastest measured." in twice.texts("bdi")
    assert {"batch-0", "batch-0-ways", "batch-1", "batch-1-ways"} <= set(twice.attributes("figure", "id"))


def test_texts_that_differ_and_sizes_without_predictions_are_warned_of() -> None:
    row = way(level_widths([2]), 500.0, 4, parted=(DIVERGENCE, replace(DIVERGENCE, near_tie=True)), **UNKNOWN)
    bad = replace(BATCHES, sizes=(BatchSize(batch_size=4, rows=(row,)),))
    said = seen(bad).texts("bdi")
    assert (
        "B.json: 1 texts DIFFER from those decoded alone, not at near-ties. Report it with the --output file." in said
    )
    assert any("nothing is predicted for batch sizes 4" in each for each in said)
    assert not any("DIFFER" in each for each in seen(replace(bad, temperature=0.7)).texts("bdi"))
    assert not any("DIFFER" in each or "nothing is predicted" in each for each in seen(BATCHES).texts("bdi"))


def test_the_verdict_is_of_the_batch_that_was_planned_for() -> None:
    profile = invented(conditions=FOUR_CONDITIONS, tables=[TABLE])
    for texts, measured in ((1, 1.5), (16, 1.4)):
        found = planned(profile, batch_size=texts)
        tree, rule = found.plan.choice.tree, found.plan.rule
        assert tree.nodes > 1
        sizes = tuple(
            BatchSize(batch_size=size, rows=(way(tree, 100.0, size, speedup=speedup),))
            for size, speedup in ((1, 1.5), (16, 1.4))
        )
        bench = replace(BATCHES, rule=rule, temperature=found.plan.temperature, sizes=sizes)
        for each, expected in (
            (bench, measured),
            (replace(bench, sizes=sizes[: 1 if texts == 16 else 0] or sizes[1:]), None),
            (replace(bench, temperature=0.9), None),
            (replace(bench, rule="other"), None),
            (bench_of(found, 1.9), 1.9 if texts == 1 else None),  # decodes one text at a time
        ):
            told = verdict(of(each, planned=found))
            assert told is not None
            assert told.measured == expected


def test_it_is_one_of_the_ways_to_race_a_choice() -> None:
    found = planned()
    assert any("Race the choice" in each for each in Page(page(Contents(planned=found))).texts("bdi"))
    assert not any("Race the choice" in each for each in Page(page(of(BATCHES, planned=found))).texts("bdi"))


def test_a_single_size_that_is_no_power_of_two_still_has_ticks() -> None:
    drawn, _ = figures("b", "b", replace(BATCHES, sizes=BATCHES.sizes[1:]))
    ticks = [each.text for each in drawn.shapes if dict(each.attributes)["class"] == "tick middle"]
    assert ticks == ["4", "8"]
    assert all(
        0 <= float(place) <= drawn.width
        for each in drawn.shapes
        for place in re.findall(r"[MLH]([\d.-]+)", dict(each.attributes).get("d", ""))
    )


def test_what_was_not_predicted_or_raced_somewhere_leaves_the_scale_and_breaks_the_line() -> None:
    first, *others = BATCHES.sizes
    (plain, *trees) = first.rows
    without = replace(first, rows=(replace(plain, predicted_tokens_per_s=None), *trees))
    drawn, _ = figures("b", "b.json", replace(BATCHES, sizes=(without, *others)))
    attributes = [value for each in drawn.shapes for _, value in each.attributes]
    assert {"0", "500", "1000", "1500"} <= {each.text for each in drawn.shapes}
    assert not any("nan" in value for value in attributes)
