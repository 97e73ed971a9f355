"""The figure of a curve: seconds of passes over tokens, as measured and as planned with."""

from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Float64
from treeopt.records.latency import LatencyTable
from treeopt.report.html.plot import Plot, around
from treeopt.report.html.shapes import Entry, Figure
from treeopt.report.text import counted, milliseconds

MOST_SAMPLES = 4000
"""Dots of a figure; of more every second one is drawn, or fewer."""
MS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Times over tokens."""

    name: str
    title: str
    caption: str
    planned_s: Float64
    """(counts + 1,): as planned with; entry 0 is 0."""
    measured: tuple[LatencyTable, ...]
    """What is planned with."""
    others: tuple[tuple[str, LatencyTable], ...]
    """Other conditions under their names."""
    colour: str
    mark: int | None = None
    """Tokens of the choice's pass."""


def drawn(curve: Curve) -> Figure:
    """Return the figure: samples, medians with intervals, the line planned with, and other conditions pale."""
    planned_s, tables, others = curve.planned_s, curve.measured, curve.others
    colour, mark = curve.colour, curve.mark
    most = max(2, *(table.max_tokens for table in tables))
    seen = [MS * float(each) for table in (*tables, *(o for _, o in others)) for each in table.medians_s]
    seen += [MS * end for table in tables for timing in table.timings for end in timing.interval_s]
    plot = Plot((1, most), around([each for each in seen if each > 0] or [1.0]), ("tokens", "ms"), bases=(2, 10))
    for label, table in others:
        points = [(float(t), MS * float(s)) for t, s in zip(table.tokens, table.medians_s, strict=True) if t <= most]
        plot.line(points, "other", title=label)
    counts = [count for count in range(1, min(len(planned_s), most + 1)) if planned_s[count] > 0]
    plot.line([(count, MS * float(planned_s[count])) for count in _thinned(counts)], colour)
    beyond = sum([_measured(plot, table, colour) for table in tables])
    if mark is not None and mark < len(planned_s) and mark <= most:
        plot.star(mark, MS * float(planned_s[mark]), f"the choice verifies {mark} tokens")
    legend = [Entry("dot", colour, "measured median, 95 % interval"), Entry("line", colour, "planned with")]
    legend += [Entry("line", "other", "other conditions")] if others else []
    legend += [Entry("star", "choice", "the choice")] if mark is not None else []
    return plot.figure(
        name=curve.name,
        title=curve.title,
        caption=curve.caption + (f" Beyond the axis: {counted(beyond, 'sample')}." if beyond else ""),
        legend=tuple(legend),
    )


def _measured(plot: Plot, table: LatencyTable, colour: str) -> int:
    """Draw samples and medians of a table; return how many samples lie beyond the axis."""
    low, high = plot.y.low, plot.y.high
    samples = [
        (float(tokens), MS * float(each))
        for tokens, timing in zip(table.tokens, table.timings, strict=True)
        for each in timing.samples_s
        if low <= MS * each <= high
    ]
    plot.dots(samples[:: -(-len(samples) // MOST_SAMPLES) or 1], "sample")
    for tokens, timing in zip(table.tokens.tolist(), table.timings, strict=True):
        start, end = timing.interval_s
        if timing.median_s <= 0:
            continue
        plot.interval(tokens, max(low, MS * start), MS * end, colour)
        said = f"{tokens} tokens: {milliseconds(timing.median_s)} ms ({milliseconds(start)} to {milliseconds(end)}), {len(timing.samples_s)} samples"
        plot.dot(tokens, MS * timing.median_s, colour, said, radius=3.2)
    return sum(len(timing.samples_s) for timing in table.timings) - len(samples)


def _thinned(counts: list[int], most: int = 256) -> list[int]:
    """Return some of rising counts, close together where they are small."""
    if len(counts) <= most:
        return counts
    places = np.unique(np.geomspace(1, len(counts), most).round().astype(int)) - 1
    return [counts[place] for place in places]
