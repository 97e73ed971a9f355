"""Types of option values: text, numbers, lists with commas, sizes and durations.

Each `convert` returns converted values unchanged, and raises a usage error for anything else that it cannot read.
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


class Parsed(click.ParamType[Any]):
    """A value that a function reads from text.

    Args:
        name: the metavar, in small letters.
        expected: the valid texts in words.
        parse: returns the value of a text, or raises ValueError.
    """

    def __init__(self, name: str, expected: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._expected = expected
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError:
            self.fail(f"expected {self._expected}. Got {value!r}.", param, ctx)


def comma_list(values: str, parse: Callable[[str], Any], example: str) -> Parsed:
    """Return the type of different values, separated by commas.

    Args:
        values: the valid values in words, plural.
        parse: returns the value of a text, or raises ValueError.
        example: a valid list.
    """

    def parse_list(text: str) -> tuple[Any, ...]:
        parsed = tuple(parse(part.strip()) for part in text.split(","))
        if len(set(parsed)) < len(parsed):
            raise ValueError(text)
        return parsed

    return Parsed("numbers", f"{values}, each once, such as {example}", parse_list)


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


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    base = 1024 if match[2][1] == "i" else 1000
    return max(1, int(float(match[1]) * base ** ("KMGT".index(match[2][0]) + 1)))


def _parse_duration(text: str) -> float:
    """Return seconds.

    >>> _parse_duration("3m"), _parse_duration("250ms")
    (180.0, 0.25)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(text)
    return float(match[1]) * _SECONDS[match[2]]


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
SHARE = Parsed("number", "a number above 0 and at most 1", _parse_share)
TEMPERATURE = Parsed("number", "0, which is greedy, or a number of at least 1e-6", _parse_temperature)
GAP = Parsed("number", "a number of nats, at least 0", _parse_gap)
DRAFT_TEMPERATURE = Parsed("number", "a number of at least 1e-6", _parse_draft_temperature)
COUNTS = comma_list("whole numbers of at least 1", _parse_count, "256,1024")
LAYERS = comma_list("layer ids of the target, whole numbers of at least 0", _parse_length, "2,6,9")
BLOCKS = comma_list("whole numbers of at least 1", _parse_count, "3,7")
LENGTHS = comma_list("whole numbers of at least 0", _parse_length, "0,1,3,7")
TEMPERATURES = comma_list("temperatures of at least 0", _parse_temperature, "0,0.6")
DURATION = Parsed("duration", "a time such as 90s, 3m or 1h", _parse_duration)
SIZE = Parsed("size", "a size such as 40GB or 24GiB", _parse_size)
