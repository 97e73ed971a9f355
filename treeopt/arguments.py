"""Checks of the arguments of public functions; errors name the argument and the value.

All raise InvalidValueError.  Numbers of numpy and torch count as Python's; booleans are not numbers.  numpy is imported in
functions, so that checking a number does not load it.
"""

import operator
import reprlib
from collections.abc import Iterable
from numbers import Real
from typing import Any, TypeVar

from treeopt.arrays import Array, Float64, Int64
from treeopt.errors import InvalidValueError

T = TypeVar("T")

_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 4
_REPR.maxlong = _REPR.maxstring = _REPR.maxother = 60


def check_instance(name: str, value: object, kind: type[T], how: str) -> T:
    """Return a value of class `kind`; `how` is the error's advice on how to make one."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidValueError(f"{name}: expected {article} {kind.__name__}. Got {describe_value(value)}: {how}.")
    return value


def check_integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return an integer of at least `least` and at most `most`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidValueError(f"{name}: expected a whole number. Got {describe_value(value)}: give an int.")
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise InvalidValueError(f"{name}: expected {bounds}. Got {number}.", field=name)
    return number


def check_number(name: str, value: object) -> float:
    """Return a real number as float."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidValueError(f"{name}: expected a number. Got {describe_value(value)}: give a float.")
    return float(value)


def check_flag(name: str, value: object) -> bool:
    """Return a bool."""
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name}: expected True or False. Got {describe_value(value)}: give a bool.")
    return value


def check_text(name: str, value: object) -> str:
    """Return a str."""
    if not isinstance(value, str):
        raise InvalidValueError(f"{name}: expected text. Got {describe_value(value)}: give a str.")
    return value


def check_list(name: str, values: Iterable[T]) -> list[T]:
    """Return the items of a list, an array or another iterable as a list."""
    try:
        return list(values)
    except TypeError:
        raise InvalidValueError(f"{name}: expected a list. Got {describe_value(values)}: put it into one.") from None


def to_float_array(name: str, values: object, shape: str = "") -> "Float64":
    """Return a float64 copy of nested lists of numbers; the error mentions the expected `shape`."""
    import numpy as np

    try:
        entries = _entries(values)
        if _all(entries, Real, "iuf"):
            return np.array(entries, np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidValueError(f"{name}: expected numbers{shape}, as many in every row. Got {describe_value(values)}.")


def to_int_array(name: str, values: object) -> "Int64":
    """Return an int64 copy of nested lists of integers."""
    import numpy as np

    try:
        entries = _entries(values)
        if _all(entries, np.integer | int, "iu"):
            return np.array(entries, np.int64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidValueError(f"{name}: expected whole numbers. Got {describe_value(values)}: give a list of int.")


def _entries(values: object) -> "Array":
    """Return an array of the values, of objects unless they are an array: numpy would convert True to 1."""
    import numpy as np

    if not isinstance(values, np.ndarray) and hasattr(values, "__array__"):
        values = np.asarray(values)  # for example a torch tensor
    return values if isinstance(values, np.ndarray) else np.array(values, object)


def _all(entries: "Array", kind: Any, dtypes: str) -> bool:
    """Whether all entries are of type `kind` and none is a boolean; for an array, its dtype decides."""
    if entries.dtype != object:
        return entries.dtype.kind in dtypes
    return all(issubclass(entry, kind) and entry is not bool for entry in set(map(type, entries.flat)))


def describe_value(value: object) -> str:
    """Return a short repr of a value, with its type."""
    try:
        text = " ".join(_REPR.repr(value).split())
    except ValueError:  # an integer of more digits than Python is willing to write
        text = "a number of thousands of digits"
    return f"{text} ({type(value).__name__})"
