"""The fields of a parsed file, each checked when it is read."""

import math
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from treeopt.errors import CONTROL, FormatError, InvalidValueError, printable

T = TypeVar("T")
MISSING = "is missing. Add it, or give a complete file of this kind."

_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = 8
_REPR.maxstring = _REPR.maxother = 60
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))
_MAX_CHARS = 80


class Fields:
    """One mapping of a parsed file; every field is read once, and `end` refuses the others.

    Every method raises FormatError naming the file, the field and what was expected.
    """

    def __init__(self, path: Path | str, content: object, name: str = "") -> None:
        self._path = path
        self._name = name
        if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
            reason = f"expected fields with names. Got {abbreviate(content)}: is it another kind of file?"
            raise FormatError(path, name or "content", reason)
        self._content = dict(content)

    def text(self, field: str) -> str:
        """Return text without control characters, which a terminal would obey."""
        value = self._take(field)
        if not isinstance(value, str):
            raise self.error(field, f"expected text. Got {abbreviate(value)}.")
        if match := CONTROL.search(value):
            raise self.error(field, f"expected printable text. Got {printable(match[0])}: remove it.")
        return value

    def texts(self, field: str) -> list[str]:
        """Return a list of texts without control characters."""
        return self._checked(
            field,
            self._take(field),
            lambda value: isinstance(value, str) and not CONTROL.search(value),
            "printable texts",
        )

    def true(self, field: str) -> bool:
        """Return a field that must be true, because a file omits it otherwise."""
        value = self._take(field)
        if value is not True:
            raise self.error(field, f"expected true, or no such field. Got {abbreviate(value)}.")
        return True

    def flag(self, field: str) -> bool:
        value = self._take(field)
        if not isinstance(value, bool):
            raise self.error(field, f"expected true or false. Got {abbreviate(value)}.")
        return value

    def number(self, field: str, *, least: float = 0.0, most: float = math.inf) -> float:
        """Return a finite number from `least` to `most`."""
        value = self._take(field)
        if not _is_number(value) or not least <= value <= most:
            limit = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise self.error(field, f"expected a number {limit}. Got {abbreviate(value)}.")
        return float(value)

    def integer(self, field: str, *, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self._take(field)
        if type(value) is not int or not least <= value < 2**63:
            raise self.error(field, f"expected a whole number of at least {least}. Got {abbreviate(value)}.")
        return value

    def integers(self, field: str) -> list[int]:
        """Return a list of whole numbers below 2**31."""
        return self._integers(field, self._take(field))

    def integer_rows(self, field: str) -> list[list[int]]:
        """Return a list of lists of whole numbers below 2**31."""
        rows = self._take(field)
        if not isinstance(rows, list):
            raise self.error(field, f"expected a list of lists. Got {abbreviate(rows)}.")
        return [self._integers(f"{field}[{i}]", row) for i, row in enumerate(rows)]

    def numbers(self, field: str) -> list[float]:
        """Return a list of finite numbers."""
        return self._numbers(field, self._take(field))

    def nested_numbers(self, field: str, depth: int | None = None) -> list[Any]:
        """Return finite numbers in lists nested `depth` deep, by default up to three deep."""
        values = self._take(field)
        return self._nested(field, values, depth or max(1, _nesting(values, most=3)))

    def mapping(self, field: str) -> "Fields":
        """Return the fields of a mapping."""
        return Fields(self._path, self._take(field), self._full(field))

    def mappings(self, field: str, *, least: int = 1) -> list["Fields"]:
        """Return the fields of each mapping in a list of at least `least`."""
        items = self._take(field)
        if not isinstance(items, list) or len(items) < least:
            raise self.error(
                field, f"expected a list of at least {'one' if least else 'none'}. Got {abbreviate(items)}."
            )
        return [Fields(self._path, item, self._full(f"{field}[{i}]")) for i, item in enumerate(items)]

    def build(self, field: str, make: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Return `make(...)`, and raise its InvalidValueError as this field's FormatError."""
        try:
            return make(*arguments, **keywords)
        except InvalidValueError as error:
            raise self.error(field, str(error)) from None

    def any(self, field: str) -> Any:
        """Return a field without a check."""
        return self._take(field)

    def __contains__(self, field: str) -> bool:
        return field in self._content

    def names(self) -> list[str]:
        """Return the sorted names of the fields that were not read."""
        return sorted(self._content)

    def require(self, field: str) -> None:
        """Raise FormatError if a field is missing."""
        if field not in self._content:
            raise self.error(field, MISSING)

    def end(self) -> None:
        """Refuse the fields that were not read."""
        if self._content:
            raise self.error(next(iter(self._content)), "unknown field. Remove it, or update treeopt.")

    def error(self, field: str, reason: str) -> FormatError:
        return FormatError(self._path, self._full(field), reason)

    def _take(self, field: str) -> Any:
        self.require(field)
        return self._content.pop(field)

    def _full(self, field: str) -> str:
        return f"{self._name}.{field}" if self._name else field

    def _nested(self, field: str, values: object, depth: int) -> list[Any]:
        if depth == 1:
            return self._numbers(field, values)
        if not isinstance(values, list):
            raise self.error(field, f"expected a list of lists. Got {abbreviate(values)}.")
        return [self._nested(f"{field}[{i}]", value, depth - 1) for i, value in enumerate(values)]

    def _integers(self, field: str, values: object) -> list[int]:
        return self._checked(field, values, lambda value: type(value) is int and abs(value) < 2**31, "whole numbers")

    def _numbers(self, field: str, values: object) -> list[float]:
        return [float(value) for value in self._checked(field, values, _is_number, "finite numbers")]

    def _checked(self, field: str, values: object, allows: Callable[[object], bool], kind: str) -> list[Any]:
        """Return a list of allowed values; the error names the first other one."""
        if not isinstance(values, list):
            raise self.error(field, f"expected a list of {kind}. Got {abbreviate(values)}.")
        wrong = next((index for index, value in enumerate(values) if not allows(value)), None)
        if wrong is not None:
            raise self.error(
                field, f"expected a list of {kind}. Got {abbreviate(values[wrong])} at [{wrong}]: replace or remove it."
            )
        return values


def check_format(fields: Fields, name: str, version: int) -> None:
    """Read the `format` and `version` fields; raise FormatError for another format or version."""
    if "format" not in fields:
        raise fields.error("format", f"is missing. Expected a file of the format {name!r}: is it another kind of file?")
    actual_name = fields.text("format")
    if actual_name != name:
        raise fields.error("format", f"expected {name!r}. Got {abbreviate(actual_name)}: is it another kind of file?")
    actual_version = fields.integer("version")
    if actual_version != version:
        raise fields.error("version", f"expected {version}. Got {actual_version}: update treeopt to read it.")


def _nesting(values: object, most: int) -> int:
    """Return the depth of nested lists, at most `most`."""
    if not isinstance(values, list) or most == 0:
        return 0
    return 1 + max((_nesting(value, most - 1) for value in values), default=0)


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def abbreviate(value: object) -> str:
    r"""Return a value in at most 80 characters of one line.

    >>> abbreviate([0, 1, 0]), abbreviate("two\nlines")
    ('[0, 1, 0]', "'two\\nlines'")
    """
    try:
        text = _REPR.repr(value) if isinstance(value, _PLAIN) else type(value).__name__
    except ValueError:  # an integer of more digits than Python is willing to write
        text = "a number of thousands of digits"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."


def quote_name(name: str) -> str:
    """Return a name from a file: unchanged if it is an identifier, else quoted and abbreviated."""
    return name if name.isidentifier() and len(name) <= _MAX_CHARS else abbreviate(name)
