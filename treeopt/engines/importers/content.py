"""What the importers share: JSON objects, counts, comparisons of numbers that are written twice, names of sources."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.files.fields import Fields

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


def markdown_cells(line: str) -> list[str]:
    """Return the cells of a row of a Markdown table; none for other lines.

    >>> markdown_cells("| pp8 | 740.00 ± 0.10 |")
    ['pp8', '740.00 ± 0.10']
    """
    return [cell.strip() for cell in line.split("|")[1:-1]] if line.lstrip().startswith("|") else []


def source_text(path: Path | str, kind: str) -> str:
    """Return how an imported file is named in a profile.

    >>> source_text("measured/costs.json", "SGLang cost table")
    'costs.json (SGLang cost table)'
    """
    name = "".join(letter if letter.isprintable() else "?" for letter in Path(path).name)
    return f"{name[:MAX_NAME]} ({kind})"
