"""Prompts for profiles and benchmarks, of a text, JSON, JSONL or parquet file or of a datasets folder."""

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple, TypeVar
from zlib import crc32

from treeopt import bundled as bundle
from treeopt.errors import FormatError, TreeoptError, printable
from treeopt.files.atomic_files import read_bytes
from treeopt.files.json_file import parse_json
from treeopt.texts.datasets import arrow_rows, is_saved_dataset, parquet_rows

DEFAULT_PROMPTS = Path(__file__).parent / "default_prompts.jsonl"
"""For all pairs except the bundled one, which was trained on Python source and has `treeopt.bundled.PROMPTS`."""
MAX_BYTES = 64_000_000
"""Largest text or JSON file, and line of a JSONL file."""
MAX_PROMPTS = 4096
LEAST_PROMPTS = 3
"""Two for a profile and one for a benchmark."""
BENCH_EVERY = 4
"""Every fourth prompt is for benchmarks, the others are for profiles."""
FIELDS = ("prompt", "question", "instruction", "messages", "turns", "conversations", "conversation", "text")
"""Fields of an object that may contain its prompt; the first one counts."""
INPUTS = ("input", "context")
"""Fields with what an `instruction` is about; the first one follows it."""
CATEGORY = "category"
"""Field of an object with the category of its prompt."""
MAX_CATEGORY_CHARACTERS = 64
USERS = ("user", "human")
SUFFIXES = (".parquet", ".jsonl", ".json", ".txt")
"""In a folder, only files of the first suffix that occurs are read."""
NOT_PROMPTS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")

Prompt = TypeVar("Prompt")
Row = tuple[Path, str, object]
"""A file, a field of it such as `line 3`, and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSample:
    """Prompts of a file, spread evenly over its rows and categories."""

    texts: tuple[str, ...]
    """The prompts; `profile_prompts` and `bench_prompts` split them, each evenly over the categories."""
    categories: tuple[str, ...]
    """The category of each prompt; `""` for prompts without one."""
    available: int
    """Prompts in the file."""
    checksum: int
    """CRC-32 of all prompts in the file."""


def load_prompts(path: Path | str = bundle.PROMPTS, *, most: int = MAX_PROMPTS) -> list[str]:
    """Return at most `most` prompts of a file or a datasets folder, by default those of the bundled pair.

    Sampling and errors are those of `sample_prompts`.
    """
    return list(sample_prompts(path, most=most).texts)


def sample_prompts(path: Path | str, *, most: int = MAX_PROMPTS) -> PromptSample:
    """Return at most `most` prompts of a file or a datasets folder, evenly over its categories and its rows.

    Files are `.txt` (blank lines between prompts; without blank lines each line is a prompt), `.json` (a list) and
    `.jsonl`, of texts or objects with one of `FIELDS` and optionally a `CATEGORY`; of a conversation the user's first
    message counts. Empty prompts are skipped. Folders are those that datasets' `save_to_disk` writes, or contain files of
    one of these kinds or `.parquet`.

    Whether a row is held out for benchmarks does not depend on `most`: a profile of few prompts and a benchmark of
    many share none. Rows without categories stay in the order of the file. Files are read twice, and only the returned
    prompts are kept in memory.

    Raises FormatError naming the first row without a prompt or with an invalid category, and for fewer than three
    prompts; TreeoptError if the path is a pipe, cannot be read, or needs a package that is not installed.
    """
    path = Path(path)
    if path.is_fifo():
        raise TreeoptError(
            f"{path}: expected a file, because prompts are read twice. Got a pipe: save it to a file first."
        )
    counts, checksum = Counter[str](), 0
    for category, text in _read_prompts(path):
        counts[category] += 1
        checksum = crc32(text.encode() + b"\0", checksum)
    available = counts.total()
    if available < LEAST_PROMPTS:
        raise FormatError(path, "content", f"expected at least {LEAST_PROMPTS} prompts. Got {available}.")
    rows = _choose_rows(counts, min(most, available))
    positions = {row: position for position, row in enumerate(rows)}
    texts, read = [""] * len(rows), Counter[str]()
    for category, text in _read_prompts(path):
        position = positions.get((category, read[category]))
        read[category] += 1
        if position is not None:
            texts[position] = text
    if "" in texts:
        raise FormatError(path, "content", "changed while it was read. Try again.")
    return PromptSample(
        texts=tuple(texts),
        categories=tuple(category for category, _ in rows),
        available=available,
        checksum=checksum,
    )


def _read_prompts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield category and text of every prompt that is not blank."""
    for row in _rows(path):
        category, text = _read_category(*row), _read_prompt(*row)
        if text.strip():
            yield category, text


def _choose_rows(counts: Mapping[str, int], size: int) -> list[tuple[str, int]]:
    """Return `size` rows, each as its category and its number within it; every fourth is held out for benchmarks.

    Every fourth row of the file sorted by category is held out, so that the held-out rows are even over categories and
    independent of `size`.
    """
    starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    held_out = {name: _multiples(start + counts[name]) - _multiples(start) for name, start in starts.items()}
    others = {name: counts[name] - held_out[name] for name in counts}
    bench_quotas = _quotas(held_out, _multiples(size), Counter())
    profile_quotas = _quotas(others, size - _multiples(size), bench_quotas)
    first = {name: -start % BENCH_EVERY for name, start in starts.items()}  # held-out row of each category
    bench = ((name, first[name] + BENCH_EVERY * row) for name, row in _spread(held_out, bench_quotas))
    profile = ((name, _other_row(row, first[name])) for name, row in _spread(others, profile_quotas))
    return [next(profile if position % BENCH_EVERY else bench) for position in range(size)]


def _multiples(end: int) -> int:
    """Return the number of multiples of `BENCH_EVERY` in `range(end)`."""
    return -(-end // BENCH_EVERY)


def _other_row(number: int, first: int) -> int:
    """Return the row with this number among those that are not held out; `first` is the first held-out row."""
    return number if number < first else number + 1 + (number - first) // (BENCH_EVERY - 1)


def _quotas(counts: Mapping[str, int], size: int, taken: Mapping[str, int]) -> Counter[str]:
    """Return the rows of each category among `size` rows, so that with those already taken the categories are even.

    Ties are broken by checksums, so that the order of categories in a file does not matter.
    """
    quotas = Counter[str]()
    queue = [(taken[name], crc32(name.encode()), name) for name, count in counts.items() if count]
    heapq.heapify(queue)
    for _ in range(size):
        total, tie, name = heapq.heappop(queue)
        quotas[name] += 1
        if quotas[name] < counts[name]:
            heapq.heappush(queue, (total + 1, tie, name))
    return quotas


def _spread(counts: Mapping[str, int], quotas: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Return rows at equal distances within each category, with alternating categories."""
    rows = [
        ((row + 0.5) / quotas[name], name, row * counts[name] // quotas[name])
        for name in counts
        for row in range(quotas[name])
    ]
    return ((name, row) for _, name, row in sorted(rows, key=lambda row: row[0]))


class PlacedPrompt(NamedTuple):
    """A prompt of a file."""

    place: str
    """Its field, such as `line 3`, or `[2]` for the third of a list."""
    text: str
    """May be blank."""


def load_all_prompts(path: Path | str) -> list[PlacedPrompt]:
    """Return all prompts of a file or a datasets folder, blank ones too.

    Raises FormatError if all are blank or there are more than `MAX_PROMPTS`; other errors are those of `sample_prompts`.
    """
    path = Path(path)
    prompts = [PlacedPrompt(row[1], _read_prompt(*row)) for row in islice(_rows(path), MAX_PROMPTS + 1)]
    if not any(prompt.text.strip() for prompt in prompts):
        raise FormatError(path, "content", "expected at least one prompt. Got none.")
    if len(prompts) > MAX_PROMPTS:
        raise FormatError(path, "content", f"expected at most {MAX_PROMPTS} prompts. Got more: split the file.")
    return prompts


def prompts_name(path: Path, sample: PromptSample) -> str:
    """Return the name of prompts in profiles: of their file or folder, and a checksum of all prompts in it.

    >>> sample = PromptSample(texts=("a", "b", "c"), categories=("",) * 3, available=3, checksum=0x6A861398)
    >>> prompts_name(Path("mine.txt"), sample)
    'mine.txt 6a861398'
    """
    return printable(f"{path.name} {sample.checksum:08x}")


def profile_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts that profiles are measured on."""
    return [prompt for index, prompt in enumerate(prompts) if index % BENCH_EVERY]


def bench_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts for benchmarks, which profiles do not use."""
    return list(prompts[::BENCH_EVERY])


def _read_prompt(path: Path, field: str, row: object) -> str:
    """Return the prompt of a row, empty for a conversation without a user's message; raises FormatError for other rows."""
    if isinstance(row, dict):
        name = next((name for name in FIELDS if row.get(name) is not None), None)
        if name is None:
            raise FormatError(path, field, f"expected one of the fields {', '.join(FIELDS)}.")
        about = next((row[other] for other in INPUTS if row.get(other)), None) if name == "instruction" else None
        field, row = f"{field}.{name}", row[name]
        if isinstance(row, str) and isinstance(about, str):
            row = f"{row}\n\n{about}"
        if isinstance(row, list):
            row = next((text for text in map(_user_text, row) if text is not None), "")
    if not isinstance(row, str):
        raise FormatError(path, field, "expected a text, or messages of a user.")
    try:
        row.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can contain
        raise FormatError(path, field, "expected a text of whole characters.") from None
    return row


def _read_category(path: Path, field: str, row: object) -> str:
    """Return the category of a row, "" by default; raises FormatError for anything but a short text."""
    category = row.get(CATEGORY) if isinstance(row, dict) else None
    if category is None:
        return ""
    if not isinstance(category, str) or len(category) > MAX_CATEGORY_CHARACTERS:
        actual = f"{len(category)} characters" if isinstance(category, str) else f"{category!r:.40}"
        expected = f"expected a text of at most {MAX_CATEGORY_CHARACTERS} characters"
        raise FormatError(path, f"{field}.{CATEGORY}", f"{expected}. Got {actual}: rename the field, or leave it out.")
    return printable(category.strip())


def _user_text(message: object) -> object:
    """Return the content of a user's message, None for other messages."""
    if not isinstance(message, dict):
        return message
    if message.get("role", message.get("from")) not in USERS:
        return None
    content = message.get("content", message.get("value"))
    if not isinstance(content, list):
        return content
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else content


def _rows(path: Path) -> Iterator[Row]:
    if not path.exists():
        raise TreeoptError(f"{path}: no such file or folder. Check the path.")
    if not path.is_dir():
        yield from _file_rows(path)
    elif is_saved_dataset(path):
        yield from _numbered(path, arrow_rows(path))
    else:
        for file in _files(path):
            yield from _file_rows(file)


def _files(folder: Path) -> list[Path]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name not in NOT_PROMPTS]
    visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    for suffix in SUFFIXES:
        if matching := [file for file in visible if file.suffix.lower() == suffix]:
            return matching
    raise TreeoptError(f"{folder}: no prompts. Expected files that end in {', '.join(SUFFIXES)}.")


def _file_rows(path: Path) -> Iterator[Row]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _numbered(path, parquet_rows(path))
    if suffix == ".jsonl":
        return _line_rows(path)
    if suffix == ".txt":
        return _numbered(path, paragraphs(_text(path)))
    if suffix == ".json":
        return _json_rows(path)
    raise FormatError(path, "name", f"expected a folder, or a file that ends in {', '.join(SUFFIXES)}.")


def _numbered(path: Path, rows: Iterable[object]) -> Iterator[Row]:
    return ((path, f"[{index}]", row) for index, row in enumerate(rows))


def paragraphs(text: str) -> list[str]:
    r"""Return the parts of a text between blank lines, or its lines if it has no blank lines.

    >>> paragraphs("a\nb\n\nc\n"), paragraphs("a\nb\n")
    (['a\nb', 'c'], ['a', 'b'])
    """
    text = text.replace("\r\n", "\n").strip("\n")
    parts = re.split(r"\n(?:[ \t]*\n)+", text)
    return text.split("\n") if len(parts) == 1 else parts


def _json_rows(path: Path) -> Iterator[Row]:
    text = _text(path)
    if not text.lstrip().startswith("["):  # often JSONL with the suffix of JSON
        return _line_rows(path)
    rows = parse_json(path, text)
    assert isinstance(rows, list)
    return _numbered(path, rows)


def _line_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSONL file line by line, because it may be larger than memory."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES), b""), start=1):
                field = f"line {number}"
                if line.strip():
                    yield path, field, parse_json(path, _decode(path, field, line), field=field)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be read ({error.strerror}). Expected a readable file.") from None


def _text(path: Path) -> str:
    return _decode(path, "content", read_bytes(path, limit_bytes=MAX_BYTES))


def _decode(path: Path, field: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, field, f"expected UTF-8 text (byte {error.start}).") from None
