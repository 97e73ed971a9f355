"""What a probe prints: parts of steps only where they are told apart, and what was not by name."""

from tests.planner.test_step_parts import latencies
from treeopt.planner.step_parts import step_parts
from treeopt.report.probe_text import _parts


def test_one_batch_size_names_what_is_missing_and_how_to_get_it():
    (line,) = _parts(step_parts(latencies([1], [0, 1, 3])))
    assert line == (
        "Not told apart: speculating at all, what is beside passes, drafting, verifying "
        "(--batch-sizes 1,2,4 --lengths 0,1,3,7 tells the first)."
    )


def test_those_batch_sizes_do_tell_the_first():
    head, row, rest = _parts(step_parts(latencies([1, 2, 4], [0, 1, 3, 7])))
    assert head.startswith("a step is made of")
    assert row.split() == ["speculating", "at", "all", "500", "500-500"]
    assert rest == "Not told apart: what is beside passes, drafting, verifying (an engine has to tell its passes)."


def test_passes_tell_everything():
    lines = _parts(step_parts(latencies([1], [0, 1], passes=True)))
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "speculating at all",
        "every step of 1 text, beside its passes",
        "drafting one token of 1 text",
        "verifying 1 token",
        "verifying 2 tokens",
    ]
