"""Times of llama-bench of llama.cpp, run with `-o json`, `-o jsonl` or `-o csv`.

    n_prompt, n_gen: tokens of a prompt, read in one go, or generated one by one; the other is 0
    n_depth: tokens in the cache before
    samples_ns, avg_ns: nanoseconds of each repetition, and their mean
    n_ubatch, n_batch: most tokens of a pass; a longer prompt takes several, and is left out

A pass over a prompt has one row of the head, verification has one for each token: verification takes somewhat longer.
"""

from collections.abc import Iterator
from typing import Any

from treeopt.engines.importers.content import source_text
from treeopt.engines.importers.csv_rows import header_names, read_rows
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_latency import ImportedLatency, curve
from treeopt.engines.importers.importer import Measurements
from treeopt.files.fields import Fields

KEYS = frozenset({"n_prompt", "n_gen", "avg_ns"})
SAME = (
    "model_filename",
    "model_type",
    "backends",
    "gpu_info",
    "n_threads",
    "n_gpu_layers",
    "type_k",
    "type_v",
    "flash_attn",
)
"""What all rows must have in common: they make one curve."""
KIND = "llama-bench, prompts taken for verification"


def is_llama_bench(file: ForeignFile) -> bool:
    """Return whether a file is rows of llama-bench."""
    objects = [] if not file.is_json else file.objects
    return bool(objects and objects[0].fields.keys() >= KEYS) or frozenset(header_names(file)) >= KEYS


def read_llama_bench(file: ForeignFile) -> Measurements:
    """Return the times of passes against their tokens, a curve for every depth.

    Raises FormatError naming the row and the field.
    """
    samples: dict[int, dict[int, list[float]]] = {}
    first: dict[str, Any] = {}
    for fields, content in _rows(file):
        for key in SAME:
            if first.setdefault(key, content.get(key)) != content.get(key):
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
    return Measurements(latencies=tuple(_latency(file, depth, times) for depth, times in sorted(samples.items())))


def _latency(file: ForeignFile, depth: int, times: dict[int, list[float]]) -> ImportedLatency:
    fields = Fields(file.path, {})
    return fields.build(
        "n_prompt",
        lambda: ImportedLatency(
            context_tokens=depth, batch_size=1, verify=curve(times), source=source_text(file.path, KIND)
        ),
    )


def _rows(file: ForeignFile) -> Iterator[tuple[Fields, dict[str, Any]]]:
    """Yield the fields and the content of every row, of JSON or CSV."""
    if file.is_json:
        for each in file.objects:
            yield each.read(file.path), each.fields
        return
    for row in read_rows(file).rows:
        numbers: dict[str, Any] = {
            key: row.whole(key, least=0)
            for key in ("n_prompt", "n_gen", "n_depth", "n_batch", "n_ubatch")
            if key in row.cells
        }
        content = {**row.cells, **numbers, "avg_ns": row.number("avg_ns"), "samples_ns": None}
        yield Fields(file.path, content, row.line), content
