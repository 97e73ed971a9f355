"""A file that another program wrote: its bytes, and the same as text and as JSON, parsed once for all importers."""

import codecs
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from treeopt.engines.importers.content import JsonObject, as_objects
from treeopt.errors import FormatError
from treeopt.files.json_file import parse_json

BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
OPENING = ("{", "[")


@dataclass(frozen=True)
class ForeignFile:
    """A file that another program wrote."""

    path: Path | str
    data: bytes
    default_pass: str = "verify"
    """What rows of CSV are that do not name a pass: `verify`, `draft` or `overhead`."""
    ranks: bool = False
    """Whether a plain list of numbers is acceptance by rank, not rates per position."""

    @cached_property
    def text(self) -> str:
        """The text, with its lines ended by a newline only; empty for bytes that are no text."""
        encoding = next((name for mark, name in BYTE_ORDER_MARKS if self.data.startswith(mark)), "utf-8")
        try:
            text = self.data.decode(encoding)
        except UnicodeDecodeError:
            try:
                text = self.data.replace(b"\xb5", b"u").decode("ascii")  # µs as spreadsheets write it in plain CSV
            except UnicodeDecodeError:
                return ""
        text = text.replace("\r\n", "\n")
        return text if "\n" in text else text.replace("\r", "\n")  # as spreadsheets wrote on old Macs

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text."""
        return self.text.split("\n")

    @cached_property
    def json(self) -> Any:
        """The value of a file that is one JSON value; None for JSON Lines and for other text.

        Raises FormatError for text that begins as JSON does and is neither.
        """
        if not self.text.lstrip().startswith(OPENING):
            return None
        try:
            return parse_json(self.path, self.text, unique_keys=True)
        except FormatError:
            if "\n" in self.text.strip() and self._json_lines:
                return None
            raise

    @cached_property
    def is_json(self) -> bool:
        """Whether the file is JSON or JSON Lines, whole and not torn."""
        try:
            return self.json is not None or bool(self._json_lines)
        except FormatError:
            return False

    @cached_property
    def objects(self) -> list[JsonObject]:
        """The JSON objects: of JSON Lines, of a JSON list of objects, or the single one; none for anything else.

        Lines before the first object are skipped, and words after the last: programs print a heading and a summary there.
        Raises FormatError naming the line for JSON Lines that are torn.
        """
        value = self.json
        return as_objects(value) if value is not None else self._json_lines

    @cached_property
    def _json_lines(self) -> list[JsonObject]:
        """The objects of JSON Lines; none where the first line with a brace is no object by itself."""
        numbered = [(number, line) for number, line in enumerate(self.lines, start=1) if line.strip()]
        while numbered and numbered[-1][1].lstrip()[0].isalpha():
            numbered.pop()  # what a program logs at its end
        first = next((place for place, (_, line) in enumerate(numbered) if line.lstrip().startswith("{")), None)
        if first is None or not _is_object(numbered[first][1]):
            return []
        found = []
        for number, line in numbered[first:]:
            place = f"line {number}"
            content = parse_json(self.path, line, place=place, unique_keys=True)
            if not isinstance(content, dict):
                raise FormatError(
                    self.path, place, f"expected a JSON object. Got {line.strip()!r:.40}: delete the line."
                )
            found.append(JsonObject(place, content))
        return found

    def error(self, field: str, reason: str) -> FormatError:
        """Return the error for one line or field of the file."""
        return FormatError(self.path, field, reason)


def _is_object(line: str) -> bool:
    try:
        return isinstance(parse_json("", line), dict)
    except FormatError:
        return False
