"""The page's section on batches."""

from dataclasses import replace
from typing import Any

from tests.cli.invented import FOUR_CONDITIONS, TABLE, invented
from tests.support.pages import BATCHES, DIVERGENCE, HEADING, UNKNOWN, Page, bench_of, planned, way
from treeopt.records.results import BatchBench, BatchSize
from treeopt.report.html.answer import answer
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.page import page
from treeopt.trees import level_widths


def of(bench: Any, **others: Any) -> Contents:
    return Contents(benches=(LabelledBench("b.json", bench, HEADING),), **others)


def seen(bench: BatchBench) -> Page:
    return Page(page(of(bench)))


def test_batch_table_contains_every_number() -> None:
    header, *rows = seen(BATCHES).file("batch-0.csv")
    found = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(row["batch_size"], row["tree"], row["chosen"]) for row in found] == [
        ("1", "plain decoding", "False"),
        ("1", "tree of 5 nodes, depth 2", "True"),
        ("1", "chain of 3 draft tokens", "False"),
        ("6", "plain decoding", "True"),
        ("6", "chain of 3 draft tokens", "False"),
        ("6", "chain of 2 draft tokens", "False"),
    ]
    expected = {
        "measured tokens_per_s": "1680",
        "predicted_tokens_per_s": "1663.2",
        "measured speedup": "1.05",
        "predicted_speedup": "1.0395",
        "predicted_at_pace speedup": "1.03",
        "measured overhead": "0.083",
        "measured texts": "16",
        "measured divergences": "1",
    }
    assert {name: found[4][name] for name in expected} == expected
    assert {found[5][name] for name in header if name.startswith("predicted")} == {""}


def test_sentences_on_gap_overhead_and_outputs() -> None:
    found = seen(BATCHES)
    said = found.texts("bdi")
    for sentence in (
        "Batch size 1: the choice, tree of 5 nodes, depth 2, is the fastest measured.",
        "Batch size 6: chain of 3 draft tokens is 5.0 % faster than the choice, plain decoding. Rounds differ by up to 4 %.",
        "1 of 96 outputs diverged from decoding alone, each at a near-tie of the top logits; all others are identical, token by token.",
        "5 to 8 % of a step's time is host overhead.",
    ):
        assert sentence in said, sentence
    one = BatchSize(batch_size=1, rows=BATCHES.sizes[0].rows[1:2])
    assert "8 % of a step's time is host overhead." in seen(replace(BATCHES, sizes=(one,))).texts("bdi")
    assert "batches" in found.attributes("section", "id")
    twice = Page(
        page(Contents(benches=(LabelledBench("a.json", BATCHES, HEADING), LabelledBench("c.json", BATCHES, HEADING))))
    )
    assert "c.json: Batch size 1: the choice, tree of 5 nodes, depth 2, is the fastest measured." in twice.texts("bdi")
    assert {"batch-0", "batch-0-1", "batch-1", "batch-1-1"} <= set(twice.attributes("figure", "id"))


def test_warnings_of_diverging_outputs_and_missing_predictions() -> None:
    row = way(level_widths([2]), 500.0, 4, parted=(DIVERGENCE, replace(DIVERGENCE, near_tie=True)), **UNKNOWN)
    bad = replace(BATCHES, sizes=(BatchSize(batch_size=4, rows=(row,)),))
    said = seen(bad).texts("bdi")
    assert (
        "b.json: 1 output DIFFERS from decoding alone, and not at a near-tie. Report it with the --output file." in said
    )
    assert any("no prediction for batch sizes 4" in each for each in said)
    assert not any("DIFFER" in each for each in seen(replace(bad, temperature=0.7)).texts("bdi"))
    assert not any("DIFFER" in each or "no prediction" in each for each in seen(BATCHES).texts("bdi"))


def test_answer_is_for_the_planned_batch_size() -> None:
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
            told = answer(of(each, planned=found))
            assert told is not None
            assert told.measured == expected


def test_answer_uses_the_batch_bench_of_the_choice() -> None:
    found = planned()
    assert any("Measure the choice" in each for each in Page(page(Contents(planned=found))).texts("bdi"))
    assert not any("Measure the choice" in each for each in Page(page(of(BATCHES, planned=found))).texts("bdi"))
