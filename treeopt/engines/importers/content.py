"""What the readers share: JSON, JSON Lines, comparisons of numbers that are written twice, and how a source is named."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError
from treeopt.files.fields import Fields
from treeopt.files.json_file import parse_json

MAX_NAME = 80
MOST = 10_000
"""Tokens of a step."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """One JSON object of a file, and its place there: a line, or empty where it is the whole file."""

    place: str
    fields: dict[str, Any]

    def inner(self, path: Path | str, *names: str) -> "JsonObject":
        """Return the object that lies under these names; what is null there counts as missing.

        Raises FormatError where something else lies there.
        """
        content: Any = self.fields
        for name in names:
            content = content[name]
        place = ", ".join(filter(None, (self.place, ".".join(names))))
        Fields(path, content, place)
        return JsonObject(place, {name: value for name, value in content.items() if value is not None})

    def read(self, path: Path | str) -> Fields:
        """Return its fields, to be read one by one."""
        return Fields(path, self.fields, self.place)


def read_json(path: Path | str, text: str) -> Any:
    """Return the value of JSON text; raises FormatError for text that is none and for keys that appear twice."""
    return parse_json(path, text, unique_keys=True)


def is_json_lines(text: str) -> bool:
    r"""Return whether a text is several JSON objects, each on a line of its own.

    >>> is_json_lines('{"a": 1}\n{"a": 2}'), is_json_lines('{"a":\n1}')
    (True, False)
    """
    lines = [line for line in text.lstrip().split("\n", 9)[:9] if line.strip()][:2]
    return len(lines) == 2 and all(line.lstrip().startswith("{") for line in lines)


def read_json_lines(path: Path | str, text: str) -> list[JsonObject]:
    """Return the objects of JSON Lines, empty lines left out; raises FormatError naming the line."""
    lines = [(f"line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    found = []
    for place, line in lines:
        content = parse_json(path, line, place=place, unique_keys=True)
        if not isinstance(content, dict):
            raise FormatError(path, place, f"expected a JSON object. Got {line.strip()!r:.40}: take the line out.")
        found.append(JsonObject(place, content))
    return found


def as_objects(content: object) -> list[JsonObject]:
    """Return the objects of parsed JSON, one or a list of them; none where it holds anything else."""
    if isinstance(content, dict):
        return [JsonObject("", content)]
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        return []
    return [JsonObject(f"[{place}]", each) for place, each in enumerate(content)]


def read_counts(fields: Fields, field: str, content: object) -> dict[int, int]:
    """Return counts by whole numbers from 0, zeros left out: of a list by its places, of an object by its names.

    Args:
        fields: where they stand.
        field: their name there.
        content: what stands there, as JSON has it.
    """
    if isinstance(content, dict):
        inner, keys = fields.mapping(field), list(content)
        if wrong := [key for key in keys if not (key.isascii() and key.isdecimal() and len(key) <= len(str(MOST)))]:
            raise fields.error(field, f"expected whole numbers as names. Got {wrong[0]!r:.40}.")
        counts = {int(key): inner.integer(key, least=0) for key in keys}
    else:
        counts = dict(enumerate(fields.integers(field)))
    if max(counts, default=0) > MOST or min(counts.values(), default=0) < 0:
        raise fields.error(field, f"expected counts of at least 0 for at most {MOST} tokens. Got others: is it torn?")
    return {number: count for number, count in counts.items() if count}


def check_equal(fields: Fields, field: str, *, expected: float, got: float, within: float, why: str) -> None:
    """Raise FormatError for a number that is not what others of its file make it."""
    if not abs(got - expected) <= within:
        raise fields.error(
            field, f"expected {expected:.6g}, {why}. Got {got:.6g}: one of them is wrong, write it anew."
        )


def source_text(path: Path | str, kind: str) -> str:
    """Return how an imported file is named in a profile.

    >>> source_text("measured/costs.json", "SGLang cost table")
    'costs.json (SGLang cost table)'
    """
    name = "".join(letter if letter.isprintable() else "?" for letter in Path(path).name)
    return f"{name[:MAX_NAME]} ({kind})"
