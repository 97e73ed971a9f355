"""Records to and from the fields of a file, as their annotations say: the name, type and bounds of a field stand once.

A dataclass is a mapping with a field for each of its own.  What may be None or is an empty tuple is left out of the
file; every other field has to be there, unless `in_file` says otherwise.  A type that has no such form brings its own:
`from_fields`, which makes one of the fields of a mapping, and `to_fields`, which gives them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Any, Protocol, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints, runtime_checkable

from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError, printable
from treeopt.files.fields import Fields

T = TypeVar("T")
_KEY = "in file"
Read = Callable[[Fields, str], Any]
Write = Callable[[Any], Any]


@runtime_checkable
class HasForm(Protocol):
    """What says itself how it stands in a file."""

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Return one, read from the fields of a mapping; other fields are left."""
        ...

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that it stands as."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How one field of a record stands in a file."""

    field: str
    name: str
    read: Read
    write: Write
    inline: bool
    absent: tuple[Any, ...]
    """Values that are said by leaving the field out; empty where it has to be there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a record says of one field beside its annotation."""

    name: str | None = None
    read: Read | None = None
    write: Write | None = None
    inline: bool = False
    optional: bool = False
    bounds: dict[str, Any] = dataclasses.field(default_factory=dict)


def in_file(
    name: str | None = None,
    *,
    read: Read | None = None,
    write: Write | None = None,
    inline: bool = False,
    optional: bool = False,
    **bounds: float,
) -> dict[str, Any]:
    """Return the metadata of a dataclass's field that stands in files otherwise than its annotation says.

    Args:
        name: of the field in the file.
        read: makes the value of a mapping and the field's name there.
        write: makes what stands in the file of the value.
        inline: the value's own fields stand beside the record's, not in a mapping of their own.
        optional: the default is said by leaving the field out.
        bounds: `least` and `most` of a number.
    """
    return {_KEY: _Said(name=name, read=read, write=write, inline=inline, optional=optional, bounds=bounds)}


def read_record(fields: Fields, kind: type[T]) -> T:
    """Return the record that a mapping of a file holds; every field of the mapping is one of the record's.

    Raises FormatError naming the file, the field and the reason.
    """
    values: dict[str, Any] = {}
    for form in _forms(cast("Any", kind)):
        if form.inline or form.name in fields or not form.absent:
            values[form.field] = form.read(fields, form.name)
        else:
            values[form.field] = form.absent[0]
    fields.end()
    try:
        return kind(**values)
    except InvalidValueError as error:
        raise fields.error(error.field or _forms(cast("Any", kind))[0].name, str(error)) from None


def written_record(record: object) -> dict[str, Any]:
    """Return a record as the fields that it has in a file, in the order of its own."""
    content: dict[str, Any] = {}
    for form in _forms(cast("Any", type(record))):
        value = getattr(record, form.field)
        if form.inline:
            content |= form.write(value)
        elif not any(value is absent or value == absent for absent in form.absent):
            content[form.name] = form.write(value)
    return content


@cache
def _forms(kind: Any) -> tuple[_Form, ...]:
    """Return the forms of a dataclass's fields, in their order."""
    hints = get_type_hints(kind)
    return tuple(_form(field, hints[field.name]) for field in dataclasses.fields(kind) if field.init)


def _form(field: dataclasses.Field[Any], hint: Any) -> _Form:
    said: _Said = field.metadata.get(_KEY, _Said())
    may_be_none = get_origin(hint) in (Union, UnionType)
    (kind,) = [each for each in get_args(hint) if each is not NoneType] if may_be_none else [hint]
    read, write = _inline(kind) if said.inline else _by_type(kind, said.bounds)
    absent: tuple[Any, ...] = (None,) if may_be_none else ()
    if field.default == () or said.optional:
        absent = (field.default,)
    return _Form(
        field=field.name,
        name=said.name or field.name,
        read=said.read or read,
        write=said.write or write,
        inline=said.inline,
        absent=absent,
    )


def _inline(kind: type[HasForm]) -> tuple[Read, Write]:
    """Return how a value is read of the fields beside it, and written among them."""
    return lambda fields, _: kind.from_fields(fields), _written


def _by_type(kind: Any, bounds: dict[str, Any]) -> tuple[Read, Write]:
    """Return how a value of a type is read and written."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return lambda fields, name: tuple(_read(each, item) for each in fields.mappings(name)), _all_written
    if kind is str:
        return lambda fields, name: fields.text(name), printable
    if kind is bool:
        return lambda fields, name: fields.true(name), bool
    if kind is int:
        return lambda fields, name: fields.integer(name, **bounds), int
    if kind is float:
        return lambda fields, name: fields.number(name, **bounds), _same
    return lambda fields, name: _read(fields.mapping(name), kind), _written


def _read(fields: Fields, kind: Any) -> Any:
    """Return a value that stands as a mapping of its own."""
    if not issubclass(kind, HasForm):
        return read_record(fields, kind)
    value = cast("type[HasForm]", kind).from_fields(fields)
    fields.end()
    return value


def _written(value: Any) -> dict[str, Any]:
    return value.to_fields() if isinstance(value, HasForm) else written_record(value)


def _all_written(values: Iterator[Any]) -> list[Any]:
    return [_written(each) for each in values]


def _same(value: Any) -> Any:
    return value


def rounded(values: Float64, digits: int = 6) -> list[Any]:
    """Return numbers with few digits, in lists nested as the array is deep."""
    if values.ndim > 1:
        return [rounded(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") for value in values]
