"""All importers, and reading of foreign files, each by the first importer that matches its content."""

from pathlib import Path
from typing import Any

from treeopt.engines.importers import (
    cost_tables,
    latency_csv,
    llama_bench,
    llama_server,
    model_optimizer,
    plain_acceptance,
    prometheus_metrics,
    sglang,
    spec_bench,
    sweep,
    tensorrt_llm,
    vllm,
    vllm_requests,
)
from treeopt.engines.importers.foreign_file import ForeignFile, source_text
from treeopt.engines.importers.importer import (
    ACCEPTANCE,
    DRAFT_TIMES,
    SWEEP,
    TIMES,
    ImportedAcceptance,
    ImportedLatency,
    Importer,
    SweepRow,
)
from treeopt.errors import FormatError
from treeopt.files.atomic_files import read_unpacked
from treeopt.files.foreign_text import describe_bytes
from treeopt.records.measured_acceptance import ACCEPTANCE as ACCEPTANCE_PART
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import LATENCY_PARTS, Imported

IMPORTERS: tuple[Importer, ...] = (
    plain_acceptance.TORCH_VECTOR,
    prometheus_metrics.METRICS,
    vllm.LOG,
    llama_server.LOG,
    sglang.LOG,
    sglang.METRICS,
    vllm.BENCH,
    sglang.RESPONSES,
    sglang.SERVER_INFO,
    llama_server.RESPONSES,
    model_optimizer.SPECDEC_BENCH,
    tensorrt_llm.BENCH_REPORT,
    tensorrt_llm.ITERATIONS,
    model_optimizer.SPECULATION_PROFILE,
    spec_bench.ANSWERS,
    vllm_requests.REQUESTS,
    llama_bench.BENCH,
    llama_bench.BATCHED_BENCH,
    cost_tables.SGLANG_SAMPLED,
    cost_tables.SGLANG_ADDITIVE,
    cost_tables.TENSORRT_LLM,
    sglang.MEAN_ONLY,
    sweep.SWEEP_ROWS,
    plain_acceptance.PLAIN,
    latency_csv.CSV,
)
"""Specific kinds first, because a file goes to the first importer that it matches."""

MAX_BYTES = 32_000_000
OPTIONS = {ACCEPTANCE: "--acceptance", TIMES: "--latency", DRAFT_TIMES: "--draft-latency", SWEEP: "--sweep"}
"""Options of `treeopt profile`."""


def read_acceptance(path: Path | str, *, sampling: Sampling, rule: str, ranks: bool = False) -> MeasuredAcceptance:
    """Return the acceptance of a file.

    Args:
        path: the file.
        sampling: of the target when it was measured; files do not contain it.
        rule: the verification rule that it was measured with.
        ranks: whether a plain JSON list is acceptance by rank, the same at every depth; otherwise it is the rates at which
            a step accepts at least 1, 2, … draft tokens.

    Raises FormatError naming the file, the field and the reason, TreeoptError if it cannot be read.
    """
    acceptance: ImportedAcceptance = _read(path, ACCEPTANCE, ranks=ranks)
    return MeasuredAcceptance(
        rule=rule,
        sampling=sampling,
        prompts=acceptance.prompts,
        positions=acceptance.positions,
        table=acceptance.table,
        sequences=acceptance.sequences,
        imported=(Imported(what=ACCEPTANCE_PART, source=source_text(path, acceptance.kind)),),
    )


def read_latency(path: Path | str, *, drafts: bool = False) -> tuple[ImportedLatency, ...]:
    """Return the times of a file, one record per context and batch size.

    Args:
        path: the file.
        drafts: whether the file has to contain times of drafting; otherwise of verification. Rows of a table without a
            column `pass` are such times.

    Raises FormatError naming the file, the line or field and the reason, TreeoptError if it cannot be read.
    """
    wanted, part = ("draft", DRAFT_TIMES) if drafts else ("verify", TIMES)
    latencies: tuple[ImportedLatency, ...] = _read(path, part)
    if not latencies:
        reason = f"expected times of {wanted} passes. Got none: is the log whole, at -lv 4?"
        raise FormatError(path, "content", reason)
    if all(getattr(latency, wanted) is None for latency in latencies):
        passes = next(part for part in LATENCY_PARTS for latency in latencies if getattr(latency, part) is not None)
        raise FormatError(path, "content", f"expected times of {wanted} passes. Got those of {passes} passes only.")
    return latencies


def read_sweep(path: Path | str) -> tuple[SweepRow, ...]:
    """Return the rows of a sweep over the draft length; raises the errors of `read_latency`."""
    rows: tuple[SweepRow, ...] = _read(path, SWEEP)
    return rows


def _read(path: Path | str, part: str, *, ranks: bool = False) -> Any:
    """Return one part of a file, as `Importer.read` does."""
    file = ForeignFile(path, read_unpacked(path, limit_bytes=MAX_BYTES), part, ranks=ranks)
    importer = next((importer for importer in IMPORTERS if importer.matches(file)), None)
    if importer is None:
        needs = f", which needs {sweep.SWEEP_ROWS.needs}" if part == SWEEP else ""
        raise file.error(
            "content",
            f"expected {part} in one of the formats of treeopt import --list{needs}. Got {_describe(file)}.",
        )
    sought = {part, TIMES} if part == DRAFT_TIMES else {part}
    if importer.contains and sought.isdisjoint(importer.contains):
        options = " or ".join(OPTIONS[contained] for contained in importer.contains)
        raise file.error(
            "content", f"expected {part}. Got {importer.title}, which contains none: give it to {options}."
        )
    return importer.read(file)


def _describe(file: ForeignFile) -> str:
    """Return the description of a file that no importer matches."""
    if not file.text.strip():
        return describe_bytes(file.data)
    if not file.objects:
        words = [
            line.split()[0] for line in file.lines if line.strip() and not line.startswith("#")
        ] or file.text.split()
        return f"text that begins with {words[0]!r:.60}" if file.json is None else "other JSON"
    return f"JSON with the keys {', '.join(file.objects[0].content)[:80]}"
