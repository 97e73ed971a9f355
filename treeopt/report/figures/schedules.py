"""Schedules as strips over batch sizes and context lengths, of the draft model and of all drafters."""

from collections.abc import Sequence
from itertools import cycle

from treeopt.planner import Schedule, Segment
from treeopt.plotting.panels import Panel
from treeopt.plotting.style import CHAIN, GREEN, PLAIN, PURPLE, SKY, TREE
from treeopt.report.drafters_text import drafter_name
from treeopt.report.figures.rows import Strip, strips_panel
from treeopt.report.text import range_text

CONTEXT = "tokens of context"
COLOURS = {"tree": TREE, "chain": CHAIN, "plain": PLAIN, "setting": GREEN}


def schedule_panels(schedule: Schedule) -> list[Panel]:
    """Return the fastest options over batch sizes and over context lengths, if several were measured."""
    panels = []
    if any(segment.batch_sizes[0] != segment.batch_sizes[1] for segment in schedule.over_batch_sizes):
        panels.append(_panel("What to run, over batch sizes", schedule.over_batch_sizes, across_batches=True))
    if any(segment.context_tokens[0] != segment.context_tokens[1] for segment in schedule.over_contexts):
        panels.append(_panel("What to run, over context lengths", schedule.over_contexts, across_batches=False))
    return panels


def drafters_panel(segments: Sequence[Segment], temperature: float) -> Panel:
    """Return the fastest of all drafters over context lengths."""
    others, colours = cycle((GREEN, SKY, PURPLE)), {"plain decoding": PLAIN, "the draft model": TREE}
    names = [drafter_name(segment.option) for segment in segments]
    for name in names:
        colours[name] = colours.get(name) or next(others)
    strips = [
        Strip(
            ends=segment.context_tokens,
            colour=colours[name],
            group=name,
            short=name,
            tooltip=f"{CONTEXT} {range_text(segment.context_tokens)}: {name}, {segment.option.shape}, rule {segment.option.rule}, "
            f"{segment.option.speedup.value:.2f}x plain decoding at the start",
        )
        for name, segment in zip(names, segments, strict=True)
    ]
    rows = {f"batch of 1, temperature {temperature:g}": strips}
    return strips_panel(rows, "All drafters, over context lengths", CONTEXT)


def _panel(title: str, segments: Sequence[Segment], *, across_batches: bool) -> Panel:
    """Return a row of strips for every temperature, and for every context length or batch size."""
    x = "batch size, sequences" if across_batches else CONTEXT
    rows: dict[tuple[float, int], list[Strip]] = {}
    for segment in segments:
        ends, (fixed, _) = segment.batch_sizes, segment.context_tokens
        if not across_batches:
            ends, fixed = segment.context_tokens, segment.batch_sizes[0]
        rows.setdefault((segment.temperature, fixed), []).append(_strip(segment, ends, x))
    name = "{} tokens of context" if across_batches else "batch of {}"
    named_rows = {
        f"{name.format(fixed)}, temperature {temperature:g}": rows[temperature, fixed]
        for temperature, fixed in sorted(rows)
    }
    return strips_panel(named_rows, title, x)


def _strip(segment: Segment, ends: tuple[int, int], x: str) -> Strip:
    option = segment.option
    size = "" if option.kind == "plain" else f" {option.tree.nodes}/{option.tree.max_depth}"
    return Strip(
        ends=ends,
        colour=COLOURS[option.kind],
        group=option.kind if option.kind == "plain" else f"{option.kind} nodes/depth",
        short=f"{option.kind}{size}",
        tooltip=f"{x} {range_text(ends)}: {option.shape}, rule {option.rule}, {option.speedup.value:.2f}x plain decoding",
    )
