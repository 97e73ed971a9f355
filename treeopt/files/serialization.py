"""Frozen dataclasses to and from mappings, for files and for JSON; the annotations define names, types and bounds.

A dataclass is a mapping with a key per field. In files, None and empty tuples are omitted, unless `in_file` changes that,
and control characters are escaped; in JSON (`nulls=True`) every key is written and text is not escaped. An `Estimate` has
several keys, which begin with the field's name (`named_fields`).
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError, printable
from treeopt.files.fields import Fields

T = TypeVar("T")
_KEY = "in file"
Read = Callable[[Fields, str], Any]
Write = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _FieldReader:
    field: str
    name: str
    read: Read
    inline: bool
    default: tuple[Any, ...]
    """The value of a missing field; empty for required fields."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Options:
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
    """Return the metadata of a dataclass field whose file form differs from its annotation.

    Args:
        name: the key in the file.
        read: returns the value, given a mapping and the key.
        write: returns the file form of a value.
        inline: write the value's fields among the record's, not as a mapping.
        optional: omit the field if it has its default.
        may_be_empty: allow an empty list of records.
        bounds: `least` and `most` of a number.
    """
    return {_KEY: _Options(name, read, write, inline, optional, may_be_empty, bounds)}


def read_record(fields: Fields, kind: type[T]) -> T:
    """Return the record of a mapping; raises FormatError naming the file, the field and the reason."""
    values = _read_values(fields, kind)
    fields.end()
    return _build(fields, kind, values)


def read_inline_record(fields: Fields, kind: type[T]) -> T:
    """Return the record of some fields of a mapping, as `read_record`; the others stay unread."""
    return _build(fields, kind, _read_values(fields, kind))


def _read_values(fields: Fields, kind: type[T]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for reader in _field_readers(cast("Any", kind)):
        if reader.inline or reader.name in fields or not reader.default:
            values[reader.field] = reader.read(fields, reader.name)
        else:
            values[reader.field] = reader.default[0]
    return values


def _build(fields: Fields, kind: type[T], values: dict[str, Any]) -> T:
    try:
        return kind(**values)
    except InvalidValueError as error:
        first = _field_readers(cast("Any", kind))[0]
        raise fields.error(error.field or first.name, str(error)) from None


def serialize_record(record: object, *, nulls: bool = False) -> dict[str, Any]:
    """Return a record as a mapping in the order of its fields; with `nulls`, None and empty tuples are included."""
    content: dict[str, Any] = {}
    for field in dataclasses.fields(cast("Any", record)):
        if not field.init:
            continue
        options: _Options = field.metadata.get(_KEY, _Options())
        value, name = getattr(record, field.name), options.name or field.name
        if options.inline:
            content |= _serialize(value, nulls)
        elif not nulls and _is_omitted(value, field, options):
            continue
        elif options.write is not None and value is not None:
            content[name] = options.write(value)
        elif hasattr(value, "named_fields"):  # an Estimate, whose module lies above this one
            content |= value.named_fields(name)
        else:
            content[name] = _serialize(value, nulls)
    return content


def _is_omitted(value: Any, field: dataclasses.Field[Any], options: _Options) -> bool:
    return value is None or (field.default == () == value) or (options.optional and value == field.default)


def _serialize(value: Any, nulls: bool) -> Any:
    if dataclasses.is_dataclass(value):
        return serialize_record(value, nulls=nulls)
    if isinstance(value, tuple | list):
        return [_serialize(item, nulls) for item in value]
    return printable(value) if isinstance(value, str) and not nulls else value


@cache
def _field_readers(kind: Any) -> tuple[_FieldReader, ...]:
    hints = get_type_hints(kind)
    return tuple(_field_reader(field, hints[field.name]) for field in dataclasses.fields(kind) if field.init)


def _field_reader(field: dataclasses.Field[Any], hint: Any) -> _FieldReader:
    options: _Options = field.metadata.get(_KEY, _Options())
    may_be_none = get_origin(hint) in (Union, UnionType)
    (kind,) = [member for member in get_args(hint) if member is not NoneType] if may_be_none else [hint]
    read = options.read or _reader_of_type(kind, options, field.default)
    default: tuple[Any, ...] = (None,) if may_be_none else ()
    if field.default == () or options.optional:
        default = (field.default,)
    return _FieldReader(
        field=field.name, name=options.name or field.name, read=read, inline=options.inline, default=default
    )


def _reader_of_type(kind: Any, options: _Options, default: Any) -> Read:
    """Return the reader of a type; a boolean with a default is true or omitted."""
    bounds = options.bounds
    if options.inline:
        return lambda fields, _: read_inline_record(fields, kind)
    if hasattr(kind, "from_named_fields"):
        return lambda fields, name: kind.from_named_fields(fields, name)
    if get_origin(kind) is tuple:
        return _reader_of_tuple(get_args(kind)[0], 0 if options.may_be_empty else 1)
    if kind is str:
        return lambda fields, name: fields.text(name)
    if kind is bool:
        return lambda fields, name: fields.true(name) if options.optional or default is None else fields.flag(name)
    if kind is int:
        return lambda fields, name: fields.integer(name, **bounds)
    if kind is float:
        return lambda fields, name: fields.number(name, **bounds)
    return lambda fields, name: read_record(fields.mapping(name), kind)


def _reader_of_tuple(item: Any, least: int) -> Read:
    if item is int:
        return lambda fields, name: tuple(fields.integers(name))
    if item is str:
        return lambda fields, name: tuple(fields.texts(name))
    if item is float:
        return lambda fields, name: tuple(fields.numbers(name))
    return lambda fields, name: tuple(read_record(mapping, item) for mapping in fields.mappings(name, least=least))


def rounded(values: Float64, digits: int = 6) -> list[Any]:
    """Return numbers with a few significant digits, in lists as deep as the array."""
    if values.ndim > 1:
        return [rounded(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") for value in values]
