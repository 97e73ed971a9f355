"""The page's section on batches."""

from dataclasses import replace
from typing import Any

import pytest

from tests.cli.invented import FOUR_CONDITIONS, invented
from tests.support.pages import BATCHES, DIVERGENCE, HEADING, Page, batch_row, bench_of, planned
from treeopt.records.results import NO_PREDICTION, BatchBench, BatchSize
from treeopt.report.html.answer import answer
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.page import page
from treeopt.report.html.page_warnings import page_warnings
from treeopt.report.html.sections import sections
from treeopt.trees import level_widths


def contents_of(bench: Any, **others: Any) -> Contents:
    return Contents(benches=(LabelledBench("b.json", bench, HEADING),), **others)


def sentences_of(bench: BatchBench) -> tuple[str, ...]:
    (section,) = sections(contents_of(bench))
    return section.sentences


def test_table_contains_every_number() -> None:
    header, *rows = Page(page(contents_of(BATCHES))).file("batch-0.csv")
    table = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(row["batch_size"], row["tree"], row["chosen"]) for row in table] == [
        ("1", "plain decoding", "False"),
        ("1", "tree of 5 nodes, depth 2", "True"),
        ("1", "chain of 3 draft tokens", "False"),
        ("6", "plain decoding", "True"),
        ("6", "chain of 3 draft tokens", "False"),
        ("6", "chain of 2 draft tokens", "False"),
    ]
    expected = {
        "measured tokens_per_s": "1680",
        "predicted tokens_per_step": "2.4",
        "predicted step_s": "0.008658",
        "measured speedup": "1.05",
        "predicted speedup": "1.0395",
        "predicted at_pace speedup": "1.03",
        "measured overhead": "0.083",
        "measured outputs": "16",
        "measured divergences": "1",
    }
    assert {name: table[4][name] for name in expected} == expected
    assert {table[5][name] for name in header if name.startswith("predicted")} == {""}


def test_sentences_on_gap_overhead_and_outputs() -> None:
    assert sentences_of(BATCHES) == (
        "Batch size 1: the choice, tree of 5 nodes, depth 2, is the fastest measured.",
        "Batch size 6: chain of 3 draft tokens is 5.0 % faster than the choice, plain decoding. Rounds differ by up to 4 %.",
        "1 of 96 outputs diverged from decoding alone, each at a near-tie of the top logits; all others are identical, token by token.",
        "5 to 8 % of a step's time is host overhead.",
    )
    one = BatchSize(batch_size=1, rows=BATCHES.sizes[0].rows[1:2])
    assert sentences_of(replace(BATCHES, sizes=(one,)))[-1] == "8 % of a step's time is host overhead."
    twice = Contents(benches=(LabelledBench("a.json", BATCHES, HEADING), LabelledBench("c.json", BATCHES, HEADING)))
    (section,) = sections(twice)
    first = "c.json: Batch size 1: the choice, tree of 5 nodes, depth 2, is the fastest measured."
    assert first in section.sentences
    assert [figure.name for figure in section.figures] == ["batch-0", "batch-0-1", "batch-1", "batch-1-1"]


def test_diverging_outputs_and_missing_predictions_are_warnings() -> None:
    row = batch_row(
        level_widths([2]),
        500.0,
        4,
        divergences=(DIVERGENCE, replace(DIVERGENCE, near_tie=True)),
        predicted=NO_PREDICTION,
    )
    bad = replace(BATCHES, sizes=(BatchSize(batch_size=4, rows=(row,)),))
    warnings = page_warnings(contents_of(bad))
    assert (
        "b.json: 1 output DIFFERS from decoding alone, and not at a near-tie. Report it with the --output file."
        in warnings
    )
    assert any("no prediction for batch sizes 4" in warning for warning in warnings)
    sampled = page_warnings(contents_of(replace(bad, temperature=0.7)))
    assert not any("DIFFER" in warning for warning in sampled)
    good = page_warnings(contents_of(BATCHES))
    assert not any("DIFFER" in warning or "no prediction" in warning for warning in good)


@pytest.mark.parametrize(("batch_size", "measured"), [(1, 1.5), (16, 1.4)])
def test_answer_is_for_the_planned_batch_size(batch_size: int, measured: float) -> None:
    found = planned(invented(conditions=FOUR_CONDITIONS), batch_size=batch_size, max_nodes=8)
    tree, rule = found.plan.choice.tree, found.plan.rule
    assert tree.nodes > 1
    one, sixteen = (
        BatchSize(batch_size=size, rows=(batch_row(tree, 100.0, size, speedup=speedup),))
        for size, speedup in ((1, 1.5), (16, 1.4))
    )
    bench = replace(BATCHES, rule=rule, temperature=found.plan.temperature, sizes=(one, sixteen))
    for other, expected in (
        (bench, measured),
        (replace(bench, sizes=(sixteen if batch_size == 1 else one,)), None),
        (replace(bench, temperature=0.9), None),
        (replace(bench, rule="other"), None),
        (bench_of(found, 1.9), 1.9 if batch_size == 1 else None),  # decodes one sequence at a time
    ):
        result = answer(contents_of(other, planned=found))
        assert result is not None
        assert result.measured == expected
