"""A schedule as `treeopt solve` prints it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.report.table import Column, aligned
from treeopt.report.text import range_text, rule_name, spread

if TYPE_CHECKING:
    from treeopt.planner import Schedule, Segment

HEADER = ("rule", "temperature", "batch", "context", "run", "speedup at the start")


def schedule_table(schedule: "Schedule") -> str:
    """Return the segments over context lengths, those over batch sizes, and the context lengths at which to switch trees."""
    contexts, batches = schedule.over_contexts, schedule.over_batch_sizes
    if all(segment.context_tokens[0] == segment.context_tokens[1] for segment in contexts) and batches:
        contexts = ()  # one length per batch size: the segments over batch sizes contain these
    blocks = [
        ("What to run where, by context length at each measured batch size:", contexts),
        ("What to run where, by batch size at each measured context length:", batches),
    ]
    tables = [f"{title}\n\n{_segments_table(segments)}" for title, segments in blocks if segments]
    return "\n\n".join([*tables, *filter(None, ["\n".join(switch_lines(schedule))])])


def switch_lines(schedule: "Schedule") -> list[str]:
    """Return a line for every context length at which to switch trees; none if one length was measured."""
    segments = schedule.over_contexts
    ends = {end for segment in segments for end in segment.context_tokens}
    if len(ends) < 2:
        return []
    several = len({(segment.temperature, segment.batch_sizes) for segment in segments}) > 1
    lines = [
        f"Switch at {after.context_tokens[0]} tokens of context{_conditions(after) if several else ''}: from "
        f"{_named(before, after)} to {_named(after, before)}."
        for before, after in schedule.switches
    ]
    return lines or [f"From {min(ends)} to {max(ends)} tokens of context no switch of trees pays."]


def _named(segment: "Segment", other: "Segment") -> str:
    """Return the tree of a segment, with its rule if the other segment has another."""
    article = "" if segment.option.kind == "plain" else "the "
    under = "" if segment.option.rule == other.option.rule else f" under {segment.option.rule}"
    return f"{article}{segment.option.shape}{under}"


def _conditions(segment: "Segment") -> str:
    return f", temperature {segment.temperature:g}, batch of {segment.batch_sizes[0]}"


def _segments_table(segments: Sequence["Segment"]) -> str:
    rows = [HEADER, *(_row(segment) for segment in segments)]
    return "\n".join(aligned(rows, [Column(gap=3)] * len(HEADER)))


def _row(segment: "Segment") -> tuple[str, ...]:
    option = segment.option
    padded = f", padded to {option.verify_tokens}" if option.verify_tokens > option.tree.nodes else ""
    return (
        rule_name(option.rule, lossy=option.lossy),
        f"{segment.temperature:g}",
        range_text(segment.batch_sizes, "-"),
        range_text(segment.context_tokens, "-"),
        option.shape + padded,
        spread(option.speedup),
    )
