"""The profile file, `profile.yaml`, to and from the `Profile` record; docs/profile-file.md is its specification."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from treeopt.errors import FormatError, InvalidValueError, printable
from treeopt.files.fields import Fields, check_format
from treeopt.files.whole_files import read_text, write_text
from treeopt.records.acceptance import AcceptanceTable, TextSums
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.outcomes import Outcomes
from treeopt.records.profile import (
    ACCEPTANCE,
    LATENCY_PARTS,
    Disturbance,
    Imported,
    Machine,
    MeasuredAcceptance,
    Pair,
    Profile,
    RuleOverhead,
    RuleSteps,
    StepLatency,
    TimedTree,
    check_conditions,
    check_imported,
    check_limit,
    check_rules,
)
from treeopt.records.sampling import Sampling
from treeopt.trees import TokenTree

FORMAT = "treeopt-profile"
VERSION = 1
MAX_BYTES = 32_000_000
MAX_NESTING = 16
MOST_S = 1e6
"""Seconds above this, of either sign, are a wrong unit or a broken file."""
TIMED = {True: "sampled", False: "greedy"}
"""How the timed steps chose tokens, by the record's `sampled`."""

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_Parser):  # type: ignore[misc]
    """The safe loader, which takes the last of two equal keys and lets `<<` hide some, made to refuse both."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if len(set(map(str, names))) != len(names):
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a field appears twice")
        if "<<" in names:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: merging with << is not allowed")
        result: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return result


def load(path: Path | str) -> Profile:
    """Return the profile of a file.

    Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
    """
    text = read_text(path, limit_bytes=MAX_BYTES)
    try:
        _refuse_tricks(path, text)
        content = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise FormatError(path, "content", f"expected YAML ({problem}). Is it a profile?") from None
    fields = Fields(path, content)
    check_format(fields, FORMAT, VERSION)
    latencies = tuple(map(_read_latency, fields.mappings("latency")))
    acceptances = tuple(map(_read_acceptance, fields.mappings("acceptance")))
    fields.build("latency", check_conditions, latencies)
    fields.build("acceptance", check_rules, acceptances)
    profile = Profile(
        created=fields.text("created"),
        tool=fields.text("tool"),
        machine=_read_machine(fields.mapping("machine")),
        pair=_read_pair(fields.mapping("pair")),
        latencies=latencies,
        acceptances=acceptances,
    )
    fields.end()
    return profile


def save(profile: Profile, path: Path | str) -> None:
    """Write the profile file whole or not at all; '-' is standard output."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "created": printable(profile.created),
        "tool": printable(profile.tool),
        "machine": _known(asdict(profile.machine)),
        "pair": _known(asdict(profile.pair)),
        "latency": [_write_latency(latency) for latency in profile.latencies],
        "acceptance": [_write_acceptance(acceptance) for acceptance in profile.acceptances],
    }
    write_text(path, yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120, default_flow_style=None))


def _refuse_tricks(path: Path | str, text: str) -> None:
    """Refuse aliases, which can blow a small file up, tags, which name types, and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise FormatError(path, _line(event), "anchors, aliases and tags are not allowed.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_NESTING:
            raise FormatError(path, _line(event), f"nested more than {MAX_NESTING} deep.")


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else "content"


def _read_machine(fields: Fields) -> Machine:
    machine = Machine(
        device=fields.text("device"),
        processor=fields.text("processor"),
        threads=_count(fields, "threads"),
        system=fields.text("system"),
        python=fields.text("python"),
        torch=fields.text("torch"),
    )
    fields.end()
    return machine


def _read_pair(fields: Fields) -> Pair:
    pair = Pair(
        target=fields.text("target"),
        draft=fields.text("draft"),
        dtype=fields.text("dtype"),
        vocabulary=_count(fields, "vocabulary"),
        target_parameters=_count(fields, "target_parameters"),
        draft_parameters=_count(fields, "draft_parameters"),
        target_source=_optional_text(fields, "target_source"),
        draft_source=_optional_text(fields, "draft_source"),
        target_digest=_optional_text(fields, "target_digest"),
        draft_digest=_optional_text(fields, "draft_digest"),
    )
    fields.end()
    return pair


def _count(fields: Fields, field: str) -> int | None:
    return fields.integer(field) if field in fields else None


def _optional_text(fields: Fields, field: str) -> str | None:
    return fields.text(field) if field in fields else None


def _read_latency(fields: Fields) -> StepLatency:
    verify = _read_table(fields.mapping("verify"))
    limit_tokens = fields.integer("limit_tokens", least=2) if "limit_tokens" in fields else None
    fields.build("limit_tokens", check_limit, limit_tokens, verify)
    latency = fields.build(
        "rule_overheads",
        StepLatency,
        context_tokens=fields.integer("context_tokens", least=0),
        batch_size=fields.integer("batch_size"),
        verify=verify,
        limit_tokens=limit_tokens,
        draft=_read_table(fields.mapping("draft")),
        overhead=_read_overhead(fields.mapping("overhead")),
        rule_overheads=_read_rule_overheads(fields) if "rule_overheads" in fields else (),
        sampled=_read_timed(fields) if "timed" in fields else None,
        imported=_read_imported(fields, LATENCY_PARTS),
        steps=tuple(map(_read_steps, fields.mappings("steps"))) if "steps" in fields else (),
        disturbance=_read_disturbance(fields.mapping("disturbed")) if "disturbed" in fields else None,
    )
    fields.end()
    return latency


def _read_disturbance(fields: Fields) -> Disturbance:
    disturbance = fields.build(
        "calls",
        Disturbance,
        calls=fields.number("calls", most=1.0),
        samples=fields.number("samples", most=1.0),
        processors=fields.number("processors", most=1.0) if "processors" in fields else None,
    )
    fields.end()
    return disturbance


def _read_steps(fields: Fields) -> RuleSteps:
    steps = RuleSteps(rule=fields.text("rule"), trees=tuple(map(_read_timed_tree, fields.mappings("trees"))))
    fields.end()
    return steps


def _read_timed_tree(fields: Fields) -> TimedTree:
    tree = fields.build("parents", TokenTree, fields.integers("parents"))
    steps = fields.build("samples_s", _timing, fields.numbers("samples_s"))
    fields.end()
    return TimedTree(tree=tree, steps=steps)


def _read_rule_overheads(fields: Fields) -> tuple[RuleOverhead, ...]:
    return tuple(
        RuleOverhead(rule=item.text("rule"), overhead=_read_overhead(item))
        for item in fields.mappings("rule_overheads")
    )


def _read_timed(fields: Fields) -> bool:
    timed = fields.text("timed")
    if timed not in TIMED.values():
        raise fields.error("timed", f"expected {' or '.join(TIMED.values())}. Got {timed!r:.60}.")
    return timed == TIMED[True]


def _read_imported(fields: Fields, parts: tuple[str, ...]) -> tuple[Imported, ...]:
    if "imported" not in fields:
        return ()
    found = []
    for item in fields.mappings("imported"):
        found.append(Imported(what=item.text("what"), source=item.text("source")))
        item.end()
    fields.build("imported", check_imported, found, parts)
    return tuple(found)


def _read_table(fields: Fields) -> LatencyTable:
    tokens = fields.integers("tokens")
    samples = fields.rows("samples_s")
    timings = [fields.build(f"samples_s[{i}]", _timing, row) for i, row in enumerate(samples)]
    fields.end()
    return fields.build("tokens", LatencyTable, tokens, timings)


def _read_overhead(fields: Fields) -> Timing:
    samples = fields.numbers("samples_s")
    fields.end()
    return fields.build("samples_s", _timing, samples, allow_negative=True)


def _timing(samples_s: list[float], *, allow_negative: bool = False) -> Timing:
    """Return the samples; raises InvalidValueError as Timing does, and for times that nobody waited for."""
    longest_s = max(samples_s, key=abs, default=0.0)
    if abs(longest_s) > MOST_S:
        raise InvalidValueError(f"expected at most {MOST_S:g} seconds. Got {longest_s:g}: is it another unit?")
    return Timing(samples_s, allow_negative=allow_negative)


def _read_acceptance(fields: Fields) -> MeasuredAcceptance:
    def measured(field: str) -> Any:
        return fields.nested_numbers(field) if field in fields else None

    table = fields.build(
        "p",
        AcceptanceTable,
        fields.nested_numbers("p"),
        counts=measured("counts"),
        standard_error=measured("standard_error"),
    )
    acceptance = fields.build(
        "texts",
        MeasuredAcceptance,
        rule=fields.text("rule"),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p", most=1.0),
        prompts=_count(fields, "prompts"),
        positions=_count(fields, "positions"),
        table=table,
        texts=_read_texts(fields.mapping("texts")) if "texts" in fields else None,
        outcomes=_read_outcomes(fields) if "outcomes" in fields else None,
        top_k=fields.integer("top_k", least=0) if "top_k" in fields else 0,
        draft_sampling=_read_sampling(fields.mapping("draft_sampling")) if "draft_sampling" in fields else None,
        imported=_read_imported(fields, (ACCEPTANCE,)),
    )
    fields.end()
    return acceptance


def _read_sampling(fields: Fields) -> Sampling:
    temperature, top_p = fields.number("temperature"), fields.number("top_p", most=1.0)
    sampling = fields.build("temperature", Sampling, temperature, top_p, fields.integer("top_k", least=0))
    fields.end()
    return sampling


def _read_texts(fields: Fields) -> TextSums:
    reached, accepted = fields.rows("reached"), fields.lists_of_rows("accepted")
    fields.end()
    return fields.build("accepted", TextSums, reached, accepted)


def _read_outcomes(fields: Fields) -> Outcomes:
    return fields.build("outcomes", Outcomes, fields.integer_rows("outcomes"))


def _write_latency(latency: StepLatency) -> dict[str, Any]:
    written: dict[str, Any] = {
        "context_tokens": latency.context_tokens,
        "batch_size": latency.batch_size,
        "verify": _write_table(latency.verify),
        "draft": _write_table(latency.draft),
        "overhead": {"samples_s": _rounded(latency.overhead.samples_s)},
    }
    if latency.rule_overheads:
        written["rule_overheads"] = [
            {"rule": each.rule, "samples_s": _rounded(each.overhead.samples_s)} for each in latency.rule_overheads
        ]
    if latency.sampled is not None:
        written["timed"] = TIMED[latency.sampled]
    if latency.steps:
        written["steps"] = [
            {
                "rule": each.rule,
                "trees": [
                    {"parents": timed.tree.parents.tolist(), "samples_s": _rounded(timed.steps.samples_s)}
                    for timed in each.trees
                ],
            }
            for each in latency.steps
        ]
    if latency.limit_tokens is not None:
        written["limit_tokens"] = latency.limit_tokens
    if latency.disturbance is not None:
        shares = _known(asdict(latency.disturbance))
        written["disturbed"] = dict(zip(shares, _rounded(np.array(list(shares.values()))), strict=True))
    return written | _write_imported(latency.imported)


def _known(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are known, their texts without what no file may hold."""
    known = {key: value for key, value in content.items() if value is not None}
    return {key: printable(value) if isinstance(value, str) else value for key, value in known.items()}


def _write_imported(imported: tuple[Imported, ...]) -> dict[str, Any]:
    return {"imported": [_known(asdict(each)) for each in imported]} if imported else {}


def _write_table(table: LatencyTable) -> dict[str, Any]:
    return {
        "tokens": table.tokens.tolist(),
        "samples_s": [_rounded(timing.samples_s) for timing in table.timings],
    }


def _write_acceptance(acceptance: MeasuredAcceptance) -> dict[str, Any]:
    table = acceptance.table
    written: dict[str, Any] = {
        "rule": acceptance.rule,
        "temperature": acceptance.temperature,
        "top_p": acceptance.top_p,
    }
    if acceptance.top_k:
        written["top_k"] = acceptance.top_k
    if acceptance.draft_sampling is not None:
        written["draft_sampling"] = asdict(acceptance.draft_sampling)
    written |= _known({"prompts": acceptance.prompts, "positions": acceptance.positions})
    written["p"] = _rounded(table.p, digits=10)
    if table.counts is not None:
        written["counts"] = _rounded(table.counts)
    if table.standard_error is not None:
        written["standard_error"] = _rounded(table.standard_error)
    if (texts := acceptance.texts) is not None:
        written["texts"] = {"reached": _rounded(texts.reached), "accepted": _rounded(texts.accepted)}
    if acceptance.outcomes is not None:
        written["outcomes"] = [ranks.tolist() for ranks in acceptance.outcomes.ranks]
    return written | _write_imported(acceptance.imported)


def _rounded(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 6) -> list[Any]:
    """Return nested lists with few digits; rows of probabilities need more, to keep sums of 1 at 1."""
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") for value in values]
