"""A profile in words: its summary, names of its operating points and acceptances, and what its time was spent on."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from treeopt.records.draft_record import DraftRecord
from treeopt.records.latency import LatencyTable
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.measured_drafter import DrafterLatency, MeasuredDrafter, condition_key
from treeopt.records.profile import IMPORTED, UNKNOWN, Profile, describe_origins
from treeopt.records.rules import rule_label
from treeopt.records.step_latency import StepLatency
from treeopt.records.timing_quality import estimate_precision
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, describe_models, milliseconds, percent

if TYPE_CHECKING:
    from treeopt.planner import Confidence

SURE = 0.9
"""Smallest chance of being within 1 % of the fastest without a warning."""
SOURCES = {"acceptance": "acceptance", "verify": "verification time", "draft": "draft time", "overhead": "overhead"}
"""What a plan is uncertain of."""
SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SHOWN_DEPTHS = (1, 2, 4, 8, 16)
MAX_RANKS = 8
ABSENT = "-"
SETTING_HEADER = ("  setting", "tokens/step", "sequences", "step/plain step", "sequences")
"""Each number with how many sequences it was measured on."""
PARTS = {
    "verify": "verification passes",
    "draft": "drafting passes",
    "overhead": "whole steps",
    "prefill": "prefill",
    "acceptance": "acceptance",
    "traversal": "traversal on trees",
    "drafters": "other drafters",
    "record": "draft record",
    "planning": "planning",
}


def profile_summary(profile: Profile) -> str:
    """Return the models and the machine, and a few lines for each operating point, acceptance and drafter."""
    lines = [_models_line(profile.pair), _machine_line(profile.machine)]
    if imported := describe_origins(profile.step_latencies, profile.acceptance()):
        lines.append(imported)
    several = len(profile.latencies) > 1
    for latency in profile.latencies:
        lines += _times(latency, profile.drafters, named=several)
    for acceptance in profile.acceptances:
        lines += _table(acceptance)
    for drafter in profile.drafters:
        lines += _drafter(drafter)
    return "\n".join(lines)


def record_summary(record: DraftRecord) -> str:
    """Return the size of a draft record in two lines."""
    nodes = len(record.parent) / record.roots
    return (
        f"draft record at temperature {record.temperature:g}, {record.roots} positions of {counted(record.sequences, 'sequence')}\n"
        f"dynamic trees up to top-k {record.top_k}, depth {record.depth}; {nodes:.0f} draft nodes per position"
    )


def describe_point(latency: StepLatency) -> str:
    """Return an operating point, such as `256 tokens of context, batch of 1, greedy`."""
    sampling = {None: "", True: ", sampling", False: ", greedy"}[latency.sampled]
    return f"{latency.context_tokens} tokens of context, batch of {latency.batch_size}{sampling}"


def describe_conditions(profile: Profile) -> str:
    """Return the rules, the temperatures, the dtype and the date of a profile."""
    acceptances = profile.acceptances_of(rule=None, temperature=None)
    rules = ", ".join(dict.fromkeys(rule_label(acceptance.rule) for acceptance in acceptances))
    temperatures = ", ".join(dict.fromkeys(f"{acceptance.temperature:g}" for acceptance in acceptances))
    dtype = "" if profile.pair.dtype == UNKNOWN else f"{profile.pair.dtype}, "
    return f"{rules} at temperature {temperatures}; {dtype}{measured_on(profile.created)}"


def measured_on(created: str) -> str:
    """Return the day of an ISO 8601 date.

    >>> measured_on("2026-11-21T18:17:14+00:00")
    'measured 2026-11-21'
    """
    return f"measured {created[:10]}"


def measured_today() -> str:
    return measured_on(date.today().isoformat())


def labelled_acceptances(profile: Profile) -> list[tuple[str, MeasuredAcceptance]]:
    """Return every acceptance of a profile, those of drafters of static trees included, under a label."""
    labelled = []
    for acceptance in profile.acceptances:
        sources = "".join(f", {part.source}" for part in acceptance.imported)
        label = f"{rule_label(acceptance.rule)} at temperature {acceptance.temperature:g}"
        labelled.append((f"{label}{_context(acceptance.context_tokens)}{sources}", acceptance))
    for drafter in profile.drafters:
        several = len({measured.context_tokens for measured in drafter.trees}) > 1
        for measured in drafter.trees:
            label = f"{drafter.label} at temperature {measured.sampling.temperature:g}"
            context = _context(measured.context_tokens) if several else ""
            labelled.append((f"{label}{context}", measured.acceptance))
    return labelled


def _context(tokens: int | None) -> str:
    return "" if tokens is None else f", {tokens} tokens of context"


def spent_text(spent_s: Mapping[str, float]) -> str:
    """Return the seconds of every part of a profile run, largest first, in one line."""
    parts = sorted(spent_s.items(), key=lambda part: -part[1])
    return f"Spent {sum(spent_s.values()):.0f} s: " + ", ".join(f"{PARTS[name]} {s:.1f} s" for name, s in parts) + "."


def choice_text(probability: float) -> str:
    """Return the confidence in the choice among several drafters."""
    chance = f"{percent(probability)} chance that the choice among drafters is within 1 % of the fastest."
    return chance if probability >= SURE else f"{chance} For more, raise --time-budget."


def confidence_text(confidence: "Confidence") -> str:
    """Return the confidence in a plan, and its least certain input if the confidence is low.

    >>> from treeopt.planner import Confidence
    >>> confidence_text(Confidence(probability=0.5, if_exact={"draft": 0.8}))
    '50 % chance that the plan is within 1 % of the fastest. Least certain: draft time. For more, raise --time-budget.'
    """
    chance = f"{percent(confidence.probability)} chance that the plan is within 1 % of the fastest."
    if confidence.probability >= SURE:
        return chance
    return f"{chance} Least certain: {SOURCES[confidence.weakest]}. For more, raise --time-budget."


def _drafter(drafter: MeasuredDrafter) -> list[str]:
    """Return a line for each acceptance of a drafter of static trees, and a table of settings for each temperature."""
    lines = [
        f"{drafter.label} at temperature {measured.sampling.temperature:g}: rank 0 at depth 1 accepted "
        f"{measured.acceptance.table.p[0, 0]:.3f}, {measured.acceptance.positions} positions"
        for measured in drafter.trees
    ]
    lines = ["", *lines] if lines else []
    for decodes in drafter.decodes:
        rows = [
            (
                f"  {drafter.setting_with(setting.values).parameters_text}",
                f"{setting.sequences.tokens_per_step:.2f}",
                str(setting.sequences.count),
                f"{setting.decoded.step_s / decodes.plain.step_s:.2f}",
                str(decodes.plain.count),
            )
            for setting in decodes.settings
        ]
        columns = [Column(), *[Column(">", gap=3)] * (len(SETTING_HEADER) - 1)]
        lines += [
            "",
            f"{drafter.label} at temperature {decodes.temperature:g}",
            *aligned([SETTING_HEADER, *rows], columns),
        ]
    return lines


def _times(latency: StepLatency, drafters: Sequence[MeasuredDrafter], *, named: bool) -> list[str]:
    """Return the times of one operating point."""
    sizes = [tokens for tokens in SHOWN_TOKENS if tokens <= latency.verify.max_tokens]
    draft = latency.draft
    verify = f"verification time: {_precision(latency.verify)}"
    return [
        "",
        *([describe_point(latency)] if named else []),
        *_numbers(
            [
                ("tokens in a pass", *map(str, sizes)),
                ("verify, ms", *_row(latency.verify, sizes)),
                *([] if draft is None else [_drafting("draft", latency, sizes)]),
                *(
                    _drafting(drafter.label, drafter_latency, sizes)
                    for drafter in drafters
                    for drafter_latency in drafter.latencies
                    if condition_key(drafter_latency) == condition_key(latency)
                ),
            ]
        ),
        *_overheads(latency),
        *_limit(latency),
        *_left_out(latency),
        verify if draft is None else f"{verify}; drafting: {_precision(draft)}",
    ]


def _drafting(name: str, latency: StepLatency | DrafterLatency, sizes: list[int]) -> tuple[str, ...]:
    """Return the times of one level of each width, or of all levels if one pass drafts them."""
    assert latency.draft is not None  # the drafter was timed
    if not latency.per_block:
        return f"{name} a level, ms", *_row(latency.draft, sizes)
    levels = latency.draft.max_tokens
    return f"{name} {levels} levels, ms", milliseconds(float(latency.draft.seconds(levels))), *[""] * (len(sizes) - 1)


def _row(table: LatencyTable, sizes: list[int]) -> list[str]:
    most = table.max_tokens
    return [milliseconds(float(table.seconds(tokens))) if tokens <= most else ABSENT for tokens in sizes]


def _numbers(rows: Sequence[Sequence[str]]) -> list[str]:
    return aligned(rows, [Column(least=19), *[Column(">", 6, gap=1)] * (len(rows[0]) - 1)])


def _precision(table: LatencyTable) -> str:
    errors = estimate_precision(table)
    if errors.at_counts is None:
        return "each size was measured once"
    between = max(errors.at_counts, errors.between_counts)
    return f"±{percent(errors.at_counts, 1)} at measured sizes, ±{percent(between, 1)} between them"


def _limit(latency: StepLatency) -> list[str]:
    if latency.limit_tokens is None:
        return []
    return [f"out of memory at {latency.limit_tokens} tokens: larger passes were not timed"]


def _left_out(latency: StepLatency) -> list[str]:
    """Return how many calls were left out; if disturbed samples were kept, there is a warning instead."""
    interference = latency.interference
    if interference is None or interference.calls == 0 or interference.samples > 0:
        return []
    return [f"{percent(interference.calls)} of the calls were disturbed by other programs and left out"]


def _overheads(latency: StepLatency) -> list[str]:
    if latency.overhead is None:
        return []
    rules = ", ".join(f"{rule.rule} {milliseconds(rule.overhead.median_s)} ms" for rule in latency.rule_overheads)
    if not rules and latency.overhead.median_s < 0:
        shorter = milliseconds(-latency.overhead.median_s)
        return [f"overhead of a step     none: whole steps are {shorter} ms shorter than their passes timed alone"]
    split = ""
    if latency.host is not None and latency.host.median_s < latency.overhead.median_s:
        host = f"{milliseconds(latency.host.median_s)} ms on the host"
        split = f": {host}, the rest mostly the draft model's pass over accepted tokens"
    return [f"overhead of a step  {rules or f'{milliseconds(latency.overhead.median_s):>7} ms'}{split}"]


def _table(acceptance: MeasuredAcceptance) -> list[str]:
    rows = acceptance.table.rows(acceptance.table.max_depth or 1)[:, 0]  # children of rank 0, as which the root counts
    positions = "" if acceptance.positions is None else f", {acceptance.positions} positions"
    return [
        "",
        f"acceptance, {rule_label(acceptance.rule)} at temperature {acceptance.temperature:g}{_context(acceptance.context_tokens)}{positions}",
        *_numbers(
            [
                ("rank", *map(str, range(min(MAX_RANKS, acceptance.table.branching)))),
                *(
                    (f"depth {depth}", *(f"{value:.3f}" for value in rows[depth - 1][:MAX_RANKS]))
                    for depth in SHOWN_DEPTHS
                    if depth <= len(rows)
                ),
            ]
        ),
    ]


def _models_line(pair: Pair) -> str:
    models = describe_models(pair)
    if models == pair.label:
        models = _with_parameters(pair.target, pair.target_parameters)
        models += "" if pair.draft is None else f" + {_with_parameters(pair.draft, pair.draft_parameters)}"
    return models if pair.dtype == UNKNOWN else f"{models}, {pair.dtype}"


def _with_parameters(model: str, parameters: int | None) -> str:
    return model if parameters is None else f"{model} ({parameters / 1e6:.3g} M parameters)"


def _machine_line(machine: Machine) -> str:
    parts = [name for name in (machine.processor, machine.device) if name not in (UNKNOWN, IMPORTED)]
    if machine.threads is not None:
        parts += [counted(machine.threads, "thread"), f"torch {machine.torch}"]
    return ", ".join(parts) or "unknown machine"
