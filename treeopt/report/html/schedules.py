"""What to run where: strips over batch sizes and context lengths, of the draft model and of all drafters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from treeopt.planner import Schedule, Segment
from treeopt.report.drafter_contexts_text import drafter_name
from treeopt.report.html.plot import ROW, TOP, Plot
from treeopt.report.html.shapes import Entry, Figure, shape, shortened
from treeopt.report.html.tables import Table
from treeopt.report.text import range_text

CONTEXT = "tokens of context"
BETWEEN = "between measured conditions times lie on straight lines."
KINDS = ("tree", "chain", "plain")
OTHERS = ("s3", "s4", "s6")
"""Colours of drafters beside the draft model; further ones have them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A range in which one way to decode is the fastest, both ends included."""

    ends: tuple[int, int]
    colour: str
    short: str
    """What stands in it where there is room."""
    said: str
    """What the pointer is told."""


def schedules(schedule: Schedule) -> tuple[list[Figure], Table]:
    """Return what to run where, over batch sizes and over context lengths, and all segments as rows."""
    figures = []
    if any(each.batch_sizes[0] != each.batch_sizes[1] for each in schedule.over_batch_sizes):
        figures.append(
            _segments("batches", "What to run, over batch sizes", schedule.over_batch_sizes, across_batches=True)
        )
    if any(each.context_tokens[0] != each.context_tokens[1] for each in schedule.over_contexts):
        figures.append(
            _segments("contexts", "What to run, over context lengths", schedule.over_contexts, across_batches=False)
        )
    rows = tuple(
        (
            each.option.rule,
            each.temperature,
            range_text(each.batch_sizes),
            range_text(each.context_tokens),
            each.option.shape,
            each.option.speedup.value,
            each.option.speedup.low,
            each.option.speedup.high,
        )
        for each in (*schedule.over_batch_sizes, *schedule.over_contexts)
    )
    header = ("rule", "temperature", "batch", "context", "run", "speedup at the start", "low", "high")
    return figures, Table(name="schedule", title="What to run where", header=header, rows=rows)


def drafters_over_contexts(segments: Sequence[Segment], temperature: float) -> tuple[Figure, Table]:
    """Return which of all drafters to run over context lengths at a temperature, and all segments as rows."""
    others, colours = cycle(OTHERS), {"plain decoding": "plain", "the draft model": "tree"}
    names = [drafter_name(each.option) for each in segments]
    for name in names:
        colours[name] = colours.get(name) or next(others)
    drawn = [
        Strip(
            ends=each.context_tokens,
            colour=colours[name],
            short=shortened(name, 20),
            said=f"{CONTEXT} {range_text(each.context_tokens)}: {name}, {each.option.shape}, rule {each.option.rule}, "
            f"{each.option.speedup.value:.2f} times plain at the start",
        )
        for name, each in zip(names, segments, strict=True)
    ]
    figure = _strips(
        "drafter-contexts",
        "Of all drafters, over context lengths",
        f"The fastest of all drafters for single texts, each at its best, and where to switch; {BETWEEN}",
        CONTEXT,
        {f"batch of 1, temperature {temperature:g}": drawn},
        tuple(Entry("cell45", colours[name], shortened(name, 40)) for name in dict.fromkeys(names)),
    )
    rows = tuple(
        (
            range_text(each.context_tokens),
            each.option.drafter.name,
            each.option.shape,
            each.option.rule,
            each.option.speedup.value,
        )
        for each in segments
    )
    header = ("context", "drafter", "setting", "rule", "speedup at the start")
    return figure, Table(
        name="drafter-contexts", title="Of all drafters, over context lengths", header=header, rows=rows
    )


def _segments(name: str, title: str, segments: Sequence[Segment], *, across_batches: bool) -> Figure:
    """Return a row of strips for every temperature, and context length or batch size across which nothing changes."""
    x_name = "batch size" if across_batches else CONTEXT
    rows: dict[tuple[float, int], list[Strip]] = {}
    for each in segments:
        ends, (other, _) = each.batch_sizes, each.context_tokens
        if not across_batches:
            ends, (other, _) = each.context_tokens, each.batch_sizes
        rows.setdefault((each.temperature, other), []).append(_strip(each, ends, x_name))
    where = "{} tokens of context" if across_batches else "batch of {}"
    kinds = {each.option.kind for each in segments}
    return _strips(
        name,
        title,
        f"The fastest way to decode, and where to switch; {BETWEEN}",
        x_name,
        {f"{where.format(other)}, temperature {warmth:g}": rows[warmth, other] for warmth, other in sorted(rows)},
        tuple(
            Entry("cell45", kind, f"{kind}{'' if kind == 'plain' else ' nodes/depth'}")
            for kind in KINDS
            if kind in kinds
        ),
    )


def _strip(segment: Segment, ends: tuple[int, int], x_name: str) -> Strip:
    option = segment.option
    size = "" if option.kind == "plain" else f" {option.tree.nodes}/{option.tree.max_depth}"
    return Strip(
        ends=ends,
        colour=option.kind,
        short=f"{option.kind}{size}",
        said=f"{x_name} {range_text(ends)}: {option.shape}, rule {option.rule}, {option.speedup.value:.2f} times plain",
    )


def _strips(
    name: str, title: str, caption: str, x_name: str, rows: Mapping[str, Sequence[Strip]], legend: tuple[Entry, ...]
) -> Figure:
    """Return strips in rows below their names."""
    ends = [each.ends for row in rows.values() for each in row]
    low, high = min(first for first, _ in ends), max(last for _, last in ends) + 1
    plot = Plot.of_rows((low, high), x_name, len(rows), base=2)
    for place, (row_name, row) in enumerate(rows.items()):
        top = TOP + ROW * place
        plot.row_name(place, row_name)
        for each in row:
            left, right = plot.x(each.ends[0]), plot.x(each.ends[1] + 1)
            width = max(1.0, right - left - 1)
            plot.add(shape("rect", f"strip {each.colour}", x=left, y=top + 15, width=width, height=15, title=each.said))
            if right - left > 7.0 * len(each.short):
                plot.add(shape("text", "inside middle", x=(left + right) / 2, y=top + 26.5, text=each.short))
    return plot.figure(name=name, title=title, caption=caption, legend=legend)
