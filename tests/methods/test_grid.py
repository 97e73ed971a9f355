"""Predictions beside measurements: errors and their summary by hand."""

import pytest

from tests.support.invented_machines import profile_of, seconds
from treeopt.methods.grid import grid_rows
from treeopt.planner import plan
from treeopt.planner.grid import grid, summary
from treeopt.profiler import Measured
from treeopt.records.latency import Estimate

MACHINE = seconds(lambda n: 0.9 + 0.06 * n, lambda w: 0.15 + 0.004 * w, 0.05)


def as_measured(candidate, *, tokens=1.0, step=1.0, speedup=1.0):
    """Return a measurement that is a prediction times factors."""
    value = candidate.speedup.value * speedup
    return Measured(
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
    return grid(plan(profile_of(MACHINE, [[0.7, 0.15, 0.05]] * 5), 9))


def test_what_came_true_has_no_error(predicted):
    rows = grid_rows(predicted, [as_measured(each) for each in predicted])
    found = summary(rows)
    assert (found.tokens_error, found.step_error, found.speedup_error) == (0.0, 0.0, 0.0)
    assert found.chosen_over_best == 1.0
    assert rows[0].predicted is predicted[0]


def test_errors_are_of_the_prediction_against_the_measurement(predicted):
    row = grid_rows(predicted[:1], [as_measured(predicted[0], tokens=2.0, step=0.5, speedup=1.25)])[0]
    assert (row.tokens_error, row.step_error, row.speedup_error) == pytest.approx((-0.5, 1.0, -0.2))


@pytest.mark.parametrize("what", ["tokens", "step", "speedup"])
def test_errors_of_either_sign_do_not_cancel(predicted, what):
    measured = [as_measured(predicted[0], **{what: 0.8}), as_measured(predicted[1], **{what: 4 / 3})]
    found = summary(grid_rows(predicted[:2], measured))
    expected = dict.fromkeys(("tokens", "step", "speedup"), 0.0) | {what: 0.25}
    assert {name: getattr(found, f"{name}_error") for name in expected} == pytest.approx(expected)


def test_the_choice_is_put_beside_the_best_measured(predicted):
    slow_choice = [as_measured(each, speedup=1.0 if number else 0.5) for number, each in enumerate(predicted)]
    best = max(each.speedup.value for each in slow_choice)
    assert summary(grid_rows(predicted, slow_choice)).chosen_over_best == slow_choice[0].speedup.value / best < 1


def test_rows_must_match(predicted):
    with pytest.raises(ValueError, match="zip"):
        grid_rows(predicted, [as_measured(predicted[0])])
