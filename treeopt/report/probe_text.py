"""What `treeopt probe` prints: engines, steps by draft length, and the parts of a step that they determine."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from treeopt.errors import Warning
from treeopt.planner.step_parts import DRAFT, SPECULATING, STEP, VERIFY, StepPart, step_parts
from treeopt.records.engine import ChainLatency
from treeopt.records.profile import Profile
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds, milliseconds_range

if TYPE_CHECKING:
    from treeopt.engines.clients.client import EngineInfo

PARTS = {
    SPECULATING: "fixed cost of speculation",
    STEP: "overhead of a step",
    DRAFT: "drafting one token",
    VERIFY: "verification",
}
"""Names of the parts of a step, in the order in which they are printed."""


def engine_lines(info: "EngineInfo") -> str:
    """Return the name and version of an engine, how it is started, and what it reports."""
    return f"{info.name}  ({info.title}; {info.state})\n  started: {info.started}\n  reports: {info.reports}"


def probe_summary(profile: Profile) -> str:
    """Return the acceptance of an engine, a table of its steps for each batch size, and the parts of a step."""
    assert profile.engine is not None  # the caller's profile is of an engine
    acceptance = profile.acceptances[0]
    tokens = {0: 1.0, **{counts.length: counts.tokens_per_step for counts in acceptance.chains}}
    lines = [
        f"{profile.engine.name} ({profile.engine.version}): {profile.pair.label}",
        f"accepted at temperature {acceptance.temperature:g}, by position: "
        + ", ".join(f"{probability:.3f}" for probability in acceptance.table.p[:, 0]),
    ]
    for latency in profile.chain_latencies:
        lines += [
            "",
            f"batch {latency.batch_size}, about {latency.context_tokens} tokens of context",
            *_table(latency, tokens),
        ]
    return "\n".join([*lines, "", *part_lines(step_parts(profile.chain_latencies))])


def part_lines(parts: Sequence[StepPart]) -> list[str]:
    """Return the seconds of each part of a step that the measured steps determine, and the names of the others."""
    rows = [("parts of a step", "ms", "95 %")]
    for part in parts:
        if part.seconds is not None:
            interval = milliseconds_range((part.seconds.low, part.seconds.high))
            rows.append((_part_name(part), milliseconds(part.seconds.value), interval))
    lines = aligned(rows, [Column(), Column(">"), Column(">")]) if len(rows) > 1 else []
    missing = [name for name in PARTS if any(part.part == name and part.seconds is None for part in parts)]
    if missing:
        remedy = (
            f"To measure the {PARTS[SPECULATING]}, probe with --batch-sizes 1,2,4 --lengths 0,1,3,7."
            if SPECULATING in missing
            else "Only engines that report their passes determine them."
        )
        lines.append(f"Not determined by these steps: {', '.join(PARTS[name] for name in missing)}. {remedy}")
    return lines


def _part_name(part: StepPart) -> str:
    if part.part == SPECULATING:
        return PARTS[SPECULATING]
    return f"{PARTS[part.part]}, {counted(part.size, 'token' if part.part == VERIFY else 'sequence')}"


def _table(latency: ChainLatency, tokens: dict[int, float]) -> list[str]:
    plain_s = latency.chains[0].steps.median_s
    rows = [("draft tokens", "step, ms", "95 %", "tokens", "speedup")]
    for chain in latency.chains:
        median_s = chain.steps.median_s
        rows.append(
            (
                str(chain.length),
                milliseconds(median_s),
                milliseconds_range(chain.steps.interval_s),
                f"{tokens[chain.length]:.2f}",
                f"{tokens[chain.length] * plain_s / median_s:.2f}",
            )
        )
    return aligned(rows, [Column(">")] * len(rows[0]))


def probe_warnings(profile: Profile) -> Iterator[Warning]:
    """Yield warnings about draft lengths that were not measured, or that the engine does not reach."""
    lengths = [chain.length for chain in profile.chain_latencies[0].chains]
    if 1 not in lengths:
        yield Warning(
            f"steps with 1 draft token were not measured: below {lengths[1]}, times are interpolated from plain decoding, "
            "which does not draft.",
            f"Probe with --lengths {','.join(map(str, (0, 1, *lengths[1:])))}.",
        )
    deepest = int((profile.acceptances[0].table.p[:, 0] > 0).sum())
    if deepest < lengths[-1]:
        yield Warning(
            f"with {lengths[-1]} draft tokens, none after number {deepest} was ever accepted. The engine may draft fewer.",
            "If so, probe again with the length that it was started with.",
        )
