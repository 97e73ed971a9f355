"""What a profile holds, in the lines that `treeopt profile` prints."""

from collections.abc import Sequence

from treeopt.records.draft_record import DraftRecord
from treeopt.records.latency import LatencyTable
from treeopt.records.machine import Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.measured_drafter import DrafterLatency, MeasuredDrafter, condition_of
from treeopt.records.profile import Profile, origins_text
from treeopt.records.rules import rule_label
from treeopt.records.steadiness import precision
from treeopt.records.step_latency import StepLatency
from treeopt.report.profile_words import condition_name
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds

SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
ABSENT = "-"


def summary(profile: Profile) -> str:
    """Return what a profile holds, in a few lines for each condition and each table."""
    machine, pair = profile.machine, profile.pair
    threads = "" if machine.threads is None else f", {counted(machine.threads, 'thread')}, torch {machine.torch}"
    lines = [
        f"{_models(pair)}, {pair.dtype}",
        f"{machine.processor}, {machine.device}{threads}",
    ]
    if imported := origins_text(profile.step_latencies, profile.acceptance()):
        lines.append(imported)
    several = len(profile.latencies) > 1
    for latency in profile.latencies:
        lines += _times(latency, profile.drafters, named=several)
    for acceptance in profile.acceptances:
        lines += _table(acceptance)
    for drafter in profile.drafters:
        lines += ["", *_drafter(drafter)]
    return "\n".join(lines)


def record_summary(record: DraftRecord) -> str:
    """Return what a draft record holds, in two lines."""
    nodes = len(record.parent) / record.roots
    return (
        f"draft record at temperature {record.temperature:g}, {record.roots} positions of {record.texts} texts\n"
        f"dynamic trees up to top-k {record.top_k}, depth {record.depth}; {nodes:.0f} draft nodes a position"
    )


def _drafter(drafter: MeasuredDrafter) -> list[str]:
    """Return a line for each temperature of a drafter of static trees, and for each setting that was decoded with."""
    lines = [
        f"{drafter.name} at temperature {each.sampling.temperature:g}: rank 0 at depth 1 accepted "
        f"{each.acceptance.table.p[0, 0]:.3f}, {each.acceptance.positions} positions"
        for each in drafter.trees
    ]
    for decodes in drafter.decodes:
        for setting in decodes.settings:
            relative = setting.decoded.step_s / decodes.plain.step_s
            lines.append(
                f"{drafter.setting(setting.values).words} at temperature {decodes.temperature:g}: "
                f"{setting.tokens_per_step:.2f} tokens a step on {counted(len(setting.steps.steps), 'text')}, a step "
                f"took {relative:.2f} times a plain one on {counted(decodes.plain.texts, 'text')}"
            )
    return lines


def _times(latency: StepLatency, drafters: Sequence[MeasuredDrafter], *, named: bool) -> list[str]:
    """Return the lines of one condition, which is named where there are others."""
    shown = [tokens for tokens in SHOWN_TOKENS if tokens <= latency.verify.max_tokens]
    draft = latency.draft
    verify = f"verification time: {_precision(latency.verify)}"
    return [
        "",
        *([condition_name(latency)] if named else []),
        *_numbers(
            [
                ("tokens in a pass", *map(str, shown)),
                ("verify, ms", *_row(latency.verify, shown)),
                *([] if draft is None else [_drafting("draft", latency, shown)]),
                *(
                    _drafting(drafter.name, each, shown)
                    for drafter in drafters
                    for each in drafter.latencies
                    if condition_of(each) == condition_of(latency)
                ),
            ]
        ),
        *_overheads(latency),
        *_limit(latency),
        *_left_out(latency),
        verify if draft is None else f"{verify}; drafting: {_precision(draft)}",
    ]


def _drafting(name: str, latency: StepLatency | DrafterLatency, shown: list[int]) -> tuple[str, ...]:
    """Return the row of one drafter: a level of each width, or all levels at once."""
    assert latency.draft is not None  # the drafter was timed
    if not latency.per_block:
        return f"{name} a level, ms", *_row(latency.draft, shown)
    levels = latency.draft.max_tokens
    return f"{name} {levels} levels, ms", milliseconds(float(latency.draft.seconds(levels))), *[""] * (len(shown) - 1)


def _row(table: LatencyTable, shown: list[int]) -> list[str]:
    most = table.max_tokens
    return [milliseconds(float(table.seconds(tokens))) if tokens <= most else ABSENT for tokens in shown]


def _numbers(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of numbers behind their names."""
    return aligned(rows, [Column(least=19), *[Column(">", 6, gap=1)] * (len(rows[0]) - 1)])


def _precision(table: LatencyTable) -> str:
    errors = precision(table)
    between = max(errors.at_counts, errors.between_counts)
    return f"±{100 * errors.at_counts:.1f} % at measured sizes, ±{100 * between:.1f} % between them"


def _limit(latency: StepLatency) -> list[str]:
    if latency.limit_tokens is None:
        return []
    return [f"memory ends before {latency.limit_tokens} tokens: no larger pass was timed"]


def _left_out(latency: StepLatency) -> list[str]:
    """Return how many calls were in vain; where disturbed samples had to be kept a warning says so."""
    disturbance = latency.disturbance
    if disturbance is None or disturbance.calls == 0 or disturbance.samples > 0:
        return []
    return [f"{disturbance.calls:.0%} of the calls were disturbed by other programs and are left out"]


def _overheads(latency: StepLatency) -> list[str]:
    if latency.overhead is None:
        return []
    rules = ", ".join(f"{each.rule} {milliseconds(each.overhead.median_s)} ms" for each in latency.rule_overheads)
    split = ""
    if latency.host is not None and latency.host.median_s < latency.overhead.median_s:
        host = f"{milliseconds(latency.host.median_s)} ms of it is the host's work"
        split = f": {host}, the rest is mostly the draft model reading accepted tokens"
    return [f"overhead of a step  {rules or f'{milliseconds(latency.overhead.median_s):>7} ms'}{split}"]


def _table(acceptance: MeasuredAcceptance) -> list[str]:
    """Return the lines of one rule."""
    rows = acceptance.table.rows(acceptance.table.max_depth or 1)[:, 0]  # below a parent of rank 0, as the root counts
    positions = "" if acceptance.positions is None else f", {acceptance.positions} positions"
    context = "" if acceptance.context_tokens is None else f", {acceptance.context_tokens} tokens of context"
    return [
        "",
        f"acceptance, {rule_label(acceptance.rule)} at temperature {acceptance.temperature:g}{context}{positions}",
        *_numbers(
            [
                ("rank", *map(str, range(min(8, acceptance.table.branching)))),
                *(
                    (f"depth {depth}", *(f"{value:.3f}" for value in rows[depth - 1][:8]))
                    for depth in (1, 2, 4, 8, 16)
                    if depth <= len(rows)
                ),
            ]
        ),
    ]


def _models(pair: Pair) -> str:
    target = _named(pair.target, pair.target_parameters)
    return target if pair.draft is None else f"{target} + {_named(pair.draft, pair.draft_parameters)}"


def _named(model: str, parameters: int | None) -> str:
    return model if parameters is None else f"{model} ({parameters / 1e6:.3g} M parameters)"
