"""Prompts for profiles and benchmarks: the default ones, or those of a text, JSON or JSONL file or a datasets folder."""

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
from treeopt.files.json_file import parse_json
from treeopt.files.whole_files import read_bytes
from treeopt.texts.datasets import arrow_rows, is_saved_dataset, parquet_rows

DEFAULT_PROMPTS = Path(__file__).parent / "default_prompts.jsonl"
"""Prompts for every pair but the bundled one, which was trained on Python source and has `treeopt.bundled.PROMPTS`."""
MAX_BYTES = 64_000_000
"""Of a text or JSON file, and of a line of a JSONL file."""
MAX_PROMPTS = 4096
LEAST_PROMPTS = 3
"""Two for a profile and one for a benchmark."""
BENCH_EVERY = 4
"""Every fourth prompt is held out for benchmarks, the others are for profiles."""
FIELDS = ("text", "prompt", "question", "instruction", "messages", "turns", "conversations", "conversation")
"""Fields of an object that hold its prompt; the first one that is there counts."""
CATEGORY = "category"
"""Field of an object with the category of its prompt."""
MAX_CATEGORY_CHARACTERS = 64
USERS = ("user", "human")
SUFFIXES = (".parquet", ".jsonl", ".json", ".txt")
"""Of a folder the files of the first kind that is there are read."""
NOT_PROMPTS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")

Prompt = TypeVar("Prompt")
Row = tuple[Path, str, object]
"""A file, the place in it, and what it holds there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSample:
    """Prompts of a file, spread evenly over its rows and categories."""

    texts: tuple[str, ...]
    """The prompts; `profile_prompts` and `bench_prompts` split them, each part even over the categories."""
    categories: Mapping[str, int]
    """How many prompts of each category were taken; `""` is the category of prompts without one."""
    available: int
    """Prompts in the file."""
    checksum: int
    """CRC-32 of all prompts in the file."""
    text_categories: tuple[str, ...] = ()
    """The category of each of `texts`; empty where nobody recorded them."""


def load_prompts(path: Path | str = bundle.PROMPTS, *, most: int = MAX_PROMPTS) -> list[str]:
    """Return the prompts of a file or a datasets folder, at most `most`; by default those of the bundled pair.

    See `sample_prompts`, which also returns their categories, and raises the same errors.
    """
    return list(sample_prompts(path, most=most).texts)


def sample_prompts(path: Path | str, *, most: int = MAX_PROMPTS) -> PromptSample:
    """Return at most `most` prompts of a file or a datasets folder, evenly over its categories and its rows.

    Files are `.txt` (blank lines between prompts; without blank lines each line is a prompt), `.json` (a list) and
    `.jsonl`, of texts or objects with one of `FIELDS` and perhaps a `CATEGORY`; of a conversation the user's first
    message counts.  Empty prompts are skipped.  Folders are those that datasets' `save_to_disk` writes, or hold files
    of one of these kinds or `.parquet`.

    Whether a row is held out for benchmarks does not depend on `most`: a profile of few prompts and a benchmark of
    many share none.  Rows without categories stay in the order of the file.  Files are read twice, and only the
    returned prompts are kept in memory.

    Raises FormatError naming the first row without a prompt, or with a category that is none, and if there are fewer
    than three prompts; TreeoptError if the path is a pipe, cannot be read, or needs a package that is not installed.
    """
    path = Path(path)
    if path.is_fifo():
        raise TreeoptError(
            f"{path}: expected a file, because prompts are read twice. Got a pipe: save it to a file first."
        )
    counts, checksum = Counter[str](), 0
    for category, text in _categorised(path):
        counts[category] += 1
        checksum = crc32(text.encode() + b"\0", checksum)
    available = counts.total()
    if available < LEAST_PROMPTS:
        raise FormatError(path, "content", f"expected at least {LEAST_PROMPTS} prompts. Got {available}.")
    order = _chosen_rows(counts, min(most, available))
    places = {row: place for place, row in enumerate(order)}
    texts, seen = [""] * len(order), Counter[str]()
    for category, text in _categorised(path):
        place = places.get((category, seen[category]))
        seen[category] += 1
        if place is not None:
            texts[place] = text
    if "" in texts:
        raise FormatError(path, "content", "changed while it was read. Try again.")
    return PromptSample(
        texts=tuple(texts),
        categories=Counter(row[0] for row in order),
        available=available,
        checksum=checksum,
        text_categories=tuple(row[0] for row in order),
    )


def _categorised(path: Path) -> Iterator[tuple[str, str]]:
    """Yield category and text of every prompt that is not blank."""
    for row in _rows(path):
        category, text = _category_of(*row), prompt_of(*row)
        if text.strip():
            yield category, text


def _chosen_rows(counts: Mapping[str, int], wanted: int) -> list[tuple[str, int]]:
    """Return the rows to take, each as its category and its number within it; every fourth is held out.

    Held out is every fourth row of the file sorted by category, so that the held-out rows are even over categories
    and the same whatever `wanted` is.
    """
    starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    held_out = {name: _multiples(start + counts[name]) - _multiples(start) for name, start in starts.items()}
    others = {name: counts[name] - held_out[name] for name in counts}
    bench_quotas = _quotas(held_out, _multiples(wanted), Counter())
    profile_quotas = _quotas(others, wanted - _multiples(wanted), bench_quotas)
    first = {name: -start % BENCH_EVERY for name, start in starts.items()}  # held out of each category
    bench = ((name, first[name] + BENCH_EVERY * row) for name, row in _spread(held_out, bench_quotas))
    profile = ((name, _other_row(row, first[name])) for name, row in _spread(others, profile_quotas))
    return [next(profile if place % BENCH_EVERY else bench) for place in range(wanted)]


def _multiples(end: int) -> int:
    """Return how many multiples of `BENCH_EVERY` are in `range(end)`."""
    return -(-end // BENCH_EVERY)


def _other_row(number: int, first: int) -> int:
    """Return the row with this number among those that are not held out, where `first` is the first held-out row."""
    return number if number < first else number + 1 + (number - first) // (BENCH_EVERY - 1)


def _quotas(counts: Mapping[str, int], wanted: int, taken: Mapping[str, int]) -> Counter[str]:
    """Return how many of `wanted` rows each category gives, so that with those already taken all give alike.

    Ties are broken by checksums, so that neither the first nor the last categories of a file are preferred.
    """
    quotas = Counter[str]()
    queue = [(taken[name], crc32(name.encode()), name) for name, count in counts.items() if count]
    heapq.heapify(queue)
    for _ in range(wanted):
        total, tie, name = heapq.heappop(queue)
        quotas[name] += 1
        if quotas[name] < counts[name]:
            heapq.heappush(queue, (total + 1, tie, name))
    return quotas


def _spread(counts: Mapping[str, int], quotas: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield rows at equal distances within each category, the categories alternating."""
    rows = [
        ((row + 0.5) / quotas[name], name, row * counts[name] // quotas[name])
        for name in counts
        for row in range(quotas[name])
    ]
    return ((name, row) for _, name, row in sorted(rows, key=lambda each: each[0]))


class PlacedPrompt(NamedTuple):
    """A prompt of a file."""

    place: str
    """Where it stands, such as `line 3`, or `[2]` for the third of a list."""
    text: str
    """Blank where there is none."""


def every_prompt(path: Path | str) -> list[PlacedPrompt]:
    """Return all prompts of a file or a datasets folder, blank ones too; see `load_prompts`.

    Raises what `load_prompts` raises, but for too few; FormatError where all are blank, or more than `MAX_PROMPTS`.
    """
    path = Path(path)
    prompts = [PlacedPrompt(row[1], prompt_of(*row)) for row in islice(_rows(path), MAX_PROMPTS + 1)]
    if not any(prompt.text.strip() for prompt in prompts):
        raise FormatError(path, "content", "expected at least one prompt. Got none.")
    if len(prompts) > MAX_PROMPTS:
        raise FormatError(path, "content", f"expected at most {MAX_PROMPTS} prompts. Got more: split the file.")
    return prompts


def prompts_name(path: Path, sample: PromptSample) -> str:
    """Return the name of prompts in files: that of their file or folder, and a checksum of all prompts in it.

    >>> sample = PromptSample(texts=("a", "b", "c"), categories={"": 3}, available=3, checksum=0x6A861398)
    >>> prompts_name(Path("mine.txt"), sample)
    'mine.txt 6a861398'
    """
    return printable(f"{path.name} {sample.checksum:08x}")


def profile_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts that profiles are measured on."""
    return [prompt for index, prompt in enumerate(prompts) if index % BENCH_EVERY]


def bench_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts kept for benchmarks, none of which a profile has seen."""
    return list(prompts[::BENCH_EVERY])


def prompt_of(path: Path, place: str, row: object) -> str:
    """Return the prompt of a row, empty where it has none to give; raises FormatError where it holds something else."""
    field = place
    if isinstance(row, dict):
        name = next((name for name in FIELDS if row.get(name) is not None), None)
        if name is None:
            raise FormatError(path, place, f"expected one of the fields {', '.join(FIELDS)}.")
        field, row = f"{place}.{name}", row[name]
        if isinstance(row, list):
            row = next((text for text in map(_user_text, row) if text is not None), "")
    if not isinstance(row, str):
        raise FormatError(path, field, "expected a text, or messages of a user.")
    try:
        row.encode("utf-8")
    except UnicodeEncodeError:  # half a character, which JSON can write
        raise FormatError(path, field, "expected a text of whole characters.") from None
    return row


def _category_of(path: Path, place: str, row: object) -> str:
    """Return the category of a row, "" where it has none; raises FormatError for anything but a short text."""
    category = row.get(CATEGORY) if isinstance(row, dict) else None
    if category is None:
        return ""
    if not isinstance(category, str) or len(category) > MAX_CATEGORY_CHARACTERS:
        got = f"{len(category)} characters" if isinstance(category, str) else f"{category!r:.40}"
        expected = f"expected a text of at most {MAX_CATEGORY_CHARACTERS} characters"
        raise FormatError(path, f"{place}.{CATEGORY}", f"{expected}. Got {got}: rename the field, or leave it out.")
    return printable(category.strip())


def _user_text(message: object) -> object:
    """Return what a message of a conversation says, None where it is not the user's."""
    if not isinstance(message, dict):
        return message
    return message.get("content", message.get("value")) if message.get("role", message.get("from")) in USERS else None


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
    shown = [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    for suffix in SUFFIXES:
        if found := [file for file in shown if file.suffix == suffix]:
            return found
    raise TreeoptError(f"{folder}: no prompts. Expected files that end in {', '.join(SUFFIXES)}.")


def _file_rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        return _numbered(path, parquet_rows(path))
    if path.suffix == ".jsonl":
        return _line_rows(path)
    if path.suffix == ".txt":
        return _numbered(path, paragraphs(_text(path)))
    if path.suffix == ".json":
        return _json_rows(path)
    raise FormatError(path, "name", f"expected a folder, or a file that ends in {', '.join(SUFFIXES)}.")


def _numbered(path: Path, rows: Iterable[object]) -> Iterator[Row]:
    return ((path, f"[{index}]", row) for index, row in enumerate(rows))


def paragraphs(text: str) -> list[str]:
    r"""Return the parts of a text between blank lines, or its lines where there are none.

    >>> paragraphs("a\nb\n\nc\n"), paragraphs("a\nb\n")
    (['a\nb', 'c'], ['a', 'b'])
    """
    text = text.replace("\r\n", "\n").strip("\n")
    parts = re.split(r"\n(?:[ \t]*\n)+", text)
    return text.split("\n") if len(parts) == 1 else parts


def _json_rows(path: Path) -> Iterator[Row]:
    text = _text(path)
    if not text.lstrip().startswith("["):  # often JSONL by another name
        return _line_rows(path)
    rows = parse_json(path, text)
    assert isinstance(rows, list)
    return _numbered(path, rows)


def _line_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSONL file line by line: it may be larger than memory."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES), b""), start=1):
                place = f"line {number}"
                if line.strip():
                    yield path, place, parse_json(path, _decoded(path, place, line), place=place)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be read ({error.strerror}). Expected a readable file.") from None


def _text(path: Path) -> str:
    return _decoded(path, "content", read_bytes(path, limit_bytes=MAX_BYTES))


def _decoded(path: Path, place: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, place, f"expected UTF-8 text (byte {error.start}).") from None
