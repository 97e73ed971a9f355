"""Base classes of records: value semantics for records with arrays, and a short repr for all."""

import dataclasses
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from treeopt.arrays import Array

LIMIT = 400
"""Upper bound on the length of a repr."""
MAX_TEXT = 80
"""Characters of a string in a repr; the middle of a longer one is left out."""
MAX_ENTRIES = 8
"""Entries of an array or tuple in a repr; of a longer one only the length is shown."""


class ShortRepr:
    """Gives a dataclass a repr of one line and less than `LIMIT` characters.

    It contains the fields, or the attributes named in `_shown` (dotted names and properties allowed); arrays are shown by type
    and shape.
    """

    __slots__ = ()
    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return _record_text(self)


class ArrayRecord(ShortRepr):
    """Gives a frozen dataclass with arrays value semantics: arrays are compared by dtype, shape and entries.

    Equal records have equal hashes.  Copies and unpickled records are equal, with arrays read-only like the original's.  Fields
    with `compare=False` are caches: they are not part of the value and are reset in a copy.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return _same(_content(self), _content(other))

    def __hash__(self) -> int:
        return hash((type(self), _hashable(_content(self))))

    def __reduce__(self) -> tuple[Any, ...]:
        content = _content(self)
        return _restored, (type(self), content, _writeable(content))


def freeze(record: object) -> None:
    """Replace the arrays of a frozen dataclass by read-only views; their owners may still write to them."""
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        object.__setattr__(record, field.name, _as_writeable(value, False) if isinstance(value, np.ndarray) else value)


def _content(record: object) -> tuple[Any, ...]:
    """Return the values of the fields that are compared."""
    return tuple(getattr(record, field.name) for field in dataclasses.fields(record) if field.compare)  # type: ignore[arg-type]


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, (value + value.dtype.type(0)).tobytes()  # -0.0 equals 0.0
    return tuple(map(_hashable, value)) if isinstance(value, tuple) else value


def _writeable(value: Any) -> Any:
    """Return for every array whether it is writeable."""
    if isinstance(value, np.ndarray):
        return value.flags.writeable
    return tuple(map(_writeable, value)) if isinstance(value, tuple) else None


def _as_writeable(value: Any, writeable: Any) -> Any:
    """Return the same value with read-only views of arrays that shall not be writeable; other arrays are not copied."""
    if isinstance(value, np.ndarray) and value.flags.writeable and not writeable:
        value = value.view()  # its owner may still write to it
        value.flags.writeable = False
    return tuple(map(_as_writeable, value, writeable)) if isinstance(writeable, tuple) else value


def _restored(kind: type, content: tuple[Any, ...], writeable: tuple[Any, ...]) -> Any:
    """Return a record from the values of its compared fields."""
    record: object = object.__new__(kind)
    values = iter(_as_writeable(content, writeable))
    for field in dataclasses.fields(kind):
        default = field.default_factory() if callable(field.default_factory) else field.default
        object.__setattr__(record, field.name, next(values) if field.compare else default)
    return record


def _record_text(record: Any, *, nested: bool = True) -> str:
    """Return the repr of a dataclass; if it is too long, only the class names of nested records."""
    names = getattr(record, "_shown", ()) or [field.name for field in dataclasses.fields(record) if field.repr]
    values = {name.rpartition(".")[2]: attrgetter(name)(record) for name in names}
    parts = [f"{name}={_text(value, nested=nested)}" for name, value in values.items() if value is not None]
    text = f"{type(record).__name__}({', '.join(parts)})"
    if len(text) < LIMIT:
        return text
    return _record_text(record, nested=False) if nested else f"{text[: LIMIT - 5]}...)"


def _text(value: Any, *, nested: bool) -> str:
    if isinstance(value, np.ndarray):
        return _array_text(value)
    if isinstance(value, tuple):
        return _tuple_text(value)
    if dataclasses.is_dataclass(value):
        return repr(value) if nested else f"{type(value).__name__}(...)"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]}...{text[3 - MAX_TEXT // 2 :]}"


def _array_text(array: Array) -> str:
    """Return the entries of a short vector, the ends of a longer one, or else dtype and shape."""
    if array.ndim != 1 or array.size == 0:
        return f"{array.dtype} {array.shape}" if array.ndim else f"{array:.6g}"
    if array.size <= MAX_ENTRIES:
        return f"[{', '.join(f'{entry:.6g}' for entry in array)}]"
    return f"{array.dtype} {array.shape} [{array[0]:.6g} ... {array[-1]:.6g}]"


def _tuple_text(items: tuple[Any, ...]) -> str:
    """Return a short tuple of numbers or strings, else the number of items."""
    kinds = {type(item) for item in items}
    if kinds == {np.ndarray}:
        return f"<{len(items)} {items[0].dtype} arrays, {sum(item.size for item in items)} entries>"
    if len(items) <= MAX_ENTRIES and kinds <= {int, float, bool, str}:
        return f"({', '.join(_text(item, nested=False) for item in items)})"
    return f"<{len(items)} {' or '.join(sorted(kind.__name__ for kind in kinds))}>"
