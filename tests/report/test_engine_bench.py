"""The race's table: drift of the machine is told where repeats do not explain it, and only there."""

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


@pytest.mark.parametrize(("measured", "word"), [(80.0, "20% slower"), (130.0, "30% faster")])
def test_another_speed_of_the_machine_is_told(measured, word):
    assert f"Plain decoding is {word} than when it was probed" in table(measured, 100.0)


@pytest.mark.parametrize(("measured", "spread"), [(97.0, 0.0), (80.0, 0.25), (120.0, 0.21)])
def test_what_repeats_explain_is_not(measured, spread):
    assert "when it was probed" not in table(measured, 100.0, spread)


def test_without_a_prediction_nothing_is_said():
    assert "when it was probed" not in table(80.0, None)
