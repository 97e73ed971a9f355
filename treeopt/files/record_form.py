"""Frozen dataclasses to and from mappings, for files and for JSON: a field's name, type and bounds stand once, in its annotation.

A dataclass is a mapping with a key for each field.  In a file, None and an empty tuple are left out, unless `in_file` says
otherwise, and control characters are escaped; in JSON (`nulls=True`) every key is there and texts are as they are.  A type
without such a form defines its own: `from_fields` and `to_fields` to be a mapping, or `named_fields` to be several keys
that begin with the field's name.
"""

import dataclasses
from collections.abc import Callable
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
    """A value that is a mapping of its own."""

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Return one, read from the fields of a mapping; other fields are left."""
        ...

    def to_fields(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How one field of a record is read."""

    field: str
    name: str
    read: Read
    inline: bool
    absent: tuple[Any, ...]
    """Values for which the field is left out; empty where it has to be there."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Said:
    """What a record says of one field beside its annotation."""

    name: str | None = None
    read: Read | None = None
    write: Write | None = None
    inline: bool = False
    optional: bool = False
    may_be_empty: bool = False
    bounds: dict[str, Any] = dataclasses.field(default_factory=dict)


def in_file(
    name: str | None = None,
    *,
    read: Read | None = None,
    write: Write | None = None,
    inline: bool = False,
    optional: bool = False,
    may_be_empty: bool = False,
    **bounds: float,
) -> dict[str, Any]:
    """Return the metadata of a dataclass's field that stands in files otherwise than its annotation says.

    Args:
        name: of the field in the file.
        read: makes the value of a mapping and the field's name there.
        write: makes what stands in the file of the value.
        inline: the value's own fields stand beside the record's, not in a mapping of their own.
        optional: the default is said by leaving the field out.
        may_be_empty: a list of records may have none.
        bounds: `least` and `most` of a number.
    """
    return {_KEY: _Said(name, read, write, inline, optional, may_be_empty, bounds)}


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


def written_record(record: object, *, nulls: bool = False) -> dict[str, Any]:
    """Return a record as a mapping, in the order of its fields; with `nulls`, None and empty tuples are written too."""
    content: dict[str, Any] = {}
    for field in dataclasses.fields(cast("Any", record)):
        if not field.init:
            continue
        said: _Said = field.metadata.get(_KEY, _Said())
        value, name = getattr(record, field.name), said.name or field.name
        if said.inline:
            content |= _written(value, nulls)
        elif not nulls and _is_absent(value, field, said):
            continue
        elif said.write is not None and value is not None:
            content[name] = said.write(value)
        elif hasattr(value, "named_fields"):  # an Estimate, whose module lies above this one
            content |= value.named_fields(name)
        else:
            content[name] = _written(value, nulls)
    return content


def _is_absent(value: Any, field: dataclasses.Field[Any], said: _Said) -> bool:
    return value is None or (field.default == () == value) or (said.optional and value == field.default)


def _written(value: Any, nulls: bool) -> Any:
    if isinstance(value, HasForm):
        return value.to_fields()
    if dataclasses.is_dataclass(value):
        return written_record(value, nulls=nulls)
    if isinstance(value, tuple | list):
        return [_written(each, nulls) for each in value]
    return printable(value) if isinstance(value, str) and not nulls else value


@cache
def _forms(kind: Any) -> tuple[_Form, ...]:
    """Return the forms of a dataclass's fields, in their order."""
    hints = get_type_hints(kind)
    return tuple(_form(field, hints[field.name]) for field in dataclasses.fields(kind) if field.init)


def _form(field: dataclasses.Field[Any], hint: Any) -> _Form:
    said: _Said = field.metadata.get(_KEY, _Said())
    may_be_none = get_origin(hint) in (Union, UnionType)
    (kind,) = [each for each in get_args(hint) if each is not NoneType] if may_be_none else [hint]
    read = _inline(kind) if said.inline else _by_type(kind, said, field.default)
    absent: tuple[Any, ...] = (None,) if may_be_none else ()
    if field.default == () or said.optional:
        absent = (field.default,)
    return _Form(
        field=field.name,
        name=said.name or field.name,
        read=said.read or read,
        inline=said.inline,
        absent=absent,
    )


def _inline(kind: type[HasForm]) -> Read:
    """Return how a value is read whose own fields stand among those of the record."""
    return lambda fields, _: kind.from_fields(fields)


def _by_type(kind: Any, said: _Said, default: Any) -> Read:
    """Return how a value of a type is read; a truth value with a default is true, or left out."""
    bounds = said.bounds
    if hasattr(kind, "from_named_fields"):
        return lambda fields, name: kind.from_named_fields(fields, name)
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if item is int:
            return lambda fields, name: tuple(fields.integers(name))
        if item is str:
            return lambda fields, name: tuple(fields.texts(name))
        if item is float:
            return lambda fields, name: tuple(fields.numbers(name))
        least = 0 if said.may_be_empty else 1
        return lambda fields, name: tuple(_read(each, item) for each in fields.mappings(name, least=least))
    if kind is str:
        return lambda fields, name: fields.text(name)
    if kind is bool:
        return lambda fields, name: fields.true(name) if said.optional or default is None else fields.flag(name)
    if kind is int:
        return lambda fields, name: fields.integer(name, **bounds)
    if kind is float:
        return lambda fields, name: fields.number(name, **bounds)
    return lambda fields, name: _read(fields.mapping(name), kind)


def _read(fields: Fields, kind: Any) -> Any:
    """Return a value that stands as a mapping of its own."""
    if not issubclass(kind, HasForm):
        return read_record(fields, kind)
    value = cast("type[HasForm]", kind).from_fields(fields)
    fields.end()
    return value


def rounded(values: Float64, digits: int = 6) -> list[Any]:
    """Return numbers with few digits, in lists nested as the array is deep."""
    if values.ndim > 1:
        return [rounded(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") for value in values]
