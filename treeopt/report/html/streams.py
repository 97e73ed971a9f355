"""Figures of streams that change: tokens per second text by text, of every way of decoding."""

from collections.abc import Sequence
from itertools import accumulate, groupby

from treeopt.records.drift import DriftStream, TimedStream, TimedText, TreeChange
from treeopt.report.drift_bench import WAYS, share_of_gain
from treeopt.report.html.plot import Plot
from treeopt.report.html.shapes import Entry, Figure, shape, shortened
from treeopt.report.html.tables import Table, Value
from treeopt.report.text import counted

NAMES = {"fixed": "plan made before", "adapted": "re-calibrated", "learning": "learning", "best": "plan made behind"}
COLOURS = {"fixed": "plain", "adapted": "tree", "learning": "s3", "best": "chain"}
TEXTS = {None: "sampled, not compared", True: "identical", False: "DIFFER"}
MOST_POINTS = 100
"""Of a line; longer streams have several texts to the point."""
MOST_CHANGES = 100
"""Marked in a figure; the table has all."""


def figure(name: str, row: DriftStream) -> Figure:
    """Return one stream: a line for each way, where it changes, and where re-calibration changed the tree."""
    ways = [(way, timed) for way in WAYS if (timed := _way(row, way)) is not None]
    every = -(-len(row.fixed.texts) // MOST_POINTS)
    lines = {way: _points(timed, every) for way, timed in ways}
    fastest = max(rate for points in lines.values() for _, rate in points)
    longest = max(points[-1][0] for points in lines.values())
    plot = Plot((0.0, 1.02 * longest), (0.0, 1.08 * fastest), ("tokens of the stream", "tokens per second"))
    if row.drift_text:
        before = sum(text.tokens for text in row.fixed.texts[: row.drift_text])
        plot.line([(before, 0.0), (before, 1.08 * fastest)], "ink dashed", title=f"behind: {shortened(row.what)}")
    for way, points in lines.items():
        plot.line(points, COLOURS[way])
        for place, (tokens, rate) in enumerate(points):
            texts = f"text {place}" if every == 1 else f"{every} texts up to {tokens:.0f} tokens"
            plot.dot(tokens, rate, COLOURS[way], f"{texts}, {NAMES[way]}: {rate:.0f} tokens per second", 2.4)
    changes = _by_text(row.changes)
    for text, group in changes[:MOST_CHANGES]:
        tokens = sum(each.tokens for each in row.adapted.texts[:text])
        x, y = plot.x(tokens), plot.y(0.0)
        said = "; ".join(f"{shortened(each.before)} → {shortened(each.after)}: {shortened(each.why)}" for each in group)
        plot.add(
            shape(
                "path",
                "mark mark-tree",
                d=f"M{x:.1f} {y - 9:.1f}L{x + 5:.1f} {y:.1f}H{x - 5:.1f}Z",
                title=f"text {text}: {said}",
            )
        )
    legend = [Entry("line", COLOURS[way], NAMES[way]) for way, _ in ways]
    legend += [Entry("dashed", "ink", "the change")] if row.drift_text else []
    legend += [Entry("triangle", "mark-tree", "re-calibration changed the tree")] if changes else []
    merged = f" A point is of {every} texts." if every > 1 else ""
    return plot.figure(
        name=name,
        title=shortened(row.name),
        caption=f"Tokens per second, text by text; {shortened(row.what)}. Planned before: {shortened(row.planned)}; behind: "
        f"{shortened(row.planned_behind)}.{merged}",
        legend=tuple(legend),
    )


def tables(name: str, label: str, rows: Sequence[DriftStream]) -> tuple[Table, ...]:
    """Return gains, changes of trees with their reasons where there are any, and every text."""
    of = shortened(label, 50)
    gains = Table(
        name=name,
        title=f"Gains in streams that change {of}",
        header=(
            *("stream", "what changes", "planned", "planned behind", "change at text"),
            *(f"{NAMES[way]}, tokens/s behind" for way in WAYS),
            *("gain, %", "re-calibrated gain, %", "share of gain", "texts"),
        ),
        rows=tuple(_gain(row) for row in rows),
    )
    changes = Table(
        name=f"{name}-changes",
        title=f"Changes of the tree {of}",
        header=("stream", "text", "from", "to", "why"),
        rows=tuple((row.name, each.text, each.before, each.after, each.why) for row in rows for each in row.changes),
    )
    texts = Table(
        name=f"{name}-texts",
        title=f"Texts of the streams {of}",
        header=("stream", "way", "text", "tokens", "seconds"),
        rows=tuple(
            (row.name, NAMES[way], place, text.tokens, text.seconds)
            for row in rows
            for way in WAYS
            if (timed := _way(row, way)) is not None
            for place, text in enumerate(timed.texts)
        ),
    )
    return (gains, *([changes] if changes.rows else []), texts)


def in_words(row: DriftStream) -> str:
    """Return what re-calibration gets of what there is to gain, in a sentence."""
    share = share_of_gain(row)
    of = "" if share is None else f", {share:.2f} of it"
    where = "Behind the change" if row.drift_text else "With nothing that changes"
    return (
        f"{shortened(row.name)}: {where[0].lower()}{where[1:]} the best plan gains {100 * row.gain:.1f} %, re-calibration "
        f"{100 * row.adapted_gain:.1f} %{of}; {counted(len(row.changes), 'change')} of the tree, texts {TEXTS[row.identical]}."
    )


def missing(rows: Sequence[DriftStream]) -> list[str]:
    """Return why nothing learns, each reason once."""
    return list(
        dict.fromkeys(f"No draft learns: {shortened(each, 300)}" for row in rows if (each := row.learning_missing))
    )


def _way(row: DriftStream, way: str) -> TimedStream | None:
    found: TimedStream | None = getattr(row, way)
    return found


def _points(timed: TimedStream, every: int) -> list[tuple[float, float]]:
    """Return tokens of the stream and tokens per second, of so many texts to the point."""
    groups = [timed.texts[first : first + every] for first in range(0, len(timed.texts), every)]
    ends = accumulate(_tokens(group) for group in groups)
    return [
        (float(end), _tokens(group) / sum(text.seconds for text in group))
        for end, group in zip(ends, groups, strict=True)
    ]


def _tokens(texts: Sequence[TimedText]) -> int:
    return sum(text.tokens for text in texts)


def _by_text(changes: Sequence[TreeChange]) -> list[tuple[int, list[TreeChange]]]:
    found = groupby(sorted(changes, key=lambda each: each.text), key=lambda each: each.text)
    return [(text, list(group)) for text, group in found]


def _gain(row: DriftStream) -> tuple[Value, ...]:
    rates = [None if (timed := _way(row, way)) is None else timed.tokens_per_s(row.drift_text) for way in WAYS]
    return (
        *(row.name, row.what, row.planned, row.planned_behind, row.drift_text or None, *rates),
        *(100 * row.gain, 100 * row.adapted_gain, share_of_gain(row), TEXTS[row.identical]),
    )
