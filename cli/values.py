"""Kinds of option values that click does not know: lists with commas, and spans of time."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from treeopt.errors import InvalidValueError
from treeopt.sampling import Sampling

Value = TypeVar("Value", int, float)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|)", re.ASCII)
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class CommaList(click.ParamType[tuple[Any, ...]]):
    """Values with commas between, each once.

    Args:
        name: what one of them is, in the plural.
        one: makes a value of its text; raises ValueError for another text.
        example: such a list.
    """

    def __init__(self, name: str, one: Callable[[str], Any], example: str) -> None:
        self.name = name
        self._one = one
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values; a usage error for anything else."""
        if isinstance(value, tuple):
            return value
        try:
            values = tuple(self._one(part.strip()) for part in str(value).split(","))
        except ValueError:
            values = ()
        if not values or len(set(values)) < len(values):
            self.fail(f"expected {self.name}, each once, such as {self._example}. Got {value!r}.", param, ctx)
        return values


class Duration(click.ParamType[float]):
    """A span of time such as `90s`, `3m` or `1.5h`, in seconds; a number alone is seconds.

    >>> Duration().convert("3m", None, None)
    180.0
    """

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; a usage error for anything else."""
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value).strip())
        if match is None or float(match[1]) <= 0:
            self.fail(f"expected a time such as 90s, 3m or 1h. Got {value!r}.", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _temperature(text: str) -> float:
    try:
        return Sampling(float(text)).temperature
    except InvalidValueError as error:
        raise ValueError(str(error)) from None


COUNTS = CommaList("whole numbers of at least 1", _count, "256,1024")
TEMPERATURES = CommaList("temperatures of at least 0", _temperature, "0,0.6")
DURATION = Duration()
