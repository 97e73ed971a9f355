"""Changes of the machine's speed are reported if they exceed the spread of repeats."""

import pytest

from treeopt.records.results import EngineBench, EngineRow
from treeopt.report.engine_bench import engine_bench_table


def table(tokens_per_s, predicted, spread=0.02):
    plain = EngineRow(
        length=0,
        chosen=True,
        tokens_per_step=1.0,
        predicted_tokens_per_step=1.0,
        tokens_per_s=tokens_per_s,
        predicted_tokens_per_s=predicted,
        speedup=1.0,
        predicted_speedup=1.0,
        spread=spread,
        identical=True,
    )
    return engine_bench_table(EngineBench(engine="fake", version="1", rows=(plain,), regret=0.0), None)


@pytest.mark.parametrize(("measured", "word"), [(80.0, "20 % slower"), (130.0, "30 % faster")])
def test_a_change_of_speed_is_reported(measured, word):
    assert f"Plain decoding is {word} than at the probe" in table(measured, 100.0)


@pytest.mark.parametrize(("measured", "spread"), [(97.0, 0.0), (80.0, 0.25), (120.0, 0.21)])
def test_changes_within_the_spread_are_not_reported(measured, spread):
    assert "than at the probe" not in table(measured, 100.0, spread)


def test_no_report_without_a_prediction():
    assert "than at the probe" not in table(80.0, None)
