"""Parts of a step in the output of `treeopt probe`: seconds of those determined, names of the others."""

from tests.planner.test_step_parts import latencies
from treeopt.planner.step_parts import step_parts
from treeopt.report.probe_text import part_lines


def test_one_batch_size_names_the_missing_parts():
    (line,) = part_lines(step_parts(latencies([1], [0, 1, 3])))
    assert line == (
        "Not determined by these steps: fixed cost of speculation, overhead of a step, drafting one token, verification. "
        "To measure the fixed cost of speculation, probe with --batch-sizes 1,2,4 --lengths 0,1,3,7."
    )


def test_these_batch_sizes_determine_the_fixed_cost():
    head, row, rest = part_lines(step_parts(latencies([1, 2, 4], [0, 1, 3, 7])))
    assert head.startswith("parts of a step")
    assert row.split() == ["fixed", "cost", "of", "speculation", "500", "500-500"]
    assert rest == (
        "Not determined by these steps: overhead of a step, drafting one token, verification. "
        "Only engines that report their passes determine them."
    )


def test_passes_determine_all_parts():
    lines = part_lines(step_parts(latencies([1], [0, 1], passes=True)))
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "fixed cost of speculation",
        "overhead of a step, 1 sequence",
        "drafting one token, 1 sequence",
        "verification, 1 token",
        "verification, 2 tokens",
    ]
