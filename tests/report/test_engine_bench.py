"""Changes of the machine's speed are reported if they exceed the spread of repeats."""

from dataclasses import replace

import pytest

from treeopt.records.results import NEAR_TIE, EngineBench, EngineRow, TextDivergence
from treeopt.report.engine_bench import engine_bench_table, losslessness_warning


def row(tokens_per_s=100.0, predicted=None, spread=0.02, divergences=()):
    return EngineRow(
        length=0,
        chosen=True,
        tokens_per_step=1.0,
        predicted_tokens_per_step=1.0,
        tokens_per_s=tokens_per_s,
        predicted_tokens_per_s=predicted,
        speedup=1.0,
        predicted_speedup=1.0,
        spread=spread,
        identical=not divergences,
        divergences=divergences,
    )


def table(*plain):
    return engine_bench_table(EngineBench(engine="fake", version="1", rows=(row(*plain),), gap_to_best=0.0), None)


@pytest.mark.parametrize(("gap", "words"), [(0.0, "at exact ties,"), (0.0125, "at near-ties of at most 0.013 nats,")])
def test_warning_of_ties_contains_the_largest_gap(gap, words):
    tie = TextDivergence(prompt=0, place=3, plain="a", other="b", gap=gap, at_least=False, verdict=NEAR_TIE)
    bench = EngineBench(
        engine="fake", version="1", rows=(row(), replace(row(divergences=(tie,)), length=3)), gap_to_best=0.0
    )
    assert words in losslessness_warning(bench).problem


@pytest.mark.parametrize(("measured", "word"), [(80.0, "20 % slower"), (130.0, "30 % faster")])
def test_a_change_of_speed_is_reported(measured, word):
    assert f"Plain decoding is {word} than at the probe" in table(measured, 100.0)


@pytest.mark.parametrize(("measured", "spread"), [(97.0, 0.0), (80.0, 0.25), (120.0, 0.21)])
def test_changes_within_the_spread_are_not_reported(measured, spread):
    assert "than at the probe" not in table(measured, 100.0, spread)


def test_no_report_without_a_prediction():
    assert "than at the probe" not in table(80.0, None)
