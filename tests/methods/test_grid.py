"""Rows of a grid."""

import pytest

from tests.support.invented_machines import profile_of, seconds
from treeopt.methods.grid import grid_rows
from treeopt.planner import plan
from treeopt.planner.benchmarks import predict_grid
from treeopt.profiler import TreeMeasurement
from treeopt.records.latency import Estimate

MACHINE = seconds(lambda n: 0.9 + 0.06 * n, lambda w: 0.15 + 0.004 * w, 0.05)


def as_measured(candidate, *, tokens=1.0, step=1.0, speedup=1.0):
    """Return a measurement that is a prediction times factors."""
    value = candidate.speedup.value * speedup
    return TreeMeasurement(
        speedup=Estimate(value, value, value),
        tokens_per_step=candidate.tokens_per_step.value * tokens,
        step_s=candidate.step_s.value * step,
        plain_step_s=1.0,
        divergences=(),
        tokens=9,
        prompts=2,
        rounds=2,
    )


@pytest.fixture(scope="module")
def predicted():
    return predict_grid(plan(profile_of(MACHINE, [[0.7, 0.15, 0.05]] * 5), 9))


def test_rows_pair_predictions_with_measurements(predicted):
    measured = [as_measured(each, tokens=0.5) for each in predicted]
    rows = grid_rows(predicted, measured)
    assert [row.predicted for row in rows] == list(predicted)
    assert [row.measured for row in rows] == measured


def test_rows_must_match(predicted):
    with pytest.raises(ValueError, match="zip"):
        grid_rows(predicted, [as_measured(predicted[0])])
