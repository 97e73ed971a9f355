"""Prompts for profiles and benchmarks: the bundled ones, or those of a text, JSON or JSONL file or a datasets folder."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar
from zlib import crc32

from treeopt import bundled as bundle
from treeopt.errors import FormatError, TreeoptError, printable
from treeopt.files.json_file import parse_json
from treeopt.files.whole_files import read_bytes
from treeopt.texts.datasets import arrow_rows, is_saved_dataset, parquet_rows

MAX_BYTES = 64_000_000
"""Of a text or JSON file, and of a line of a JSONL file."""
BUNDLED = "bundled"
"""Name of the prompts that come with treeopt."""
MAX_PROMPTS = 4096
LEAST_PROMPTS = 3
"""Two for a profile and one for a benchmark."""
BENCH_EVERY = 4
"""Every so many prompts one is kept for benchmarks, the others are for profiles."""
FIELDS = ("text", "prompt", "question", "instruction", "messages", "turns", "conversations", "conversation")
"""Where an object keeps its prompt, the first one that is there."""
USERS = ("user", "human")
SUFFIXES = (".parquet", ".jsonl", ".json", ".txt")
"""Of a folder the files of the first kind that is there are read."""
NOT_PROMPTS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")

Prompt = TypeVar("Prompt")
Row = tuple[Path, str, object]
"""A file, the place in it, and what it holds there."""


def load_prompts(path: Path | str = bundle.PROMPTS, *, most: int = MAX_PROMPTS) -> list[str]:
    """Return the first `most` prompts of a file or a datasets folder, in its order; by default the bundled ones.

    Files are `.txt` (blank lines between prompts; without blank lines each line is one), `.json` (a list) and `.jsonl`,
    of texts or objects with one of `FIELDS`; of a conversation the user's first message counts.  Empty prompts are
    passed over.  Folders are those that datasets' `save_to_disk` writes, or hold files of one of these kinds or
    `.parquet`.

    Raises FormatError naming the first row that holds no prompt, or where there are fewer than three; TreeoptError
    where the path cannot be read, or takes a package that is not installed.
    """
    path = Path(path)
    texts = (prompt_of(*row) for row in _rows(path))
    prompts = list(islice((text for text in texts if text.strip()), most))
    if len(prompts) < LEAST_PROMPTS:
        raise FormatError(path, "content", f"expected at least {LEAST_PROMPTS} prompts. Got {len(prompts)}.")
    return prompts


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


def prompts_name(path: Path | None, prompts: Sequence[str]) -> str:
    """Return what prompts are known by: the name of their file or folder and a checksum of the first, however many are taken.

    >>> prompts_name(None, []), prompts_name(Path("mine.txt"), ["a", "b", "c"])
    ('bundled', 'mine.txt 6a861398')
    """
    if path is None:
        return BUNDLED
    checksum = crc32(json.dumps(prompts[:LEAST_PROMPTS]).encode())
    return printable(f"{path.name} {checksum:08x}")


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
