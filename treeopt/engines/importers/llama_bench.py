"""Times of llama-bench of llama.cpp: its Markdown table, or what it prints with `-o json`, `-o jsonl` or `-o csv`.

    n_prompt, n_gen: tokens of a prompt, read in one go, or generated one by one; the other is 0
    n_depth: tokens in the cache before
    samples_ns, avg_ns: nanoseconds of each repetition, and their mean
    n_ubatch, n_batch: most tokens of a pass; a longer prompt takes several, and is left out

The table has `pp8`, `tg32` or `pp8 @ d512` as `test`, tokens per second, and `n_ubatch` and `n_batch` where they are not
the default.

A pass over a prompt has one row of the head, verification has one for each token: verification takes somewhat longer.
"""

import re
from collections.abc import Iterator
from typing import Any

from treeopt.engines.importers.content import markdown_cells, source_text
from treeopt.engines.importers.csv_rows import header_names, read_rows
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_latency import curves
from treeopt.engines.importers.importer import Measurements
from treeopt.files.fields import Fields

KEYS = frozenset({"n_prompt", "n_gen", "avg_ns"})
COUNTS = frozenset({"n_prompt", "n_gen", "n_depth", "n_batch", "n_ubatch"})
RESULTS = ("avg_", "stddev_", "samples_", "test")
"""What names of results begin with; all other columns are settings, which all rows must share: they make one curve."""
TEST, SPEED = "test", "t/s"
TESTS = re.compile(r"(pp|tg) ?(\d{1,9})(?: @ d(\d{1,9}))?")
DEFAULT_UBATCH = 512
KIND = "llama-bench, prompts taken for verification, low by the rows of the head"
DRAFT_KIND = "llama-bench, passes taken for levels of a draft"


def is_llama_bench(file: ForeignFile) -> bool:
    """Return whether a file is rows of llama-bench."""
    objects = [] if not file.is_json else file.objects
    if objects and objects[0].fields.keys() >= KEYS:
        return True
    return frozenset(header_names(file)) >= KEYS or _table_names(file) is not None


def read_llama_bench(file: ForeignFile) -> Measurements:
    """Return the times of passes against their tokens, a curve for every depth.

    Raises FormatError naming the row and the field.
    """
    samples: dict[int, dict[int, list[float]]] = {}
    first: dict[str, Any] = {}
    for fields, content in _rows(file):
        for key in content.keys() - COUNTS:
            if not key.startswith(RESULTS) and first.setdefault(key, content[key]) != content[key]:
                values = f"{first[key]!s:.40} and {content[key]!s:.40}"
                raise fields.error(key, f"expected one value in all rows. Got {values}: keep the rows of one.")
        prompt, generated = fields.integer("n_prompt", least=0), fields.integer("n_gen", least=0)
        most = min([content[key] for key in ("n_ubatch", "n_batch") if type(content.get(key)) is int], default=prompt)
        if (prompt and generated) or prompt > most:
            continue
        depth = fields.integer("n_depth", least=0) if "n_depth" in fields else 0
        nanoseconds = fields.numbers("samples_ns") if content.get("samples_ns") else [fields.number("avg_ns")]
        passes = generated or 1
        samples.setdefault(depth, {}).setdefault(prompt or 1, []).extend(each * 1e-9 / passes for each in nanoseconds)
    if not samples:
        raise file.error(
            "n_prompt", "expected prompts of at most n_ubatch tokens: run llama-bench with -p 1,2,4,8,16,32."
        )
    drafts = file.default_pass == "draft"
    source = source_text(file.path, DRAFT_KIND if drafts else KIND)
    latencies = Fields(file.path, {}).build("n_prompt", curves, samples, drafts=drafts, source=source)
    return Measurements(latencies=latencies)


def _rows(file: ForeignFile) -> Iterator[tuple[Fields, dict[str, Any]]]:
    """Yield the fields and the content of every row, of JSON, CSV or the table."""
    if file.is_json:
        for each in file.objects:
            yield each.read(file.path), each.fields
        return
    if (names := _table_names(file)) is not None:
        yield from _table_rows(file, names)
        return
    for row in read_rows(file).rows:
        counts = {key: row.whole(key, least=0) for key in sorted(COUNTS) if key in row.cells}
        content = {**row.cells, **counts, "avg_ns": row.number("avg_ns"), "samples_ns": None}
        yield Fields(file.path, content, row.line), content


def _table_names(file: ForeignFile) -> list[str] | None:
    """Return the names of the Markdown table; None where there is none."""
    if file.is_json:
        return None
    return next((cells for line in file.lines if {TEST, SPEED} <= set(cells := markdown_cells(line))), None)


def _table_rows(file: ForeignFile, names: list[str]) -> Iterator[tuple[Fields, dict[str, Any]]]:
    """Yield the rows of prompts and of generated tokens; other lines are the program's log."""
    for number, line in enumerate(file.lines, start=1):
        content: dict[str, Any] = dict(zip(names, cells := markdown_cells(line), strict=False))
        test = TESTS.fullmatch(content.get(TEST, ""))
        if len(cells) != len(names) or test is None:
            continue
        place, tokens = f"line {number}", int(test[2])
        try:
            speed = float(content.pop(SPEED).split("±")[0])
            caps: dict[str, Any] = {
                key: int(content.get(key, DEFAULT_UBATCH)) for key in ("n_ubatch", "n_batch") if key in content
            }
        except ValueError:
            raise file.error(
                place, f"{SPEED}: expected numbers, such as 102.00 ± 0.10. Got {cells[-1]!r:.40}."
            ) from None
        if not speed > 0:
            raise file.error(place, f"{SPEED}: expected a number above 0. Got {speed:g}: remove the line.")
        kind: dict[str, Any] = {"n_prompt": tokens, "n_gen": 0} if test[1] == "pp" else {"n_prompt": 0, "n_gen": tokens}
        content |= {
            "n_ubatch": DEFAULT_UBATCH,
            **caps,
            **kind,
            "n_depth": int(test[3] or 0),
            "avg_ns": tokens / speed * 1e9,
        }
        yield Fields(file.path, content, place), content
