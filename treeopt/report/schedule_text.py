"""A schedule as `treeopt solve` prints it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.report.table import Column, aligned
from treeopt.report.text import range_text, rule_name, spread

if TYPE_CHECKING:
    from treeopt.planner import Schedule, Segment

HEADER = ("rule", "temperature", "batch", "context", "run", "speedup at the start")


def schedule_table(schedule: "Schedule") -> str:
    """Return the segments over context lengths, and those over batch sizes."""
    contexts, batches = schedule.over_contexts, schedule.over_batch_sizes
    if all(segment.context_tokens[0] == segment.context_tokens[1] for segment in contexts) and batches:
        contexts = ()  # one length per batch size: the segments over batch sizes contain these
    blocks = [
        ("What to run where, by context length at each measured batch size:", contexts),
        ("What to run where, by batch size at each measured context length:", batches),
    ]
    return "\n\n".join(f"{title}\n\n{_segments_table(segments)}" for title, segments in blocks if segments)


def _segments_table(segments: Sequence["Segment"]) -> str:
    rows = [HEADER, *(_row(segment) for segment in segments)]
    return "\n".join(aligned(rows, [Column(gap=3)] * len(HEADER)))


def _row(segment: "Segment") -> tuple[str, ...]:
    option = segment.option
    padded = f", padded to {option.verify_tokens}" if option.verify_tokens > option.tree.nodes else ""
    return (
        rule_name(option.rule),
        f"{segment.temperature:g}",
        range_text(segment.batch_sizes, "-"),
        range_text(segment.context_tokens, "-"),
        option.shape + padded,
        spread(option.speedup),
    )
