"""The table of a grid: errors of the predictions by hand, the choice next to the best, and outputs that differ."""

from dataclasses import replace

import pytest

from tests.support.pages import DIVERGENCE, MEASURED
from treeopt.records.bench_file import GridBench, GridTree
from treeopt.records.latency import Estimate
from treeopt.records.results import TreePrediction
from treeopt.report.grid_bench import grid_table
from treeopt.trees import chain


def row(depth: int, *, tokens: float = 1.0, step: float = 1.0, speedup: float = 1.0) -> GridTree:
    """Return a chain whose measurements are its predictions times factors."""
    value = 1.5 * speedup
    return GridTree(
        tree=chain(depth),
        predicted=TreePrediction(tokens_per_step=2.0, step_s=0.01, speedup=1.5),
        measured=replace(
            MEASURED,
            tokens_per_step=2.0 * tokens,
            step_s=0.01 * step,
            speedup=Estimate(value, value, value),
            plain_step_s=0.004,
        ),
    )


def table(*rows: GridTree, plain_s: float = 0.004, plain_is_fastest: bool = False) -> str:
    bench = GridBench(
        rule="sequoia",
        temperature=0.0,
        predicted_plain_step_s=plain_s,
        plain_is_fastest=plain_is_fastest,
        trees=rows,
    )
    return grid_table(bench)


def test_what_came_true_has_no_error_and_the_first_is_marked() -> None:
    lines = table(row(1), row(2)).splitlines()
    assert [line[:2] for line in lines[2:4]] == ["* ", "  "]
    assert "mean error without sign: tokens per step 0.0%, step 0.0%, speedup 0.0%" in lines
    assert "plain decoding: predicted 4.00 ms a token, measured 4.00 (+0.0%)" in lines
    assert "the chosen tree (*) reaches 100.0% of the best measured speedup" in lines
    assert lines[-1] == "every text is plain decoding's, token by token"


def test_errors_are_of_the_prediction_against_the_measurement() -> None:
    line = table(row(1, tokens=2.0, step=0.5, speedup=1.25)).splitlines()[2].split()
    assert [each for each in line if each.endswith("%")] == ["-50.0%", "+100.0%", "-20.0%"]


@pytest.mark.parametrize(("what", "place"), [("tokens", 0), ("step", 1), ("speedup", 2)])
def test_errors_of_either_sign_do_not_cancel(what: str, place: int) -> None:
    text = table(row(1, **{what: 0.8}), row(2, **{what: 4 / 3}))
    expected = ["0.0%", "0.0%", "0.0%"]
    expected[place] = "25.0%"
    tokens, step, speedup = expected
    assert f"mean error without sign: tokens per step {tokens}, step {step}, speedup {speedup}" in text


def test_the_choice_stands_next_to_the_best_measured() -> None:
    text = table(row(1, speedup=0.5), row(2))
    assert "the chosen tree (*) reaches 50.0% of the best measured speedup" in text
    assert "the fastest tree, " in table(row(1), plain_is_fastest=True)


def test_a_machine_that_changed_and_outputs_that_differ_are_warned_of() -> None:
    assert "not as fast as when it was profiled" in table(row(1), plain_s=0.005)
    differing = replace(row(2), measured=replace(MEASURED, divergences=(DIVERGENCE,)))
    assert "the outputs of 1 trees DIFFER from plain decoding's" in table(row(1), differing)
    sampled = replace(row(2), measured=replace(MEASURED, divergences=None))
    assert "every text" not in table(sampled)
