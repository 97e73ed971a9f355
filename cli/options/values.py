"""Types of option values: text, numbers, lists with commas, sizes and durations.

Each `convert` returns a value that is already converted as it is, and raises a usage error for anything it cannot read.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from treeopt.records.machine import AUTO
from treeopt.records.rules import RULES
from treeopt.records.sampling import Sampling

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MAX_COUNT = 999_999_999
"""Largest count: sums and products of a few of them fit in 64 bits."""
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]i?B)", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)", re.ASCII)
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Text(click.ParamType[str]):
    """UTF-8 text; a shell may pass other bytes."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            byte = ord(text[error.start]) & 0xFF  # Python keeps an undecodable byte in the low bits of a surrogate
            self.fail(f"expected UTF-8 text. Got the byte 0x{byte:02x} after {error.start} characters.", param, ctx)
        return text


class Number(click.ParamType[float]):
    """A number.

    Args:
        parse: returns the number of a text, or raises ValueError.
        expected: the valid numbers in words.
    """

    name = "number"

    def __init__(self, parse: Callable[[str], float], expected: str) -> None:
        self._parse = parse
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return self._parse(str(value))
        except ValueError:
            self.fail(f"expected {self._expected}. Got {value!r}.", param, ctx)


class CommaList(click.ParamType[tuple[Any, ...]]):
    """Different values, separated by commas.

    Args:
        name: the valid values in words, plural.
        parse: returns the value of a text, or raises ValueError.
        example: a valid list.
    """

    def __init__(self, name: str, parse: Callable[[str], Any], example: str) -> None:
        self.name = name
        self._parse = parse
        self._example = example

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        del param, ctx
        return "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            values = tuple(self._parse(part.strip()) for part in str(value).split(","))
        except ValueError:
            values = ()
        if not values or len(set(values)) < len(values):
            self.fail(f"expected {self.name}, each once, such as {self._example}. Got {value!r}.", param, ctx)
        return values


class Size(click.ParamType[int]):
    """A number of bytes, such as `40GB` or `24GiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"expected a size such as 40GB or 24GiB. Got {value!r}.", param, ctx)
        base = 1024 if match[2][1] == "i" else 1000
        return max(1, int(float(match[1]) * base ** ("KMGT".index(match[2][0]) + 1)))


class Duration(click.ParamType[float]):
    """Seconds, given as `250ms`, `90s`, `3m`, `1.5h` or a plain number.

    >>> Duration().convert("3m", None, None)
    180.0
    """

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value).strip())
        if match is None or float(match[1]) <= 0:
            self.fail(f"expected a time such as 90s, 3m or 1h. Got {value!r}.", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class Whole(click.ParamType[int]):
    """A whole number in a range; `limit` explains the largest in words."""

    name = "integer"

    def __init__(self, smallest: int, largest: int, limit: str = "") -> None:
        self.smallest = smallest
        self.largest = largest
        self._limit = limit and f", {limit}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not re.fullmatch(r"-?\d{1,20}", text, re.ASCII) or not self.smallest <= int(text) <= self.largest:
            limits = f"{self.smallest} to {self.largest}{self._limit}"
            self.fail(f"expected a whole number from {limits}. Got {value!r}.", param, ctx)
        return int(text)


class Names(Text):
    """A name that a shell completes; the command checks it.

    Args:
        name: the metavar.
        names: returns all names; called for completion only.
    """

    def __init__(self, name: str, names: Callable[[], Sequence[str]]) -> None:
        self.name = name
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        del ctx, param
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]


class NameList(Names):
    """Names separated by commas, of which a shell completes the last."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        before, comma, last = incomplete.rpartition(",")
        items = super().shell_complete(ctx, param, last)
        new_items = [item for item in items if item.value not in before.split(",")]
        for item in new_items:
            item.value = f"{before}{comma}{item.value}"
        return new_items


def _probed_engines() -> Sequence[str]:
    from treeopt.engines.clients.registry import NAMES

    return NAMES


def _methods() -> Sequence[str]:
    from treeopt.methods.names import NAMES

    return "all", *NAMES


def _parse_count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _parse_length(text: str) -> int:
    return 0 if text == "0" else _parse_count(text)


def _parse_temperature(text: str) -> float:
    return Sampling(float(text)).temperature


def _parse_draft_temperature(text: str) -> float:
    if (value := _parse_temperature(text)) == 0:
        raise ValueError(text)
    return value


def _parse_share(text: str) -> float:
    return Sampling(top_p=float(text)).top_p


def _parse_gap(text: str) -> float:
    if not 0 <= (value := float(text)) < float("inf"):
        raise ValueError(text)
    return value


TEXT = Text()
COUNT = Whole(1, MAX_COUNT)
LENGTH = Whole(0, MAX_COUNT)
SEED = Whole(0, 2**63 - 1)
THREADS = Whole(1, os.cpu_count() or 1, "the processors of this machine")
"""Far more threads end the process without an error."""
RULE = click.Choice(RULES)
MEASURED_RULE = Names("rule", lambda: RULES)
"""Any rule that a profile may contain; another program may have measured it."""
METHOD_LIST = NameList("names", _methods)
RULE_LIST = NameList("names", lambda: RULES)
PROBED_ENGINE = Names("engine", _probed_engines)
FILE_TEXT = click.Path()
"""Text that is often a path, such as a model's folder or its name on the hub; a shell completes files."""
DEVICE = Names("device", lambda: (AUTO, "cpu", "cuda"))
SHARE = Number(_parse_share, "a number above 0 and at most 1")
TEMPERATURE = Number(_parse_temperature, "0, which is greedy, or a number of at least 1e-6")
GAP = Number(_parse_gap, "a number of nats, at least 0")
DRAFT_TEMPERATURE = Number(_parse_draft_temperature, "a number of at least 1e-6")
COUNTS = CommaList("whole numbers of at least 1", _parse_count, "256,1024")
LAYERS = CommaList("layer ids of the target, whole numbers of at least 0", _parse_length, "2,6,9")
BLOCKS = CommaList("whole numbers of at least 1", _parse_count, "3,7")
LENGTHS = CommaList("whole numbers of at least 0", _parse_length, "0,1,3,7")
TEMPERATURES = CommaList("temperatures of at least 0", _parse_temperature, "0,0.6")
DURATION = Duration()
SIZE = Size()
