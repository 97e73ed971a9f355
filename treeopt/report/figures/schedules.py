"""What to run where: strips over batch sizes and context lengths, of the draft model and of all drafters."""

from collections.abc import Sequence
from itertools import cycle

from treeopt.pictures.panels import Panel
from treeopt.pictures.style import CHAIN, GREEN, PLAIN, PURPLE, SKY, TREE
from treeopt.planner import Schedule, Segment
from treeopt.report.drafter_contexts_text import drafter_name
from treeopt.report.figures.rows import Strip, strips_panel
from treeopt.report.text import range_text

CONTEXT = "tokens of context"
COLOURS = {"tree": TREE, "chain": CHAIN, "plain": PLAIN, "setting": GREEN}


def schedule_panels(schedule: Schedule) -> list[Panel]:
    """Return the fastest options over batch sizes and over context lengths, where several were measured."""
    panels = []
    if any(each.batch_sizes[0] != each.batch_sizes[1] for each in schedule.over_batch_sizes):
        panels.append(_panel("What to run, over batch sizes", schedule.over_batch_sizes, across_batches=True))
    if any(each.context_tokens[0] != each.context_tokens[1] for each in schedule.over_contexts):
        panels.append(_panel("What to run, over context lengths", schedule.over_contexts, across_batches=False))
    return panels


def drafters_panel(segments: Sequence[Segment], temperature: float) -> Panel:
    """Return the fastest of all drafters over context lengths."""
    others, colours = cycle((GREEN, SKY, PURPLE)), {"plain decoding": PLAIN, "the draft model": TREE}
    names = [drafter_name(each.option) for each in segments]
    for name in names:
        colours[name] = colours.get(name) or next(others)
    strips = [
        Strip(
            ends=each.context_tokens,
            colour=colours[name],
            group=name,
            short=name,
            tip=f"{CONTEXT} {range_text(each.context_tokens)}: {name}, {each.option.shape}, rule {each.option.rule}, "
            f"{each.option.speedup.value:.2f} times plain decoding at the start",
        )
        for name, each in zip(names, segments, strict=True)
    ]
    rows = {f"batch of 1, temperature {temperature:g}": strips}
    return strips_panel(rows, "Of all drafters, over context lengths", CONTEXT)


def _panel(title: str, segments: Sequence[Segment], *, across_batches: bool) -> Panel:
    """Return a row of strips for every temperature, and context length or batch size across which nothing changes."""
    x = "batch size, sequences" if across_batches else CONTEXT
    rows: dict[tuple[float, int], list[Strip]] = {}
    for each in segments:
        ends, (other, _) = each.batch_sizes, each.context_tokens
        if not across_batches:
            ends, other = each.context_tokens, each.batch_sizes[0]
        rows.setdefault((each.temperature, other), []).append(_strip(each, ends, x))
    where = "{} tokens of context" if across_batches else "batch of {}"
    named = {f"{where.format(other)}, temperature {warmth:g}": rows[warmth, other] for warmth, other in sorted(rows)}
    return strips_panel(named, title, x)


def _strip(segment: Segment, ends: tuple[int, int], x: str) -> Strip:
    option = segment.option
    size = "" if option.kind == "plain" else f" {option.tree.nodes}/{option.tree.max_depth}"
    return Strip(
        ends=ends,
        colour=COLOURS[option.kind],
        group=option.kind if option.kind == "plain" else f"{option.kind} nodes/depth",
        short=f"{option.kind}{size}",
        tip=f"{x} {range_text(ends)}: {option.shape}, rule {option.rule}, {option.speedup.value:.2f} times plain decoding",
    )
