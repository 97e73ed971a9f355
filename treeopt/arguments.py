"""Arguments of the public functions, checked where they come in: each error names the argument, and what came for it.

All raise InvalidValueError.  Whole numbers and numbers of numpy and torch are taken as Python's; booleans are neither.
numpy is imported where arrays are read, so that whoever checks a number does not wait for it.
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


def instance(name: str, value: object, kind: type[T], how: str) -> T:
    """Return a value of a class; `how` says how to make one."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidValueError(f"{name}: expected {article} {kind.__name__}. Got {shown(value)}: {how}.")
    return value


def whole(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number of at least `least` and at most `most`, where they are given."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidValueError(f"{name}: expected a whole number. Got {shown(value)}: give an int.")
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise InvalidValueError(f"{name}: expected {bounds}. Got {number}.", field=name)
    return number


def number(name: str, value: object) -> float:
    """Return a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidValueError(f"{name}: expected a number. Got {shown(value)}: give a float.")
    return float(value)


def flag(name: str, value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name}: expected True or False. Got {shown(value)}: give a bool.")
    return value


def text(name: str, value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise InvalidValueError(f"{name}: expected text. Got {shown(value)}: give a str.")
    return value


def items(name: str, values: Iterable[T]) -> list[T]:
    """Return a list of what a list, an array or the like holds."""
    try:
        return list(values)
    except TypeError:
        raise InvalidValueError(f"{name}: expected a list. Got {shown(values)}: put it into one.") from None


def numbers(name: str, values: object, where: str = "") -> "Float64":
    """Return a copy, float64, of numbers in lists, as deep as may be; `where` says in which shape they are expected."""
    import numpy as np

    try:
        entries = _entries(values)
        if _all(entries, Real, "iuf"):
            return np.array(entries, np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidValueError(f"{name}: expected numbers{where}, as many in every row. Got {shown(values)}.")


def whole_numbers(name: str, values: object) -> "Int64":
    """Return a copy, int64, of whole numbers in lists, as deep as may be."""
    import numpy as np

    try:
        entries = _entries(values)
        if _all(entries, np.integer | int, "iu"):
            return np.array(entries, np.int64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidValueError(f"{name}: expected whole numbers. Got {shown(values)}: give a list of int.")


def _entries(values: object) -> "Array":
    """Return the array that values are, or the values themselves: numpy would take True for 1 and "1" for text."""
    import numpy as np

    if not isinstance(values, np.ndarray) and hasattr(values, "__array__"):
        values = np.asarray(values)  # of torch, for example
    return values if isinstance(values, np.ndarray) else np.array(values, object)


def _all(entries: "Array", kind: Any, dtypes: str) -> bool:
    """Whether all entries are of a kind and none a boolean; an array's type says so of all of them."""
    if entries.dtype != object:
        return entries.dtype.kind in dtypes
    return all(issubclass(each, kind) and each is not bool for each in set(map(type, entries.flat)))


def shown(value: object) -> str:
    """Return what came in few words, with its type."""
    try:
        words = " ".join(_REPR.repr(value).split())
    except ValueError:  # an integer of more digits than Python is willing to write
        words = "a number of thousands of digits"
    return f"{words} ({type(value).__name__})"
