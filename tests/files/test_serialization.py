"""Records are written and read again as their annotations say, and errors name the wrong field."""

from dataclasses import dataclass, field

import pytest

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.serialization import in_file, read_record, serialize_record


@dataclass(frozen=True, kw_only=True)
class Point:
    x: float = field(default=0.0, metadata=in_file(least=-1.0, most=1.0))
    count: int | None

    def __post_init__(self) -> None:
        if self.count == 13:
            raise InvalidValueError("expected another.", field="count")
        if self.x == 0.5:
            raise InvalidValueError("expected another.")


@dataclass(frozen=True)
class Row:
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    name: str
    best: Point | None = None
    points: tuple[Point, ...] = ()
    row: Row
    beside: Row = field(metadata=in_file(inline=True))
    closed: bool | None = None
    smooth: bool | None
    filled: bool = field(default=False, metadata=in_file(optional=True))
    marks: tuple[Point, ...] = field(default=(Point(count=9),), metadata=in_file(may_be_empty=True, optional=True))
    sizes: tuple[float, ...] = ()
    width: int = field(default=3, metadata=in_file("breadth", least=0, optional=True))
    sign: int = field(default=1, metadata=in_file(read=lambda fields, name: -fields.integer(name), write=lambda x: -x))


@dataclass(frozen=True, kw_only=True)
class NamedPoint:
    name: str
    point: Point = field(metadata=in_file(inline=True))


LEAST = Drawing(name="a", smooth=None, row=Row((1.0,)), beside=Row((2.0,)), sign=-1)
FULL = Drawing(
    name="a",
    best=Point(x=1.0, count=None),
    points=(Point(count=1), Point(x=-1.0, count=2)),
    row=Row((1.0,)),
    beside=Row(()),
    closed=True,
    smooth=False,
    filled=True,
    marks=(),
    sizes=(0.5, 2.0),
    width=0,
    sign=-7,
)


@pytest.mark.parametrize("drawing", [LEAST, FULL])
def test_what_is_written_is_read(drawing):
    assert read_record(Fields("file", serialize_record(drawing)), Drawing) == drawing


def test_file_content():
    assert serialize_record(LEAST) == {"name": "a", "row": {"values": [1.0]}, "values": [2.0], "sign": 1}
    names = [
        "name",
        "best",
        "points",
        "row",
        "values",
        "closed",
        "smooth",
        "filled",
        "marks",
        "sizes",
        "breadth",
        "sign",
    ]
    assert list(serialize_record(FULL)) == names
    assert serialize_record(FULL)["points"] == [{"x": 0.0, "count": 1}, {"x": -1.0, "count": 2}]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"name": None}, "name: is missing"),
        ({"row": None}, "row: is missing"),
        ({"sign": None}, "sign: is missing"),
        ({"best": {"count": 1}}, "best.x: is missing"),
        ({"best": {"x": 2, "count": 1}}, "best.x: expected a number from -1 to 1"),
        ({"points": [{"x": 0.0}, {"x": 0.0, "count": 0}]}, r"points\[1\].count: expected a whole number of at least 1"),
        ({"points": []}, "points: expected a list of at least one"),
        ({"best": {"x": 0.0, "count": 13}}, "best.count: expected another"),
        ({"best": {"x": 0.5}}, "best.x: expected another"),
        ({"row": {"values": [], "more": 1}}, "row.more: unknown field"),
        ({"more": 1}, "more: unknown field"),
        ({"breadth": -1}, "breadth: expected a whole number of at least 0"),
        ({"closed": False}, "closed: expected true, or no such field"),
        ({"smooth": 0}, "smooth: expected true or false"),
        ({"filled": False}, "filled: expected true, or no such field"),
        ({"sizes": ["1"]}, "sizes: expected a list of finite numbers"),
        ({"name": "\x1b"}, "name: expected printable text"),
    ],
)
def test_each_wrong_field_is_named(changes, wrong):
    content = {name: value for name, value in (serialize_record(LEAST) | changes).items() if value is not None}
    with pytest.raises(FormatError, match=f"^file: {wrong}"):
        read_record(Fields("file", content), Drawing)


def test_inline_record_has_its_fields_among_the_others():
    named, content = NamedPoint(name="a", point=Point(x=1.0, count=2)), {"name": "a", "x": 1.0, "count": 2}
    assert serialize_record(named) == content
    assert read_record(Fields("file", content), NamedPoint) == named
    for changes, wrong in (({"count": 13}, "count: expected another"), ({"more": 1}, "more: unknown field")):
        with pytest.raises(FormatError, match=f"^file: {wrong}"):
            read_record(Fields("file", content | changes), NamedPoint)


def test_control_characters_are_escaped():
    assert serialize_record(Drawing(name="\x1b", smooth=True, row=Row(()), beside=Row(())))["name"] == "\\x1b"
