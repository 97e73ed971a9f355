"""Types of option values that several commands use.

Each `convert` returns converted values unchanged, and raises a usage error for anything else that it cannot read.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from treeopt.records.machine import AUTO
from treeopt.records.sampling import Sampling

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MAX_COUNT = 999_999_999
"""Largest count: sums and products of a few of them fit in 64 bits."""
MAX_BATCH_SIZE = 1024
"""Largest batch that is decoded."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""Without underscores, which Python reads."""
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


class Name(Text):
    """UTF-8 text that is not empty."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if not text.strip():
            self.fail("expected a name. Got none: leave the option out.", param, ctx)
        return text


class Names(Text):
    """One name, or several with commas, of which a shell completes the last; the command checks them.

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

        before, comma, last = incomplete.rpartition(",")
        new_names = [name for name in self._names() if name.startswith(last) and name not in before.split(",")]
        return [CompletionItem(f"{before}{comma}{name}") for name in new_names]


class OneOf(Names):
    """One of some names, which are loaded when a name is checked or completed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if text not in (names := self._names()):
            self.fail(f"expected one of {', '.join(names)}. Got {text!r:.60}.", param, ctx)
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
        self.expected = expected
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError:
            self.fail(f"expected {self.expected}. Got {value!r}.", param, ctx)


def whole(smallest: int, largest: int, limit: str = "") -> Parsed:
    """Return the type of a whole number in a range; `limit` explains the largest in words."""

    def parse_whole(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,20}", text, re.ASCII) or not smallest <= int(text) <= largest:
            raise ValueError(text)
        return int(text)

    return Parsed("integer", f"a whole number from {smallest} to {largest}{limit and f', {limit}'}", parse_whole)


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


def parse_number(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    return float(text)


def parse_temperature(text: str) -> float:
    return Sampling(parse_number(text)).temperature


def _parse_duration(text: str) -> float:
    """Return seconds.

    >>> _parse_duration("3m"), _parse_duration("250ms")
    (180.0, 0.25)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(text)
    return float(match[1]) * _SECONDS[match[2]]


def _parse_share(text: str) -> float:
    return Sampling(top_p=parse_number(text)).top_p


TEXT = Text()
NAME = Name()
COUNT = whole(1, MAX_COUNT)
LENGTH = whole(0, MAX_COUNT)
SEED = whole(0, 2**63 - 1)
THREADS = whole(1, os.cpu_count() or 1, "the processors of this machine")
"""Far more threads end the process without an error."""
FILE_TEXT = click.Path()
"""Text that is often a path, such as a model's folder or its name on the hub; a shell completes files."""
DEVICE = Names("device", lambda: (AUTO, "cpu", "cuda"))
SHARE = Parsed("number", "a number above 0 and at most 1", _parse_share)
TEMPERATURE = Parsed("number", "0, which is greedy, or a number of at least 1e-6", parse_temperature)
COUNTS = comma_list("whole numbers of at least 1", COUNT.parse, "256,1024")
BATCH_SIZES = comma_list(f"whole numbers from 1 to {MAX_BATCH_SIZE}", whole(1, MAX_BATCH_SIZE).parse, "1,4,16")
LENGTHS = comma_list("whole numbers of at least 0", LENGTH.parse, "0,1,3,7")
TEMPERATURES = comma_list("temperatures of at least 0", parse_temperature, "0,0.6")
DURATION = Parsed("duration", "a time such as 90s, 3m or 1h", _parse_duration)
