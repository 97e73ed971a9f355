"""Reading what `treeopt bench --output` wrote, of each subcommand."""

import re
from dataclasses import dataclass
from pathlib import Path

from treeopt.files.fields import Fields
from treeopt.files.json_file import parse_json
from treeopt.files.record_form import read_record
from treeopt.records.batch_bench import BatchBench
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.latency import Estimate
from treeopt.records.machine import Machine, Pair
from treeopt.records.results import (
    VERDICTS,
    EngineBench,
    EngineRow,
    Losslessness,
    NotRun,
    Pace,
    PacedPrediction,
    Row,
    TextDivergence,
)
from treeopt.report.batch_file import read_batch_bench
from treeopt.report.bench_fields import divergences, flag_or_none, known, listed, number_or_none, record_or_none, texts
from treeopt.report.grid_bench import GridReport, GridTreeReport
from treeopt.report.tree_bench import TreeBenchReport

MAX_BYTES = 32_000_000
_HEAD = re.compile(rb'\s*\[?\s*\{\s*"tool":\s*"treeopt\b')
Methods = tuple[Row | NotRun, ...]
Bench = TreeBenchReport | GridReport | EngineBench | Methods | BatchBench


@dataclass(frozen=True, slots=True)
class FiledBench:
    """A bench, and what its file says that it is of."""

    heading: BenchHeading
    bench: Bench


def is_bench(data: bytes) -> bool:
    """Tell a bench by its first key; other files of treeopt begin with their format.

    >>> is_bench(b'{"tool": "treeopt 0.2.0", "rows": []}'), is_bench(b'{"format": "treeopt-tree"}')
    (True, False)
    """
    return _HEAD.match(data) is not None


def parse_benches(path: Path | str, text: str) -> tuple[FiledBench, ...]:
    """Return the bench of a file, or the benches of one that has a list of them.

    Raises FormatError naming the file, the field and the reason.
    """
    content = parse_json(path, text, unique_keys=True, constants=False)
    items = content if isinstance(content, list) else [content]
    return tuple(
        _bench(Fields(path, each, f"[{i}]" if isinstance(content, list) else "")) for i, each in enumerate(items)
    )


def _bench(fields: Fields) -> FiledBench:
    if "engine" in fields:
        found: Bench = _engine(fields)
    elif "trees" in fields:
        found = _grid(fields)
    elif "rows" in fields:
        found = tuple(_method(each) for each in fields.mappings("rows"))
    elif "sizes" in fields:
        found = read_batch_bench(fields)
    elif "measured_speedup" in fields:
        found = _tree(fields)
    else:
        raise fields.error("content", "expected what treeopt bench --output writes. Is it of another command?")
    heading = _heading(fields)
    fields.end()
    return FiledBench(heading, found)


def _heading(fields: Fields) -> BenchHeading:
    return BenchHeading(
        tool=fields.text("tool"),
        created=fields.text("created"),
        machine=read_record(fields.mapping("machine"), Machine),
        pair=read_record(fields.mapping("pair"), Pair),
    )


def _tree(fields: Fields) -> TreeBenchReport:
    return TreeBenchReport(
        drafter=fields.text("drafter") if "drafter" in fields else "model",
        rule=fields.text("rule"),
        temperature=fields.number("temperature"),
        lossy=fields.flag("lossy"),
        nodes=fields.integer("nodes"),
        depth=fields.integer("depth", least=0),
        predicted_speedup=_estimate_or_number(fields, "predicted_speedup"),
        measured_speedup=_estimate(fields, "measured_speedup"),
        predicted_tokens_per_step=number_or_none(fields, "predicted_tokens_per_step"),
        measured_tokens_per_step=fields.number("measured_tokens_per_step"),
        predicted_step_s=number_or_none(fields, "predicted_step_s"),
        measured_step_s=fields.number("measured_step_s"),
        measured_plain_step_s=fields.number("measured_plain_step_s"),
        identical_to_plain_decoding=flag_or_none(fields, "identical_to_plain_decoding"),
        divergences=divergences(fields) if known(fields, "divergences") else None,
        tokens=fields.integer("tokens", least=0),
        predicted_at_pace=record_or_none(fields, "predicted_at_pace", PacedPrediction),
        pace=record_or_none(fields, "pace", Pace),
    )


def _grid(fields: Fields) -> GridReport:
    return GridReport(
        rule=fields.text("rule"),
        temperature=fields.number("temperature"),
        predicted_plain_step_s=fields.number("predicted_plain_step_s"),
        measured_plain_step_s=fields.number("measured_plain_step_s"),
        trees=tuple(_grid_tree(each) for each in fields.mappings("trees")),
        pace=record_or_none(fields, "pace", Pace),
    )


def _grid_tree(fields: Fields) -> GridTreeReport:
    found = GridTreeReport(
        kind=fields.text("kind"),
        nodes=fields.integer("nodes"),
        depth=fields.integer("depth", least=0),
        parents=fields.integers("parents"),
        predicted_tokens_per_step=fields.number("predicted_tokens_per_step"),
        measured_tokens_per_step=fields.number("measured_tokens_per_step"),
        predicted_step_s=fields.number("predicted_step_s"),
        measured_step_s=fields.number("measured_step_s"),
        predicted_speedup=fields.number("predicted_speedup"),
        measured_speedup=_estimate(fields, "measured_speedup"),
        identical_to_plain_decoding=flag_or_none(fields, "identical_to_plain_decoding"),
        predicted_at_pace=record_or_none(fields, "predicted_at_pace", PacedPrediction),
    )
    fields.end()
    return found


def _method(fields: Fields) -> Row | NotRun:
    row: Row | NotRun
    if "reason" in fields:
        row = NotRun(
            method=fields.text("method"), temperature=fields.number("temperature"), reason=fields.text("reason")
        )
    else:
        row = Row(
            method=fields.text("method"),
            rule=fields.text("rule"),
            temperature=fields.number("temperature"),
            setting=fields.text("setting"),
            tokens_per_step=fields.number("tokens_per_step"),
            step_s=fields.number("step_s"),
            draft_s=fields.number("draft_s"),
            verify_s=fields.number("verify_s"),
            overhead_s=fields.number("overhead_s", least=-float("inf")),
            tokens_per_s=fields.number("tokens_per_s"),
            speedup=fields.number("speedup"),
            predicted_speedup=fields.number("predicted_speedup"),
            lossless=fields.flag("lossless"),
            evidence=fields.text("evidence"),
            assumed=texts(fields, "assumed") if "assumed" in fields else (),
            predicted_at_pace=record_or_none(fields, "predicted_at_pace", PacedPrediction),
            pace=record_or_none(fields, "pace", Pace),
            rounds=fields.integer("rounds"),
        )
    fields.end()
    return row


def _engine(fields: Fields) -> EngineBench:
    found = EngineBench(
        engine=fields.text("engine"),
        version=fields.text("version"),
        rows=tuple(_engine_row(each) for each in fields.mappings("rows")),
        regret=fields.number("regret", least=-1.0),
        losslessness=_losslessness(fields.mapping("losslessness"))
        if "losslessness" in fields and known(fields, "losslessness")
        else None,
    )
    if not any(row.chosen for row in found.rows):
        raise fields.error("rows", "expected one that is chosen.")
    return found


def _engine_row(fields: Fields) -> EngineRow:
    row = EngineRow(
        length=fields.integer("length", least=0),
        chosen=fields.flag("chosen"),
        tokens_per_step=fields.number("tokens_per_step"),
        predicted_tokens_per_step=number_or_none(fields, "predicted_tokens_per_step"),
        tokens_per_s=fields.number("tokens_per_s"),
        predicted_tokens_per_s=number_or_none(fields, "predicted_tokens_per_s"),
        speedup=fields.number("speedup"),
        predicted_speedup=number_or_none(fields, "predicted_speedup"),
        spread=fields.number("spread"),
        identical=flag_or_none(fields, "identical"),
        divergences=tuple(map(_text_divergence, listed(fields, "divergences"))) if "divergences" in fields else (),
    )
    fields.end()
    return row


def _losslessness(fields: Fields) -> Losslessness:
    found = Losslessness(
        prompts=fields.integer("prompts", least=1),
        near_tie_nats=fields.number("near_tie_nats"),
        unchecked=fields.text("unchecked") if known(fields, "unchecked") else None,
    )
    fields.end()
    return found


def _text_divergence(fields: Fields) -> TextDivergence:
    found = TextDivergence(
        prompt=fields.integer("prompt", least=0),
        place=fields.integer("place", least=0),
        plain=fields.text("plain"),
        other=fields.text("other"),
        gap=number_or_none(fields, "gap"),
        at_least=fields.flag("at_least"),
        verdict=fields.text("verdict"),
    )
    if found.verdict not in VERDICTS:
        raise fields.error("verdict", f"expected one of {', '.join(VERDICTS)}. Got {found.verdict!r:.40}.")
    fields.end()
    return found


def _estimate(fields: Fields, name: str) -> Estimate:
    value, ends = fields.number(name), fields.numbers(f"{name}_interval")
    if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
        raise fields.error(f"{name}_interval", "expected two numbers of at least 0 that rise.")
    return Estimate(value, ends[0], ends[1])


def _estimate_or_number(fields: Fields, name: str) -> Estimate | float | None:
    return _estimate(fields, name) if f"{name}_interval" in fields else number_or_none(fields, name)
