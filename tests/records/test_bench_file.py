"""Bench files: round trips and invalid content."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invented import invented
from tests.support.pages import (
    BATCHES,
    DIVERGENCE,
    ENGINE,
    GRID,
    HEADING,
    MEASURED,
    METHODS,
    PACE,
    PACED,
    bench_of,
    planned,
)
from treeopt.errors import FormatError
from treeopt.files.serialization import serialize_record
from treeopt.records.bench_file import Bench, BenchFile, is_bench, parse_benches
from treeopt.records.results import TreePrediction

TREE = bench_of(planned(), 1.5)
UNKNOWN = TreePrediction(tokens_per_step=None, step_s=None, speedup=None)
BENCHES: tuple[Bench, ...] = (
    TREE,
    replace(TREE, drafter="medusa", predicted=TreePrediction(tokens_per_step=2.0, step_s=None, speedup=1.4)),
    replace(TREE, predicted=replace(TREE.predicted, at_pace=PACED), measured=replace(MEASURED, pace=PACE)),
    replace(TREE, predicted=UNKNOWN, measured=replace(MEASURED, divergences=(DIVERGENCE,))),
    replace(TREE, temperature=0.6, measured=replace(MEASURED, divergences=None)),
    GRID,
    replace(GRID, plain_is_fastest=True),
    METHODS,
    ENGINE,
    replace(ENGINE, losslessness=None),
    BATCHES,
    replace(BATCHES, temperature=0.7),
)


def text_of(bench: Bench) -> str:
    return BenchFile(HEADING, bench).text


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: type(bench).__name__)
def test_bench_round_trip(bench: Bench) -> None:
    text = text_of(bench)
    assert is_bench(text.encode())
    (result,) = parse_benches("b.json", text)
    assert result == BenchFile(HEADING, bench)
    assert result.text == text


def test_list_of_benches_keeps_order() -> None:
    text = f"[{text_of(ENGINE)}, {text_of(TREE)}]"
    assert is_bench(text.encode())
    assert [item.bench for item in parse_benches("b.json", text)] == [ENGINE, TREE]


def test_file_begins_with_heading() -> None:
    content = json.loads(text_of(TREE))
    profile = invented()
    assert list(content)[:5] == ["tool", "created", "machine", "pair", "bench"]
    assert content["pair"] == serialize_record(profile.pair)
    assert content["machine"] == serialize_record(profile.machine)
    assert content["bench"] == "tree"


def test_is_bench_recognises_benches() -> None:
    for data in (
        b'{"format": "treeopt-tree"}',
        b"format: treeopt-profile",
        b"PK\x03\x04",
        b"",
        b'{"tool": "x"}',
        b"[1]",
    ):
        assert not is_bench(data)


@pytest.mark.parametrize(
    ("bench", "where", "change", "reason"),
    [
        (TREE, (), {"nodes": 0}, "nodes: expected a whole number of at least 1"),
        (TREE, (), {"rule": "a\u001b[31m"}, "rule: expected printable text"),
        (TREE, ("measured",), {"speedup": "2"}, "measured.speedup: expected a number"),
        (
            TREE,
            ("measured",),
            {"speedup_interval": [2.0, 1.0]},
            "measured.speedup_interval: expected two increasing numbers",
        ),
        (TREE, ("predicted",), {"interval": [2.0, 1.0]}, "predicted.interval: expected two increasing numbers"),
        (TREE, ("measured",), {"divergences": [{"prompt": 1}]}, r"divergences\[0\].position: is missing"),
        (TREE, (), {"more": 1}, "more: unknown field"),
        (TREE, (), {"machine": {"device": "cpu"}}, "machine.processor: is missing"),
        (TREE, (), {"bench": "drift"}, "bench: expected one of tree, grid"),
        (GRID, (), {"trees": []}, "trees: expected a list of at least one"),
        (METHODS, ("not_run", 0), {"temperature": -1}, r"not_run\[0\].temperature"),
        (ENGINE, ("rows", 2), {"chosen": False}, "rows: expected one that is chosen"),
        (ENGINE, ("rows", 3, "divergences", 0), {"verdict": "fine"}, "verdict: expected one of near-tie"),
        (BATCHES, ("sizes", 1), {"batch_size": 1}, "sizes: expected increasing batch sizes"),
        (BATCHES, ("sizes", 1, "rows", 1), {"chosen": True}, r"sizes\[1\].rows: expected at most one"),
        (BATCHES, ("sizes", 0, "rows", 1), {"parents": [-1, 2, 0]}, r"rows\[1\].parents"),
        (BATCHES, ("sizes", 0, "rows", 1, "measured"), {"speedup": 0}, "measured.speedup: expected a number"),
        (BATCHES, ("sizes", 0, "rows", 1, "measured"), {"overhead": 2.0}, "overhead: expected a number from 0 to 1"),
        (BATCHES, ("sizes", 1), {"pace": {"plain": -1}}, "pace.plain: expected a number"),
    ],
)
def test_invalid_content_raises(bench: Bench, where: tuple[Any, ...], change: dict[str, object], reason: str) -> None:
    content = json.loads(text_of(bench))
    inner = content
    for step in where:
        inner = inner[step]
    inner |= change
    with pytest.raises(FormatError, match=reason) as refused:
        parse_benches(Path("b.json"), json.dumps(content))
    assert "\n" not in str(refused.value)


def test_json_of_other_commands_raises() -> None:
    for text in ('{"tool": "treeopt 1", "load": {}}', '{"tool": "treeopt 1"', '{"tool": "treeopt 1", "nodes": NaN}'):
        with pytest.raises(FormatError):
            parse_benches("b.json", text)
