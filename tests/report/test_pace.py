"""Predictions at the pace of a benchmark, in every table."""

from dataclasses import replace

import pytest

from tests.support.pages import BATCHES, METHODS, PACE, PACED, planned
from treeopt.planner.benchmarks import GridRow
from treeopt.records.bench_file import TreeBench
from treeopt.records.latency import Estimate
from treeopt.records.results import TreeMeasurement, TreePrediction
from treeopt.report.batch_bench import batch_bench_table
from treeopt.report.bench_records import grid_bench
from treeopt.report.bench_text import grid_table, methods_table, pace_lines, pace_warning, tree_bench_table

LINE = "Pace: reference passes took 1.20x (1 token), 1.30x (8 tokens), 1.10x (draft level) the profile's time."
MEASURED = TreeMeasurement(
    speedup=Estimate(1.1, 1.0, 1.2),
    tokens_per_step=2.0,
    step_s=0.0125,
    plain_step_s=0.007,
    divergences=(),
    tokens=100,
    prompts=2,
    rounds=6,
    pace=PACE,
)


def test_pace_of_one_tree():
    predicted = TreePrediction(tokens_per_step=2.1, step_s=0.01, speedup=1.2)
    bench = TreeBench(rule="sequoia", temperature=0.0, nodes=4, depth=3, predicted=predicted, measured=MEASURED)
    lines = tree_bench_table(replace(bench, predicted=replace(predicted, at_pace=PACED))).splitlines()
    assert lines[0].split() == ["predicted", "at", "this", "pace", "measured"]
    assert [line.split()[-3:] for line in lines[1:4]] == [
        ["2.10", "2.10", "2.00"],
        ["10.0", "12.0", "12.5"],
        ["1.20", "1.03", "1.10"],
    ]
    assert LINE in lines
    plain = tree_bench_table(replace(bench, measured=replace(MEASURED, pace=None)))
    assert "Pace" not in plain
    assert plain.splitlines()[3].split() == ["speedup", "1.20", "-", "1.10"]


def test_pace_of_a_grid():
    found = planned().plan
    rows = [GridRow(predicted=found.choice, measured=MEASURED, at_pace=PACED)]
    lines = grid_table(grid_bench(rows, 0.007, found.model.acceptance)).splitlines()
    assert lines[2].split()[-1] == "1.03"
    assert "Mean absolute error at this pace: step 4.0 %, speedup 6.4 %." in lines
    assert LINE in lines


def test_pace_of_methods_and_batches():
    methods = methods_table(METHODS).splitlines()
    assert next(line for line in methods if line.startswith("medusa")).split()[-6:-3] == ["1.80", "1.03", "yes"]
    assert LINE in methods
    batches = batch_bench_table(BATCHES).splitlines()
    assert (
        "Pace at batch size 6: reference passes took 1.20x (1 token), 1.30x (8 tokens) the profile's time." in batches
    )
    assert sum(line.startswith("Pace") for line in batches) == 1


@pytest.mark.parametrize(
    ("plain", "problem"),
    [(1.0, None), (1.5, None), (0.67, None), (1.6, "1.6 times slower"), (0.05, "20.0 times faster")],
)
def test_other_machines_than_the_profiled_one_are_a_warning(plain, problem):
    warning = pace_warning(replace(PACE, plain=plain))
    assert (warning is None) == (problem is None)
    assert problem is None or problem in warning.problem
    assert pace_warning(None) is None


def test_no_pace_without_reference_passes():
    assert pace_lines(None) == []
