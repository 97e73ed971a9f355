"""Records as values: those with arrays are compared, hashed and copied by what they hold, and all fit on a screen."""

import dataclasses
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from treeopt.arrays import Array

LIMIT = 400
"""Characters that no record's text reaches."""
MAX_TEXT = 80
"""Characters of a text in it; the middle of a longer one is left out."""
MAX_ENTRIES = 8
"""Entries of an array or a tuple that are shown; of a longer one only its length."""


class ShortRepr:
    """Gives a dataclass a text of one line and less than `LIMIT` characters: what it is of, and how large.

    Shown are the fields, or the attributes named in `_shown`, dots and properties allowed; arrays by type and shape.
    """

    __slots__ = ()
    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return _record_text(self)


class ArrayRecord(ShortRepr):
    """Makes a frozen dataclass with arrays a value: equal where all is, arrays entry by entry, in type and shape too.

    Equal records hash equally.  Copies and unpickled records are equal, and their arrays read-only where the original's
    are.  Fields with `compare=False` only save time: they are no part of the value, and a copy begins without them.
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
    """Make the arrays of a frozen dataclass read-only in it; whoever gave them may still write to theirs."""
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        object.__setattr__(record, field.name, _seen_as(value, False) if isinstance(value, np.ndarray) else value)


def _content(record: object) -> tuple[Any, ...]:
    """Return the values of the fields that count."""
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
    """Return for every array whether it can be written."""
    if isinstance(value, np.ndarray):
        return value.flags.writeable
    return tuple(map(_writeable, value)) if isinstance(value, tuple) else None


def _seen_as(value: Any, writeable: Any) -> Any:
    """Return the same with arrays that can be written, or not; an array that is not changed is the very same."""
    if isinstance(value, np.ndarray) and value.flags.writeable and not writeable:
        value = value.view()  # its owner may go on writing
        value.flags.writeable = False
    return tuple(map(_seen_as, value, writeable)) if isinstance(writeable, tuple) else value


def _restored(kind: type, content: tuple[Any, ...], writeable: tuple[Any, ...]) -> Any:
    """Return a record of the values of its fields that count."""
    record: object = object.__new__(kind)
    values = iter(_seen_as(content, writeable))
    for field in dataclasses.fields(kind):
        fresh = field.default_factory() if callable(field.default_factory) else field.default
        object.__setattr__(record, field.name, next(values) if field.compare else fresh)
    return record


def _record_text(record: Any, *, nested: bool = True) -> str:
    """Return the text of a dataclass; where it gets too long, with nothing of the records in it but their names."""
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
    """Return a short row itself, the ends of a longer one, or else the type and shape."""
    if array.ndim != 1 or array.size == 0:
        return f"{array.dtype} {array.shape}" if array.ndim else f"{array:.6g}"
    if array.size <= MAX_ENTRIES:
        return f"[{', '.join(f'{entry:.6g}' for entry in array)}]"
    return f"{array.dtype} {array.shape} [{array[0]:.6g} ... {array[-1]:.6g}]"


def _tuple_text(items: tuple[Any, ...]) -> str:
    """Return a short row of numbers or texts itself, of anything else how much there is."""
    kinds = {type(item) for item in items}
    if kinds == {np.ndarray}:
        return f"<{len(items)} {items[0].dtype} arrays, {sum(item.size for item in items)} entries>"
    if len(items) <= MAX_ENTRIES and kinds <= {int, float, bool, str}:
        return f"({', '.join(_text(item, nested=False) for item in items)})"
    return f"<{len(items)} {' or '.join(sorted(kind.__name__ for kind in kinds))}>"
