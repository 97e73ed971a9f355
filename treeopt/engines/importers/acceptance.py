"""Acceptance that other programs measured: which kind of file it is, by its content."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from treeopt.engines.importers import acceptance_metrics
from treeopt.engines.importers.acceptance_answers import is_answer, read_answers
from treeopt.engines.importers.acceptance_requests import is_request, read_requests
from treeopt.engines.importers.acceptance_tables import (
    Vector,
    table_of_conditional,
    table_of_counts,
    table_of_rates,
    vector_of_ranks,
)
from treeopt.engines.importers.acceptance_vllm import LOG_MARK, read_log
from treeopt.engines.importers.content import (
    JsonObject,
    as_objects,
    is_json_lines,
    read_json,
    read_json_lines,
    source_text,
)
from treeopt.engines.importers.found_acceptance import FoundAcceptance
from treeopt.engines.importers.speculation_profile import is_speculation_profile, read_speculation_profile
from treeopt.engines.importers.torch_vector import is_torch_file, read_torch_vector
from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.whole_files import read_bytes
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance
from treeopt.records.step_latency import Imported

MAX_BYTES = 32_000_000
MAX_JSON_BYTES = 4_000_000
KINDS = ("auto", "positions", "ranks")
RATES, CONDITIONAL, TABLE = "synthetic_acceptance_rates", "conditional", "p"
DRAFTS, ACCEPTED = "num_drafts", "accepted_per_pos"
TAKEN = (
    "rates per position as a JSON list, a list of rows, an object with one of the keys "
    f"{CONDITIONAL}, {TABLE}, {RATES}, {DRAFTS}, a speculation profile, requests of vLLM or AIPerf, answers of "
    "Spec-Bench, /metrics of vLLM or llama.cpp, vLLM's log, or Sequoia's vector"
)


def read_acceptance(
    path: Path | str, *, temperature: float, rule: str, top_p: float = 1.0, kind: str = "auto"
) -> MeasuredAcceptance:
    """Return the acceptance of a file: rates, counts or steps of a chain, a table, or Sequoia's vector of ranks.

    Args:
        path: the file.
        temperature: what it was measured at; files do not say.
        rule: the verification rule it is of.
        top_p: share of the distribution that sampling kept.
        kind: what a plain JSON list is: `positions`, unconditional rates at which a step accepts at least 1, 2, … draft
            tokens, or `ranks`, one row of acceptance by rank that holds at every depth; `auto` is `positions`.  All
            other files say themselves what they are.

    Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
    """
    if kind not in KINDS:
        raise InvalidValueError(f"kind: expected one of {', '.join(KINDS)}. Got {kind!r}.")
    found = _found(path, read_bytes(path, limit_bytes=MAX_BYTES), kind)
    return MeasuredAcceptance(
        rule=rule,
        temperature=temperature,
        top_p=top_p,
        prompts=found.prompts,
        positions=found.positions,
        table=found.table,
        texts=found.texts,
        imported=(Imported(what=ACCEPTANCE, source=source_text(path, found.kind)),),
    )


def _found(path: Path | str, data: bytes, kind: str) -> FoundAcceptance:
    if is_torch_file(data):
        return _vector(path, read_torch_vector(path, data))
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise FormatError(path, "content", f"expected {TAKEN}. Got no text (byte {error.start}).") from None
    if acceptance_metrics.MARK.search(text):
        _check_size(path, data)
        return acceptance_metrics.read_metrics(path, text)
    if is_json_lines(text):
        return _of_objects(path, read_json_lines(path, text))
    if LOG_MARK in text and not text.lstrip().startswith("{"):
        return FoundAcceptance(
            table=_made(path, "content", table_of_rates, read_log(path, text)), kind="vLLM log, last line"
        )
    if text.lstrip().startswith(("[", "{")):
        _check_size(path, data)
        content = read_json(path, text)
        return _of_list(path, content, kind) if isinstance(content, list) else _of_object(path, content)
    raise FormatError(path, "content", f"expected {TAKEN}. Got {_text_kind(text)}.")


def _check_size(path: Path | str, data: bytes) -> None:
    if len(data) > MAX_JSON_BYTES:
        raise FormatError(path, "content", f"larger than {MAX_JSON_BYTES} bytes, the limit for text of this kind.")


def _of_objects(path: Path | str, objects: Sequence[JsonObject]) -> FoundAcceptance:
    """Return the acceptance of several objects of a kind: answers or requests."""
    if any(is_answer(each.fields) for each in objects):
        return read_answers(path, objects)
    if any(is_request(each.fields) for each in objects):
        return read_requests(path, objects)
    raise FormatError(path, "content", f"expected {TAKEN}. Got other JSON.")


def _text_kind(text: str) -> str:
    """Return what a text is that holds no acceptance, and what to do with one that might."""
    lines = text.split()
    if lines and "," in lines[0]:
        return "CSV, of which only times are taken: write the rates of the positions as [0.8, 0.6, 0.5]"
    return "other text"


def _of_list(path: Path | str, content: list[Any], kind: str) -> FoundAcceptance:
    if objects := as_objects(content):
        return _of_objects(path, objects)
    numbers = _numbers(path, "content", content)
    if isinstance(numbers[0], list):
        return FoundAcceptance(table=_made(path, "content", AcceptanceTable, numbers), kind="acceptance table")
    if kind == "ranks":
        return _vector(path, numbers)
    return FoundAcceptance(table=_made(path, "content", table_of_rates, numbers), kind="rates per position")


def _of_object(path: Path | str, content: dict[str, Any]) -> FoundAcceptance:
    if is_speculation_profile(content):
        return read_speculation_profile(path, content)
    if is_answer(content) or is_request(content):
        return _of_objects(path, as_objects(content))
    known = [key for key in (CONDITIONAL, TABLE, RATES, ACCEPTED) if key in content]
    if len(known) != 1:
        inner = [key for key, value in content.items() if isinstance(value, dict) and TABLE in value]
        hint = f" Several tables ({', '.join(inner)[:60]}): write one of them into a file of its own." if inner else ""
        raise FormatError(path, "content", f"expected {TAKEN}. Got an object with {len(known)} of these keys.{hint}")
    fields, key = Fields(path, content), known[0]
    if key == ACCEPTED:
        drafts = float(fields.integer(DRAFTS))
        return _counted(path, ACCEPTED, drafts, fields.numbers(ACCEPTED), "counts per position")
    numbers = _numbers(path, key, content[key])
    if key == RATES:
        return FoundAcceptance(table=_made(path, key, table_of_rates, numbers), kind="rates per position")
    if key == CONDITIONAL and not isinstance(numbers[0], list):
        return FoundAcceptance(
            table=_made(path, key, table_of_conditional, numbers), kind="conditional rates per position"
        )
    return FoundAcceptance(table=_made(path, key, AcceptanceTable, numbers), kind="acceptance table")


def _numbers(path: Path | str, field: str, values: object) -> list[Any]:
    """Return lists of numbers as nested as they are; raises FormatError for others and for none."""
    numbers = Fields(path, {field: values}).nested_numbers(field)
    if not numbers:
        raise FormatError(path, field, "expected at least one number. Got none.")
    return numbers


def _vector(path: Path | str, values: list[float]) -> FoundAcceptance:
    vector: Vector = _made(path, "content", vector_of_ranks, values)
    return FoundAcceptance(
        table=vector.table, kind="; ".join(["acceptance vector", *([vector.remark] if vector.remark else [])])
    )


def _counted(path: Path | str, field: str, drafts: float, accepted: list[float], kind: str) -> FoundAcceptance:
    table = _made(path, field, table_of_counts, drafts, accepted)
    return FoundAcceptance(table=table, kind=kind, positions=max(1, round(drafts)))


def _made(path: Path | str, field: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `make` makes, its refusal told as that of a field."""
    return Fields(path, {}).build(field, make, *arguments)
