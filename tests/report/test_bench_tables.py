"""Tables of `treeopt bench`: errors, gaps to the best, pace, and diverging outputs."""

from dataclasses import replace

import pytest

from tests.support.pages import BATCHES, DIVERGENCE, MEASURED, METHODS, PACE, PACED, batch_row, planned
from treeopt.planner.benchmarks import tree_prediction
from treeopt.records.bench_file import GridBench, GridTree, MethodsBench, TreeBench
from treeopt.records.latency import Estimate
from treeopt.records.results import (
    NEAR_TIE,
    NO_PREDICTION,
    BatchBench,
    BatchSize,
    Divergence,
    EngineBench,
    EngineRow,
    NotRun,
    OutputDivergence,
    TreePrediction,
)
from treeopt.report.batch_bench import batch_bench_table
from treeopt.report.bench_text import grid_table, methods_table, pace_lines, pace_warning, tree_bench_table
from treeopt.report.engine_bench import engine_bench_table, losslessness
from treeopt.trees import chain, level_widths

PACE_LINE = "Pace: reference passes took 1.20x (1 token), 1.30x (8 tokens), 1.10x (draft level) the profile's time."
PACED_MEASUREMENT = replace(MEASURED, speedup=Estimate(1.1, 1.0, 1.2), step_s=0.0125, plain_step_s=0.007, pace=PACE)
PLAIN, TREE = chain(0), level_widths([2, 2])
NEAR = Divergence(prompt=3, position=7, gap=1e-7, near_tie=True)
FAR = replace(NEAR, gap=0.5, near_tie=False)


class TestTree:
    def test_predictions_at_the_pace_have_a_column(self) -> None:
        predicted = TreePrediction(tokens_per_step=2.1, step_s=0.01, speedup=1.2, at_pace=PACED)
        bench = TreeBench(
            rule="sequoia", temperature=0.0, nodes=4, depth=3, predicted=predicted, measured=PACED_MEASUREMENT
        )
        lines = tree_bench_table(bench).splitlines()
        assert lines[0].split() == ["predicted", "at", "this", "pace", "measured"]
        assert [line.split()[-3:] for line in lines[1:4]] == [
            ["2.10", "2.10", "2.00"],
            ["10.0", "12.0", "12.5"],
            ["1.20", "1.03", "1.10"],
        ]
        assert PACE_LINE in lines
        unpaced = replace(PACED_MEASUREMENT, pace=None)
        text = tree_bench_table(replace(bench, predicted=replace(predicted, at_pace=None), measured=unpaced))
        assert "Pace" not in text
        assert text.splitlines()[3].split() == ["speedup", "1.20", "-", "1.10"]


class TestGrid:
    def row(self, depth: int, *, tokens: float = 1.0, step: float = 1.0, speedup: float = 1.0) -> GridTree:
        """Return a chain whose measurements are its predictions times factors."""
        measured = replace(
            MEASURED,
            tokens_per_step=2.0 * tokens,
            step_s=0.01 * step,
            speedup=Estimate(*[1.5 * speedup] * 3),
            plain_step_s=0.004,
        )
        predicted = TreePrediction(tokens_per_step=2.0, step_s=0.01, speedup=1.5)
        return GridTree(tree=chain(depth), predicted=predicted, measured=measured)

    def table(self, *rows: GridTree, plain_s: float = 0.004, plain_is_fastest: bool = False) -> str:
        bench = GridBench(
            rule="sequoia",
            temperature=0.0,
            predicted_plain_step_s=plain_s,
            plain_is_fastest=plain_is_fastest,
            trees=rows,
        )
        return grid_table(bench)

    def test_exact_predictions_have_no_error(self) -> None:
        lines = self.table(self.row(1), self.row(2)).splitlines()
        assert [line[:2] for line in lines[1:3]] == ["* ", "  "]
        assert "Mean absolute error: tokens per step 0.0 %, step 0.0 %, speedup 0.0 %." in lines
        assert "Plain decoding: predicted 4.00 ms per token, measured 4.00 ms (+0.0 %)." in lines
        assert "The chosen tree (*) reaches 100.0 % of the best measured speedup." in lines
        assert lines[-1] == "All outputs are identical to plain decoding, token by token."

    def test_errors_are_relative_to_the_measurement(self) -> None:
        cells = self.table(self.row(1, tokens=2.0, step=0.5, speedup=1.25)).splitlines()[1].split()
        assert [cell for cell in cells if cell[0] in "+-" and cell != "-"] == ["-50.0", "+100.0", "-20.0"]

    @pytest.mark.parametrize(("column", "index"), [("tokens", 0), ("step", 1), ("speedup", 2)])
    def test_errors_of_either_sign_do_not_cancel(self, column: str, index: int) -> None:
        errors = ["0.0 %"] * 3
        errors[index] = "25.0 %"
        line = "Mean absolute error: tokens per step {}, step {}, speedup {}.".format(*errors)
        assert line in self.table(self.row(1, **{column: 0.8}), self.row(2, **{column: 4 / 3}))

    def test_choice_is_compared_with_the_best_measured(self) -> None:
        text = self.table(self.row(1, speedup=0.5), self.row(2))
        assert "The chosen tree (*) reaches 50.0 % of the best measured speedup." in text
        plain = self.table(self.row(1), plain_is_fastest=True)
        assert "The plan chose plain decoding; its fastest tree (*)" in plain

    def test_changed_machine_and_diverging_outputs_are_reported(self) -> None:
        for plain_s in (0.003, 0.005):
            assert "speed has changed since it was profiled" in self.table(self.row(1), plain_s=plain_s)
        differing = replace(self.row(2), measured=replace(MEASURED, divergences=(DIVERGENCE,)))
        assert "The outputs of 1 tree DIFFER from plain decoding." in self.table(self.row(1), differing)
        sampled = replace(self.row(2), measured=replace(MEASURED, divergences=None))
        assert "identical" not in self.table(sampled)

    def test_predictions_at_the_pace_have_a_column_and_an_error(self) -> None:
        choice = planned(max_nodes=8).plan.choice
        row = GridTree(tree=choice.tree, predicted=tree_prediction(choice, PACED), measured=PACED_MEASUREMENT)
        lines = self.table(row, plain_s=0.007).splitlines()
        assert lines[1].split()[-1] == "1.03"
        assert "Mean absolute error at this pace: step 4.0 %, speedup 6.4 %." in lines
        assert PACE_LINE in lines


def predicted_rate(tokens_per_s: float) -> TreePrediction:
    """Return the prediction of plain decoding at a rate."""
    return TreePrediction(tokens_per_step=1.0, step_s=1 / tokens_per_s, speedup=1.0)


class TestBatches:
    def bench(self, divergences: tuple[Divergence, ...] = (), temperature: float = 0.0) -> BatchBench:
        one = (
            batch_row(PLAIN, 400, 1, predicted=predicted_rate(420)),
            batch_row(TREE, 500, 1, speedup=1.25, chosen=True, predicted=NO_PREDICTION),
        )
        eight = (
            batch_row(PLAIN, 1600, 8, chosen=True, predicted=NO_PREDICTION),
            batch_row(TREE, 1680, 8, speedup=1.05, divergences=divergences, predicted=NO_PREDICTION),
        )
        sizes = (BatchSize(batch_size=1, rows=one), BatchSize(batch_size=8, rows=eight))
        return BatchBench(rule="sequoia", temperature=temperature, prompts=16, max_new_tokens=96, rounds=3, sizes=sizes)

    def test_every_tree_is_a_row_and_gaps_are_sentences(self) -> None:
        lines = batch_bench_table(self.bench()).splitlines()
        assert lines[0] == "sequoia at temperature 0; 16 prompts, 96 new tokens each, 3 rounds"
        cells = [line.split() for line in lines[3:7]]
        assert cells[0][:5] == ["1", "plain", "decoding", "400", "420"]
        assert cells[1][:10] == ["*", "tree", "of", "5", "nodes,", "depth", "2", "500", "-", "-"]
        assert cells[2][:3] == ["8", "*", "plain"]
        assert cells[3][-3:] == ["%", "0.50", "16/16"]
        assert lines[8:] == [
            "Batch size 1: the choice, tree of 5 nodes, depth 2, is the fastest measured.",
            "Batch size 8: tree of 5 nodes, depth 2 is 5.0 % faster than the choice, plain decoding. Rounds differ by up to 4 %.",
            "All outputs are identical to decoding alone, token by token.",
        ]

    @pytest.mark.parametrize(("predicted", "error"), [(330, "-17.5 %"), (430, None), (480, "+20.0 %")])
    def test_changed_machine_is_reported(self, predicted: float, error: str | None) -> None:
        sizes = [(1, predicted), (2, predicted), (4, 404)]
        rows = [
            BatchSize(batch_size=size, rows=(batch_row(PLAIN, 400, size, predicted=predicted_rate(rate / size)),))
            for size, rate in sizes
        ]
        last = batch_bench_table(replace(self.bench(), sizes=tuple(rows))).splitlines()[-1]
        reported = last.startswith("Predictions of plain decoding are off by") and "Profile again right before" in last
        assert reported is (error is not None)
        assert error is None or error in last

    @pytest.mark.parametrize(
        ("divergences", "temperature", "expected"),
        [
            ((NEAR,), 0.0, "1 of 64 outputs diverged from decoding alone, each at a near-tie"),
            ((NEAR, FAR), 0.0, "1 output DIFFERS from decoding alone"),
            ((NEAR, FAR), 0.7, "2 of 64 outputs diverged from decoding alone with the same seed. Above temperature 0,"),
        ],
    )
    def test_diverging_outputs_are_reported(
        self, divergences: tuple[Divergence, ...], temperature: float, expected: str
    ) -> None:
        assert expected in batch_bench_table(self.bench(divergences, temperature))

    def test_pace_is_reported_by_batch_size(self) -> None:
        lines = [line for line in batch_bench_table(BATCHES).splitlines() if line.startswith("Pace")]
        passes = "1.20x (1 token), 1.30x (8 tokens)"
        assert lines == [f"Pace at batch size 6: reference passes took {passes} the profile's time."]


class TestMethods:
    def test_pace_has_a_column_and_a_line(self) -> None:
        lines = methods_table(METHODS).splitlines()
        assert next(line for line in lines if line.startswith("medusa")).split()[-6:-3] == ["1.80", "1.03", "yes"]
        assert PACE_LINE in lines

    def test_methods_may_all_be_not_run(self) -> None:
        rows = [NotRun(method="medusa", temperature=temperature, reason="no heads") for temperature in (0.0, 0.6)]
        assert methods_table(MethodsBench.of(rows)).count("medusa        not run: no heads") == 2


class TestEngine:
    ROW = EngineRow(
        length=0,
        chosen=True,
        predicted=NO_PREDICTION,
        tokens_per_step=1.0,
        tokens_per_s=100.0,
        speedup=1.0,
        spread=0.02,
        identical=True,
    )

    @pytest.mark.parametrize(
        ("gap", "words"), [(0.0, "at exact ties,"), (0.0125, "at near-ties of at most 0.013 nats,")]
    )
    def test_warning_of_ties_contains_the_largest_gap(self, gap: float, words: str) -> None:
        tie = OutputDivergence(prompt=0, position=3, plain="a", other="b", gap=gap, at_least=False, verdict=NEAR_TIE)
        rows = (self.ROW, replace(self.ROW, length=3, identical=False, divergences=(tie,)))
        warning, error = losslessness(EngineBench(engine="fake", version="1", rows=rows))
        assert error is None
        assert warning is not None
        assert words in warning.problem

    @pytest.mark.parametrize(
        ("measured", "predicted", "spread", "change"),
        [
            (80.0, 100.0, 0.02, "20 % slower"),
            (130.0, 100.0, 0.02, "30 % faster"),
            (97.0, 100.0, 0.0, None),
            (80.0, 100.0, 0.25, None),
            (80.0, None, 0.02, None),
        ],
    )
    def test_changed_machine_is_reported_beyond_the_spread(
        self, measured: float, predicted: float | None, spread: float, change: str | None
    ) -> None:
        prediction = NO_PREDICTION if predicted is None else predicted_rate(predicted)
        row = replace(self.ROW, tokens_per_s=measured, predicted=prediction, spread=spread)
        table = engine_bench_table(EngineBench(engine="fake", version="1", rows=(row,)), None)
        assert ("than at the probe" in table) == (change is not None)
        assert change is None or f"Plain decoding is {change} than at the probe" in table


@pytest.mark.parametrize(
    ("plain", "problem"),
    [(1.5, None), (0.67, None), (1.6, "1.6 times slower"), (0.05, "20.0 times faster")],
)
def test_another_pace_than_the_profiles_is_a_warning(plain: float, problem: str | None) -> None:
    warning = pace_warning(replace(PACE, plain=plain))
    assert (warning is None) == (problem is None)
    assert warning is None or problem in warning.problem


def test_no_pace_is_neither_a_line_nor_a_warning() -> None:
    assert pace_lines(None) == []
    assert pace_warning(None) is None
