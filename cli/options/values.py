"""Kinds of option values that click does not know: texts, counts, lists with commas, and spans of time."""

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from treeopt.errors import InvalidValueError
from treeopt.records.machine import AUTO
from treeopt.records.rules import RULES
from treeopt.records.sampling import Sampling

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MOST = 999_999_999
"""No count that a user means is larger, and every sum and product of a few of them fits in 64 bits."""
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]i?B)", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)", re.ASCII)
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Text(click.ParamType[str]):
    """A text that can be encoded: what a shell passes on may hold bytes that are no UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; a usage error for bytes that are none."""
        text = str(value)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            byte = ord(text[error.start]) & 0xFF  # how Python keeps a byte that it could not decode
            self.fail(f"expected UTF-8 text. Got the byte 0x{byte:02x} after {error.start} characters.", param, ctx)
        return text


class Number(click.ParamType[float]):
    """A number that `check` returns, or refuses with ValueError, which `nan` always is."""

    name = "number"

    def __init__(self, check: Callable[[str], float], expected: str) -> None:
        self._check = check
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; a usage error for anything else."""
        try:
            return self._check(str(value))
        except ValueError:
            self.fail(f"expected {self._expected}. Got {value!r}.", param, ctx)


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


class Size(click.ParamType[int]):
    """A number of bytes such as `40GB` or `24GiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes; a usage error for anything else."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"expected a size such as 40GB or 24GiB. Got {value!r}.", param, ctx)
        base = 1024 if match[2][1] == "i" else 1000
        return max(1, int(float(match[1]) * base ** ("KMGT".index(match[2][0]) + 1)))


class Duration(click.ParamType[float]):
    """A span of time such as `250ms`, `90s`, `3m` or `1.5h`, in seconds; a number alone is seconds.

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


class Whole(click.ParamType[int]):
    """A whole number.

    Args:
        least: the smallest allowed.
        most: the largest allowed.
        limit: what the largest is, in words.
    """

    name = "integer"

    def __init__(self, least: int, most: int, limit: str = "") -> None:
        self.least = least
        self.most = most
        self._limit = limit and f", {limit}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; a usage error that names the range for anything else."""
        text = str(value)
        if not re.fullmatch(r"-?\d{1,20}", text, re.ASCII) or not self.least <= int(text) <= self.most:
            limits = f"{self.least} to {self.most}{self._limit}"
            self.fail(f"expected a whole number from {limits}. Got {value!r}.", param, ctx)
        return int(text)


class Names(Text):
    """One of some names that a shell completes; they are looked up when they are asked for, and checked by the command.

    Args:
        name: what one of them is.
        names: returns them.
    """

    def __init__(self, name: str, names: Callable[[], Sequence[str]]) -> None:
        self.name = name
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Return the names that begin so."""
        del ctx, param
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]


class NameList(Names):
    """Some of these names with commas between, of which a shell completes the last."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Return what was typed with the last name completed, by names that are not there yet."""
        before, comma, last = incomplete.rpartition(",")
        found = super().shell_complete(ctx, param, last)
        typed = before.split(",")
        for each in found:
            each.value = f"{before}{comma}{each.value}"
        return [each for each in found if each.value.rpartition(",")[2] not in typed]


class FileText(Text):
    """A text that mostly is a path, which a shell completes: a model's folder or file, or its name on the hub."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Leave it to the shell, which knows the files."""
        del ctx, param
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


def _probed() -> Sequence[str]:
    """Return the engines that can be probed."""
    from treeopt.engines.probes.named import NAMES

    return NAMES


def _methods() -> Sequence[str]:
    """Return the ways of speculating, and the word for all of them."""
    from treeopt.methods.names import NAMES

    return "all", *NAMES


def _length(text: str) -> int:
    """Return a whole number, 0 included."""
    return 0 if text == "0" else _count(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _temperature(text: str) -> float:
    try:
        return Sampling(float(text)).temperature
    except InvalidValueError as error:
        raise ValueError(str(error)) from None


def _warm(text: str) -> float:
    if (value := _temperature(text)) == 0:
        raise ValueError(text)
    return value


def _share(text: str) -> float:
    try:
        return Sampling(top_p=float(text)).top_p
    except InvalidValueError as error:
        raise ValueError(str(error)) from None


def _gap(text: str) -> float:
    if not 0 <= (value := float(text)) < float("inf"):
        raise ValueError(text)
    return value


TEXT = Text()
COUNT = Whole(1, MOST)
"""A count of things."""
LENGTH = Whole(0, MOST)
"""A count that may be 0."""
SEED = Whole(0, 2**63 - 1)
THREADS = Whole(1, os.cpu_count() or 1, "the processors of this machine")
"""Far more threads end the process without a word."""
RULE = click.Choice(RULES)
MEASURED_RULE = Names("rule", lambda: RULES)
"""Any rule that a profile may hold, which another program may have measured."""
METHOD_LIST = NameList("text", _methods)
"""Ways of speculating."""
RULE_LIST = NameList("text", lambda: RULES)
PROBED_ENGINE = Names("text", _probed)
"""An engine that treeopt probe measures."""
FILE_TEXT = FileText()
DEVICE = Names("text", lambda: (AUTO, "cpu", "cuda"))
SHARE = Number(_share, "a number above 0 and at most 1")
TEMPERATURE = Number(_temperature, "0, which is greedy, or a number of at least 1e-6")
GAP = Number(_gap, "a number of nats, at least 0")
DRAFT_TEMPERATURE = Number(_warm, "a number of at least 1e-6")
LEARNING_RATE = Number(_share, "a number above 0 and at most 1")
COUNTS = CommaList("whole numbers of at least 1", _count, "256,1024")
BOUNDARIES = CommaList("boundaries of the target, whole numbers of at least 0", _length, "2,6,9")
LENGTHS = CommaList("whole numbers of at least 0", _length, "0,1,3,7")
TEMPERATURES = CommaList("temperatures of at least 0", _temperature, "0,0.6")
DURATION = Duration()
SIZE = Size()
