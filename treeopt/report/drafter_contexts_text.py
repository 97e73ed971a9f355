"""The fastest of all drafters by context length as `treeopt solve` prints it, and where to switch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from treeopt.report.table import Column, aligned

if TYPE_CHECKING:
    from treeopt.planner import Option, Segment

HEADER = ("context", "drafter", "setting", "speedup at the start")


def drafter_contexts_text(segments: "Sequence[Segment]") -> str:
    """Return a line for every range of contexts, and one for every place at which to switch."""
    rows = [HEADER, *(_row(each) for each in segments)]
    table = "\n".join(aligned(rows, [Column(gap=3)] * len(HEADER)))
    return f"Of all drafters, by context length:\n\n{table}\n\n" + "\n".join(drafter_switch_lines(segments))


def drafter_column(option: "Option") -> str:
    """Return the drafter of an option as tables name it; plain decoding has none."""
    return "plain" if option.kind == "plain" else option.drafter.name


def drafter_name(option: "Option") -> str:
    """Return what drafts, in words."""
    if option.kind == "plain":
        return "plain decoding"
    return "the draft model" if option.drafter.name == "model" else option.drafter.name


def drafter_switch_lines(segments: "Sequence[Segment]") -> list[str]:
    """Return a line for every context length at which to switch; one that says so where none pays."""
    lines = [
        f"Of all drafters, switch at {after.context_tokens[0]} tokens of context: from {_named(before)} to {_named(after)}."
        for before, after in pairwise(segments)
    ]
    first, last = segments[0].context_tokens[0], segments[-1].context_tokens[1]
    return lines or [f"Of all drafters, from {first} to {last} tokens of context no switch pays."]


def _named(segment: "Segment") -> str:
    name = drafter_name(segment.option)
    return name if segment.option.kind == "plain" else f"{name}, {segment.option.shape}"


def _row(segment: "Segment") -> tuple[str, ...]:
    first, last = segment.context_tokens
    return (
        f"{first}-{last}" if last > first else str(first),
        segment.option.drafter.name,
        segment.option.shape,
        f"{segment.option.speedup.value:.2f}",
    )
