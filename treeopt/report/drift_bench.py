"""Streams that change, as a table and as JSON."""

import json
from collections.abc import Sequence

from treeopt.records.bench_heading import BenchHeading
from treeopt.records.drift import DriftStream, TimedStream
from treeopt.records.warnings import TextsOfStreamsDiffer
from treeopt.report.bench_heading import headed_rows

WAYS = ("fixed", "adapted", "learning", "best")
LEAST_GAIN = 0.02
"""Where the best plan gains less, a share of it says nothing."""


def drift_json(heading: BenchHeading, rows: Sequence[DriftStream]) -> str:
    """Return the streams as one JSON object that begins with what it is of, a stream a line.

    Of a stream it has tokens per second of every way, and text by text.
    """
    return headed_rows(heading, "streams", (json.dumps(_stream(row), ensure_ascii=False) for row in rows))


def _stream(row: DriftStream) -> dict[str, object]:
    ways: dict[str, TimedStream | None] = {way: getattr(row, way) for way in WAYS}
    found: dict[str, object] = {"name": row.name, "what": row.what}
    found |= {way: None if each is None else round(each.tokens_per_s(), 2) for way, each in ways.items()}
    if row.learning_missing is not None:
        found["learning_missing"] = row.learning_missing
    behind = {way: None if each is None else round(each.tokens_per_s(row.drift_text), 2) for way, each in ways.items()}
    return found | {
        "behind": behind,
        "gain": round(row.gain, 4),
        "adapted_gain": round(row.adapted_gain, 4),
        "share_of_gain": share_of_gain(row),
        "drift_text": row.drift_text,
        "planned": row.planned,
        "planned_behind": row.planned_behind,
        "identical": row.identical,
        "changes": [{"text": e.text, "why": e.why, "from": e.before, "to": e.after} for e in row.changes],
        "texts": {
            way: [[text.tokens, round(text.seconds, 6)] for text in each.texts]
            for way, each in ways.items()
            if each is not None
        },
    }


def share_of_gain(row: DriftStream) -> float | None:
    """Return which share of what the best plan gains re-calibration gets; None where there is nothing to gain."""
    return round(row.adapted_gain / row.gain, 3) if row.gain >= LEAST_GAIN else None


def drift_table(rows: Sequence[DriftStream]) -> str:
    """Return a line per stream, tokens per second behind its change, and below each what re-calibration did."""
    name = max(len("stream"), *(len(row.name) for row in rows))
    lines = [
        "tokens per second behind the change",
        "",
        f"{'stream':<{name}}{'fixed':>8}{'adapted':>9}{'learning':>10}{'best':>7}{'gain':>8}{'adapted':>9}{'share':>7}  texts",
    ]
    for row in rows:
        lines += [_line(row, name), f"  {row.what}; planned: {row.planned}, behind: {row.planned_behind}"]
        lines += [f"  text {each.text}: {each.before} -> {each.after} ({each.why})" for each in row.changes]
    missing = dict.fromkeys(row.learning_missing for row in rows if row.learning_missing)
    said = [f"learning: {each}" for each in missing]
    said += [str(TextsOfStreamsDiffer(differing))] if (differing := differing_streams(rows)) else []
    return "\n".join([*lines, *(["", *said] if said else [])])


def differing_streams(rows: Sequence[DriftStream]) -> int:
    """Return of how many streams the ways of decoding have different texts, which is a fault."""
    return sum(row.identical is False for row in rows)


def _line(row: DriftStream, name: int) -> str:
    rates = {way: getattr(row, way) for way in WAYS}
    shown = {way: "-" if each is None else f"{each.tokens_per_s(row.drift_text):.0f}" for way, each in rates.items()}
    share = share_of_gain(row)
    texts = {None: "sampled", True: "identical", False: "DIFFER"}[row.identical]
    return (
        f"{row.name:<{name}}{shown['fixed']:>8}{shown['adapted']:>9}{shown['learning']:>10}{shown['best']:>7}"
        f"{100 * row.gain:>6.1f} %{100 * row.adapted_gain:>7.1f} %{'-' if share is None else f'{share:.2f}':>7}  {texts}"
    )
