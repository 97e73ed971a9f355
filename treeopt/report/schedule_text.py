"""A schedule as `treeopt solve` prints it: what to run where."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.report.table import Column, aligned
from treeopt.report.text import rule_name, spread

if TYPE_CHECKING:
    from treeopt.planner import Schedule, Segment

HEADER = ("rule", "temperature", "batch", "context", "run", "speedup at the start")


def schedule_table(schedule: "Schedule") -> str:
    """Return the segments as lines, first over context lengths and then over batch sizes."""
    contexts, batches = schedule.over_contexts, schedule.over_batch_sizes
    if all(segment.context_tokens[0] == segment.context_tokens[1] for segment in contexts) and batches:
        contexts = ()  # one length per batch size: the segments over batch sizes say the same, and more
    blocks = [
        ("What to run where, by context length at each measured batch size:", contexts),
        ("What to run where, by batch size at each measured context length:", batches),
    ]
    return "\n\n".join(f"{title}\n\n{_aligned(segments)}" for title, segments in blocks if segments)


def _aligned(segments: Sequence["Segment"]) -> str:
    rows = [HEADER, *(_row(segment) for segment in segments)]
    return "\n".join(aligned(rows, [Column(gap=3)] * len(HEADER)))


def _row(segment: "Segment") -> tuple[str, ...]:
    choice = segment.choice
    padded = f", padded to {choice.verify_tokens}" if choice.verify_tokens > choice.tree.nodes else ""
    return (
        rule_name(segment.rule, lossy=segment.lossy),
        f"{segment.temperature:g}",
        _range(segment.batch_sizes),
        _range(segment.context_tokens),
        choice.shape + padded,
        spread(choice.speedup),
    )


def _range(ends: tuple[int, int]) -> str:
    """Return a range of whole numbers.

    >>> _range((1, 4)), _range((2, 2))
    ('1-4', '2')
    """
    first, last = ends
    return str(first) if first == last else f"{first}-{last}"
