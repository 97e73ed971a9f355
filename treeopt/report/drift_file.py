"""Reading what `treeopt bench --drift --output` wrote."""

from treeopt.files.fields import Fields
from treeopt.records.drift import DriftStream, DriftStreams, TimedStream, TimedText, TreeChange
from treeopt.report.bench_fields import LEAST, MOST, flag_or_none, follows, follows_nearly, listed
from treeopt.report.drift_bench import WAYS

ROUNDED = 0.005
"""How far a rate may be from that of its texts, whose seconds are rounded; relative, and of gains absolute."""


def read_drift_bench(fields: Fields) -> DriftStreams:
    """Return streams that change; rates and gains have to agree with the tokens and seconds of the texts.

    Raises FormatError naming the file, the field and the reason.
    """
    return DriftStreams(streams=tuple(_stream(each) for each in fields.mappings("streams")))


def _stream(fields: Fields) -> DriftStream:
    texts = fields.mapping("texts")
    ways = {way: _timed(texts, way) for way in WAYS if way != "learning" or way in texts}
    texts.end()
    count = len(ways["fixed"].texts)
    if any(len(each.texts) != count for each in ways.values()):
        raise fields.error("texts", "expected as many texts of every way.")
    found = DriftStream(
        name=fields.text("name"),
        what=fields.text("what"),
        drift_text=_place(fields, "drift_text", count),
        fixed=ways["fixed"],
        adapted=ways["adapted"],
        best=ways["best"],
        learning=ways.get("learning"),
        learning_missing=fields.text("learning_missing") if "learning_missing" in fields else None,
        planned=fields.text("planned"),
        planned_behind=fields.text("planned_behind"),
        changes=tuple(_change(each, count) for each in listed(fields, "changes")),
        identical=flag_or_none(fields, "identical"),
    )
    _check_rates(fields, found)
    fields.end()
    return found


def _check_rates(fields: Fields, found: DriftStream) -> None:
    """Refuse rates and gains that are not those of the texts."""
    behind = fields.mapping("behind")
    for way in WAYS:
        timed: TimedStream | None = getattr(found, way)
        for place, first in ((fields, 0), (behind, found.drift_text)):
            if timed is None:
                follows(place, way, None)
            else:
                follows_nearly(place, way, timed.tokens_per_s(first), relative=ROUNDED, least=0.01)
    behind.end()
    follows_nearly(fields, "gain", found.gain, relative=ROUNDED, least=ROUNDED)
    follows_nearly(fields, "adapted_gain", found.adapted_gain, relative=ROUNDED, least=ROUNDED)
    if fields.peek("share_of_gain") is None:
        follows(fields, "share_of_gain", None)
    else:
        fields.number("share_of_gain", least=-MOST, most=MOST)


def _timed(fields: Fields, way: str) -> TimedStream:
    pairs = fields.rows(way)
    if not pairs or not all(len(each) == 2 and 1 <= each[0] <= MOST and LEAST <= each[1] <= MOST for each in pairs):
        raise fields.error(way, "expected at least one pair of tokens, 1 or more, and seconds above 0.")
    return TimedStream(texts=tuple(TimedText(tokens=int(tokens), seconds=seconds) for tokens, seconds in pairs))


def _change(fields: Fields, count: int) -> TreeChange:
    found = TreeChange(
        text=_place(fields, "text", count),
        why=fields.text("why"),
        before=fields.text("from"),
        after=fields.text("to"),
    )
    fields.end()
    return found


def _place(fields: Fields, name: str, count: int) -> int:
    found = fields.integer(name, least=0)
    if found >= count:
        raise fields.error(name, f"expected the number of a text, below {count}. Got {found}.")
    return found
