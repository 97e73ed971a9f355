"""Table of `treeopt bench grid`: errors, gap to the best, and differing outputs."""

from dataclasses import replace

import pytest

from tests.support.pages import DIVERGENCE, MEASURED
from treeopt.records.bench_file import GridBench, GridTree
from treeopt.records.latency import Estimate
from treeopt.records.results import TreePrediction
from treeopt.report.bench_text import grid_table
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


def test_exact_predictions_have_no_error() -> None:
    lines = table(row(1), row(2)).splitlines()
    assert [line[:2] for line in lines[2:4]] == ["* ", "  "]
    assert "Mean absolute error: tokens per step 0.0 %, step 0.0 %, speedup 0.0 %." in lines
    assert "Plain decoding: predicted 4.00 ms per token, measured 4.00 ms (+0.0 %)." in lines
    assert "The chosen tree (*) reaches 100.0 % of the best measured speedup." in lines
    assert lines[-1] == "All outputs are identical to plain decoding, token by token."


def test_errors_are_relative_to_the_measurement() -> None:
    line = table(row(1, tokens=2.0, step=0.5, speedup=1.25)).splitlines()[2].split()
    assert [cell for cell in line if cell[0] in "+-" and cell != "-"] == ["-50.0", "+100.0", "-20.0"]


@pytest.mark.parametrize(("what", "place"), [("tokens", 0), ("step", 1), ("speedup", 2)])
def test_errors_of_either_sign_do_not_cancel(what: str, place: int) -> None:
    text = table(row(1, **{what: 0.8}), row(2, **{what: 4 / 3}))
    expected = ["0.0 %", "0.0 %", "0.0 %"]
    expected[place] = "25.0 %"
    tokens, step, speedup = expected
    assert f"Mean absolute error: tokens per step {tokens}, step {step}, speedup {speedup}." in text


def test_choice_is_compared_with_the_best_measured() -> None:
    text = table(row(1, speedup=0.5), row(2))
    assert "The chosen tree (*) reaches 50.0 % of the best measured speedup." in text
    assert "The plan chose plain decoding; its fastest tree (*)" in table(row(1), plain_is_fastest=True)


def test_warnings_of_a_changed_machine_and_differing_outputs() -> None:
    assert "not as fast as when it was profiled" in table(row(1), plain_s=0.005)
    differing = replace(row(2), measured=replace(MEASURED, divergences=(DIVERGENCE,)))
    assert "The outputs of 1 tree DIFFER from plain decoding." in table(row(1), differing)
    sampled = replace(row(2), measured=replace(MEASURED, divergences=None))
    assert "identical" not in table(sampled)
