"""Table of `treeopt bench batches`."""

from dataclasses import replace

import pytest

from tests.support.pages import UNKNOWN, way
from treeopt.records.results import BatchBench, BatchSize, Divergence
from treeopt.report.batch_bench import batch_bench_table
from treeopt.trees import chain, level_widths

PLAIN, TREE = chain(0), level_widths([2, 2])
NEAR = Divergence(prompt=3, place=7, gap=1e-7, near_tie=True)
FAR = replace(NEAR, gap=0.5, near_tie=False)


def row(tree, rate, size, *, speedup=1.0, promised=None, chosen=False, parted=()):
    predicted = UNKNOWN if promised is None else {"predicted_tokens_per_s": promised, "predicted_speedup": 1.2}
    return way(tree, rate, size, speedup=speedup, chosen=chosen, parted=parted, **predicted)


def bench(parted=(), temperature=0.0):
    one = BatchSize(batch_size=1, rows=(row(PLAIN, 400, 1, promised=420), row(TREE, 500, 1, speedup=1.25, chosen=True)))
    eight = BatchSize(
        batch_size=8, rows=(row(PLAIN, 1600, 8, chosen=True), row(TREE, 1680, 8, speedup=1.05, parted=parted))
    )
    return BatchBench(
        rule="sequoia", temperature=temperature, prompts=16, max_new_tokens=96, rounds=3, sizes=(one, eight)
    )


def test_table_has_a_line_per_tree_and_the_gap_to_the_best():
    lines = batch_bench_table(bench()).splitlines()
    assert lines[0] == "sequoia at temperature 0; 16 prompts, 96 new tokens each, 3 rounds"
    cells = [line.split() for line in lines[3:7]]
    assert cells[0][:5] == ["1", "plain", "decoding", "400", "420"]
    assert cells[1][:8] == ["*", "tree", "of", "5", "nodes,", "depth", "2", "500"]
    assert cells[1][8:10] == ["-", "-"]
    assert cells[2][:3] == ["8", "*", "plain"]
    assert cells[3][-3:] == ["%", "0.50", "16/16"]
    assert lines[8] == "Batch size 1: the choice, tree of 5 nodes, depth 2, is the fastest measured."
    assert lines[9] == (
        "Batch size 8: tree of 5 nodes, depth 2 is 5.0 % faster than the choice, plain decoding. Rounds differ by up to 4 %."
    )
    assert lines[10:] == ["All outputs are identical to decoding alone, token by token."]


@pytest.mark.parametrize(("predicted", "error"), [(330, "-17.5 %"), (430, None), (480, "+20.0 %")])
def test_a_change_of_the_machines_speed_is_reported(predicted, error):
    sizes = [BatchSize(batch_size=size, rows=(row(PLAIN, 400, size, promised=predicted),)) for size in (1, 2)]
    odd = BatchSize(batch_size=4, rows=(row(PLAIN, 400, 4, promised=404),))
    found = batch_bench_table(replace(bench(), sizes=(*sizes, odd)))
    last = found.splitlines()[-1]
    reported = last.startswith("Predictions of plain decoding are off by") and "Profile again right before" in last
    assert reported is (error is not None)
    assert error is None or error in last


@pytest.mark.parametrize(
    ("parted", "temperature", "expected"),
    [
        ((NEAR,), 0.0, "1 of 64 outputs diverged from decoding alone, each at a near-tie"),
        ((NEAR, FAR), 0.0, "1 output DIFFERS from decoding alone"),
        (
            (NEAR, FAR),
            0.7,
            "2 of 64 outputs diverged from decoding alone with the same seed. Above temperature 0, near-ties are not",
        ),
    ],
)
def test_diverging_outputs_are_reported(parted, temperature, expected):
    assert expected in batch_bench_table(bench(parted, temperature))
