"""The fastest of all drafters by context length as `treeopt solve` prints it, and where to switch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.report.table import Column, aligned

if TYPE_CHECKING:
    from treeopt.planner.drafters import DrafterChoice
    from treeopt.planner.drafters_over_contexts import DrafterSegment

HEADER = ("context", "drafter", "setting", "speedup at the start")


def drafter_contexts_text(segments: "Sequence[DrafterSegment]") -> str:
    """Return a line for every range of contexts, and one for every place at which to switch."""
    rows = [HEADER, *(_row(each) for each in segments)]
    table = "\n".join(aligned(rows, [Column(gap=3)] * len(HEADER)))
    return f"Of all drafters, by context length:\n\n{table}\n\n" + "\n".join(drafter_switch_lines(segments))


def drafter_name(choice: "DrafterChoice") -> str:
    """Return what drafts, in words."""
    if choice.nodes == 1:
        return "plain decoding"
    return "the draft model" if choice.setting.name == "model" else choice.setting.name


def drafter_switch_lines(segments: "Sequence[DrafterSegment]") -> list[str]:
    """Return a line for every context length at which to switch; one that says so where none pays."""
    from treeopt.planner.drafters_over_contexts import drafter_switches

    lines = [
        f"Of all drafters, switch at {after.context_tokens[0]} tokens of context: from {_named(before)} to {_named(after)}."
        for before, after in drafter_switches(segments)
    ]
    first, last = segments[0].context_tokens[0], segments[-1].context_tokens[1]
    return lines or [f"Of all drafters, from {first} to {last} tokens of context no switch pays."]


def _named(segment: "DrafterSegment") -> str:
    name = drafter_name(segment.choice)
    return name if segment.choice.nodes == 1 else f"{name}, {segment.choice.shape}"


def _row(segment: "DrafterSegment") -> tuple[str, ...]:
    first, last = segment.context_tokens
    choice = segment.choice
    return (
        f"{first}-{last}" if last > first else str(first),
        choice.setting.name,
        choice.shape,
        f"{segment.speedup:.2f}",
    )
