"""Curves of other programs: which kind of file it is, by its content."""

from pathlib import Path

from treeopt.engines.importers.content import as_objects, is_json_lines, read_json, read_json_lines
from treeopt.engines.importers.imported_latency import ImportedLatency
from treeopt.engines.importers.latency_batched_bench import KEYS, KIND, read_batched_bench
from treeopt.engines.importers.latency_csv import read_csv
from treeopt.engines.importers.latency_tables import TABLES
from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.whole_files import read_text
from treeopt.records.step_latency import LATENCY_PARTS

MAX_BYTES = 4_000_000


def read_latency(path: Path | str, *, default_pass: str = "verify") -> tuple[ImportedLatency, ...]:
    """Return the times of a file, one record per condition: CSV, an engine's cost table, or llama-batched-bench's.

    Args:
        path: the file.
        default_pass: `verify`, `draft` or `overhead`: what rows of CSV are that do not say so.  Tables of engines are
            of verification.

    Raises FormatError naming the file, the line or field and the reason, TreeoptError when it cannot be read.
    """
    if default_pass not in LATENCY_PARTS:
        raise InvalidValueError(f"default_pass: expected one of {', '.join(LATENCY_PARTS)}. Got {default_pass!r}.")
    text = read_text(path, limit_bytes=MAX_BYTES).removeprefix("\ufeff")
    if not text.lstrip().startswith(("{", "[")):
        return read_csv(path, text, default_pass)
    if is_json_lines(text):
        return _verification(path, KIND, default_pass, read_batched_bench(path, read_json_lines(path, text)))
    content = read_json(path, text)
    objects = as_objects(content)
    if objects and objects[0].fields.keys() >= KEYS:
        return _verification(path, KIND, default_pass, read_batched_bench(path, objects))
    for table in TABLES:
        if isinstance(content, dict) and table.key in content:
            return _verification(path, table.kind, default_pass, table.read(path, content))
    raise FormatError(
        path,
        "content",
        "expected CSV with a line of names (tokens,seconds), SGLang's cost table (sample_batch_tokens or bias_seconds), "
        "TensorRT-LLM's (token_counts), or lines of llama-batched-bench (pl, tg, t_tg). Got other JSON.",
    )


def _verification(
    path: Path | str, kind: str, default_pass: str, found: tuple[ImportedLatency, ...]
) -> tuple[ImportedLatency, ...]:
    """Return times of verification; raises FormatError where others were asked for."""
    if default_pass != "verify":
        reason = f"expected CSV of {default_pass} passes. Got {kind}, which is of verification."
        raise FormatError(path, "content", reason)
    return found
