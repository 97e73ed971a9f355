"""Files of other programs as records, whichever kind of file they are: the content decides."""

from pathlib import Path

from treeopt.engines.importers.content import source_text
from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.imported_latency import ImportedLatency
from treeopt.engines.importers.importer import ACCEPTANCE, DRAFT_TIMES, SWEEP, TIMES, Importer, Measurements, SweepRow
from treeopt.engines.importers.table import IMPORTERS
from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.whole_files import read_bytes
from treeopt.records.measured_acceptance import ACCEPTANCE as ACCEPTANCE_PART
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.step_latency import LATENCY_PARTS, Imported

MAX_BYTES = 32_000_000
KINDS = ("auto", "positions", "ranks")
OPTIONS = {ACCEPTANCE: "--acceptance", TIMES: "--latency", DRAFT_TIMES: "--draft-latency", SWEEP: "--sweep"}
"""Where `treeopt profile` takes each."""


def read_acceptance(
    path: Path | str, *, temperature: float, rule: str, top_p: float = 1.0, kind: str = "auto"
) -> MeasuredAcceptance:
    """Return the acceptance of a file.

    Args:
        path: the file.
        temperature: what it was measured at; files do not contain it.
        rule: the verification rule it is of.
        top_p: share of the distribution that sampling kept.
        kind: what a plain JSON list is: `positions`, unconditional rates at which a step accepts at least 1, 2, … draft
            tokens, or `ranks`, one row of acceptance by rank that holds at every depth; `auto` is `positions`.

    Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
    """
    if kind not in KINDS:
        raise InvalidValueError(f"kind: expected one of {', '.join(KINDS)}. Got {kind!r}.", field="kind")
    file = ForeignFile(path, read_bytes(path, limit_bytes=MAX_BYTES), ranks=kind == "ranks")
    acceptance = _measurements(file, ACCEPTANCE).acceptance
    assert acceptance is not None  # its importer contains acceptance
    return MeasuredAcceptance(
        rule=rule,
        temperature=temperature,
        top_p=top_p,
        prompts=acceptance.prompts,
        positions=acceptance.positions,
        table=acceptance.table,
        texts=acceptance.texts,
        imported=(Imported(what=ACCEPTANCE_PART, source=source_text(path, acceptance.kind)),),
    )


def read_latency(path: Path | str, *, default_pass: str = "verify") -> tuple[ImportedLatency, ...]:
    """Return the times of a file, one record per context and batch size.

    Args:
        path: the file.
        default_pass: `verify`, `draft` or `overhead`: what rows of CSV are that do not name a pass, and what the file
            must contain if it is another kind of file.

    Raises FormatError naming the file, the line or field and the reason, TreeoptError when it cannot be read.
    """
    if default_pass not in LATENCY_PARTS:
        raise InvalidValueError(
            f"default_pass: expected one of {', '.join(LATENCY_PARTS)}. Got {default_pass!r}.", field="default_pass"
        )
    file = ForeignFile(path, read_bytes(path, limit_bytes=MAX_BYTES), default_pass=default_pass)
    latencies = _measurements(file, DRAFT_TIMES if default_pass == "draft" else TIMES).latencies
    if not latencies:
        raise file.error("content", f"expected times of {default_pass} passes. Got none: is the log whole, at -lv 4?")
    if all(getattr(each, default_pass) is None for each in latencies):
        passes = next(part for part in LATENCY_PARTS for each in latencies if getattr(each, part) is not None)
        raise file.error("content", f"expected times of {default_pass} passes. Got those of {passes} passes only.")
    return latencies


def read_sweep(path: Path | str) -> tuple[SweepRow, ...]:
    """Return the rows of a sweep over the draft length; raises as `read_latency` does."""
    return _measurements(ForeignFile(path, read_bytes(path, limit_bytes=MAX_BYTES)), SWEEP).sweep


def _measurements(file: ForeignFile, wanted: str) -> Measurements:
    importer = _importer_of(file, wanted)
    if importer.contains and not _holds(importer, wanted):
        use = " or ".join(OPTIONS[each] for each in importer.contains)
        raise file.error("content", f"expected {wanted}. Got {importer.title}, which contains none: give it to {use}.")
    return importer.read(file)


def _importer_of(file: ForeignFile, wanted: str) -> Importer:
    for importer in IMPORTERS:
        if importer.matches(file):
            return importer
    names = ", ".join(each.name for each in IMPORTERS if _holds(each, wanted))
    raise FormatError(
        file.path,
        "content",
        f"expected {wanted} as one of {names} (treeopt import --list). Got {_describe(file)}.",
    )


def _holds(importer: Importer, wanted: str) -> bool:
    return wanted in importer.contains or (wanted == DRAFT_TIMES and TIMES in importer.contains)


def _describe(file: ForeignFile) -> str:
    """Return what a file is that no importer reads."""
    if not file.text.strip():
        return "bytes that are no text" if file.data.strip() else "an empty file"
    if not file.objects:
        return "text" if file.json is None else "other JSON"
    return f"JSON with the keys {', '.join(file.objects[0].fields)[:80]}"
