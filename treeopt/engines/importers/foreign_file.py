"""A file that another program wrote: its bytes, text and JSON, parsed once for all importers."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from treeopt.errors import FormatError
from treeopt.files.fields import Fields
from treeopt.files.foreign_text import decode_text
from treeopt.files.json_file import parse_json, parse_json_values

OPENING = ("{", "[")
LOG_PREFIX = re.compile(r"\s*(\[[^\[\]\n]{1,80}\])[^\S\n]*\S")
"""A time or a level in brackets, and the message after it."""
MESSAGES = ("log", "message", "msg", "MESSAGE", "textPayload", "line")
"""Fields with a line of a log: of containers, of loggers, of journald, of Google Cloud, of Loki."""
RESULTS = "results"
"""Field of an object with a list of results, which may have others about the run."""
MAX_NAME = 80
MAX_STEP_TOKENS = 10_000
MAX_CONTAINERS = 2_000_000
"""Lists and objects of a file; Python needs 60 bytes or more for each, and a file of 32 MB may have ten million."""
NUMBER = r"\d{1,15}(?:\.\d{1,17})?"
"""A number of a log as a pattern; its length is limited, because files are not trusted."""

T = TypeVar("T")


class JsonObject(Fields):
    """One JSON object of a file, also with its whole content.

    Args:
        path: the file.
        place: line or index of the object in the file; empty for the whole file.
        content: its values by key.
    """

    def __init__(self, path: Path | str, place: str, content: dict[str, Any]) -> None:
        super().__init__(path, content, place)
        self.path, self.place, self.content = path, place, content

    def inner(self, *names: str) -> "JsonObject":
        """Return the object under these names without its null values.

        Raises FormatError for a value that is not an object.
        """
        content: Any = self.content
        for name in names:
            content = content[name]
        inner = JsonObject(self.path, ", ".join(filter(None, (self.place, ".".join(names)))), content)
        return JsonObject(self.path, inner.place, {name: value for name, value in content.items() if value is not None})

    def read_counts(self, field: str) -> dict[int, int]:
        """Return the counts above 0 of a histogram: a list, or an object with whole numbers as keys.

        Raises FormatError for keys above `MAX_STEP_TOKENS` and negative counts.
        """
        histogram = self.content.get(field)
        if isinstance(histogram, dict):
            values = self.mapping(field)
            for key in histogram:
                if not (key.isascii() and key.isdecimal() and len(key) <= len(str(MAX_STEP_TOKENS))):
                    raise self.error(field, f"expected whole numbers as names. Got {key!r:.40}.")
            counts = {int(key): values.integer(key, least=0) for key in histogram}
        else:
            counts = dict(enumerate(self.integers(field)))
        if max(counts, default=0) > MAX_STEP_TOKENS or min(counts.values(), default=0) < 0:
            raise self.error(
                field,
                f"expected counts of at least 0 for at most {MAX_STEP_TOKENS} tokens. Got others: is the file "
                "complete?",
            )
        return {tokens: count for tokens, count in counts.items() if count}


@dataclass(frozen=True)
class ForeignFile:
    """A file that another program wrote."""

    path: Path | str
    data: bytes
    part: str
    """What is to be read: one of those that an importer contains."""
    ranks: bool = False
    """Whether a plain list of numbers is acceptance by rank; otherwise it is rates per position."""

    @cached_property
    def text(self) -> str:
        """The text with Unix line ends; empty for bytes that are no text."""
        return decode_text(self.data, "cp1252") or ""  # Windows' encoding, in which spreadsheets write µ and consoles ±

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def log(self) -> str:
        """The text of a log; of JSON Lines the messages, as containers and log collectors wrap them, else empty."""
        if not self.is_json:
            return self.text
        fields = (line.content.get(name) for line in self.objects for name in MESSAGES)
        return "\n".join(message.rstrip("\n") for message in fields if isinstance(message, str))

    @cached_property
    def json(self) -> Any:
        """The JSON value of the file, also below a program's log; None for JSON Lines and for other text.

        Raises FormatError for text that begins like JSON and is neither, and for more than `MAX_CONTAINERS`.
        """
        containers = sum(map(self.text.count, OPENING))
        if containers > MAX_CONTAINERS:
            raise self.error(
                "content", f"expected at most {MAX_CONTAINERS} lists and objects. Got {containers}: keep fewer."
            )
        if not self.text.lstrip().startswith(OPENING) or self._begins_like_log:
            return self._json_below_log
        try:
            return parse_json(self.path, self.text, unique_keys=True)
        except FormatError:
            if self._json_lines:
                return None
            raise

    @property
    def _begins_like_log(self) -> bool:
        prefix = LOG_PREFIX.match(self.text)
        return prefix is not None and _first_value(prefix[1]) is None

    @cached_property
    def _json_below_log(self) -> Any:
        """The JSON value that begins with a bracket on a line of its own and ends the file, otherwise None."""
        start = next((index for index, line in enumerate(self.lines) if line.rstrip() in OPENING), None)
        if start is None:
            return None
        try:
            return parse_json(self.path, "\n".join(self.lines[start:]), unique_keys=True)
        except FormatError:
            return None

    @cached_property
    def is_json(self) -> bool:
        """Whether the file is complete JSON or JSON Lines."""
        try:
            return self.json is not None or bool(self._json_lines)
        except FormatError:
            return False

    def has_key(self, *names: str) -> bool:
        """Return whether the file is one JSON object with at least one of the keys."""
        return isinstance(self.json, dict) and not self.json.keys().isdisjoint(names)

    @cached_property
    def objects(self) -> list[JsonObject]:
        """The JSON objects: of JSON Lines, of a list, also below `results`, or the single one; empty for anything else.

        Skips lines before the first object and words after the last, because programs print a heading and a summary.
        Of the output of an OpenAI batch, as `vllm run-batch` writes it, these are the responses.
        Raises FormatError naming the line of broken JSON Lines.
        """
        value = self.json
        if value is None:
            return [_unwrap_batch_response(line) for line in self._json_lines]
        name, items = "", value
        if isinstance(value, dict):
            name, items = RESULTS, value.get(RESULTS)
        if isinstance(items, list) and items and all(isinstance(item, dict) for item in items):
            return [JsonObject(self.path, f"{name}[{index}]", item) for index, item in enumerate(items)]
        return [JsonObject(self.path, "", value)] if isinstance(value, dict) else []

    @cached_property
    def _json_lines(self) -> list[JsonObject]:
        """The objects of JSON Lines, also several on a line; empty if the first line with a brace has no complete one."""
        start = next((index for index, line in enumerate(self.lines) if line.lstrip().startswith("{")), None)
        if start is None or not isinstance(_first_value(self.lines[start]), dict):
            return []
        numbered = [(number, line) for number, line in enumerate(self.lines[start:], start + 1) if line.strip()]
        while numbered[-1][1].lstrip()[0].isalpha():
            numbered.pop()  # a summary that the program prints at its end
        objects = []
        for number, line in numbered:
            place = f"line {number}"
            for content in parse_json_values(self.path, line.strip(), field=place):
                if not isinstance(content, dict):
                    raise self.error(place, f"expected a JSON object. Got {line.strip()!r:.40}: delete the line.")
                objects.append(JsonObject(self.path, place, content))
        return objects

    def build(self, field: str, make: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Return what `make` returns; reports its InvalidValueError as the FormatError of a field."""
        return Fields(self.path, {}).build(field, make, *arguments, **keywords)

    def check_one(self, field: str, content: str, values: Iterable[object]) -> None:
        """Raise FormatError naming the field if the values contain several names, such as those of two models.

        Args:
            field: its name.
            content: what was expected, such as `the answers of one model`.
            values: of all objects; only texts count.
        """
        names = {value for value in values if isinstance(value, str)}
        if len(names) > 1:
            raise self.error(field, f"expected {content}. Got {len(names)}: keep the lines of one.")

    def error(self, field: str, reason: str) -> FormatError:
        return FormatError(self.path, field, reason)


def _unwrap_batch_response(line: JsonObject) -> JsonObject:
    """Return the response in a line of a batch's output; any other object unchanged."""
    response = line.content.get("response") if "custom_id" in line.content else None
    body = response.get("body") if isinstance(response, dict) else None
    return JsonObject(line.path, line.place, body) if isinstance(body, dict) else line


def check_equal(
    fields: Fields, field: str, expected: float, why: str, *, within: float = 0.0, got: float | None = None
) -> None:
    """Raise FormatError for a number that contradicts the others of its file.

    `got` is by default the number of the field, which a file may lack.
    """
    if got is None:
        if field not in fields:
            return
        got = fields.number(field)
    if not abs(got - expected) <= within:
        raise fields.error(
            field, f"expected {expected:.6g}, {why}. Got {got:.6g}: one of them is wrong, write it again."
        )


def source_text(path: Path | str, kind: str) -> str:
    """Return the name of an imported file in a profile.

    >>> source_text("measured/costs.json", "SGLang cost table")
    'costs.json (SGLang cost table)'
    """
    name = "".join(letter if letter.isprintable() else "?" for letter in Path(path).name)
    return f"{name[:MAX_NAME]} ({kind})"


def _first_value(text: str) -> Any:
    """Return the JSON value that text begins with; None if it begins with something else."""
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except (ValueError, RecursionError):
        return None
