"""What was measured of an engine, in lines, and what of it is not told apart."""

from collections.abc import Iterator, Sequence

from treeopt.engines.probes.client import Availability
from treeopt.errors import Warning
from treeopt.planner.step_parts import DRAFT, SPECULATING, STEP, VERIFY, StepPart, step_parts
from treeopt.records.engine import ChainLatency
from treeopt.records.profile import Profile
from treeopt.report.table import Column, aligned
from treeopt.report.text import milliseconds


def availability_lines(found: Availability) -> str:
    """Return what is known of an engine here."""
    state = found.version or f"not installed: {found.install}"
    return f"{found.name}  ({found.title}; {state})\n  started: {found.started}\n  tells: {found.tells}"


def probe_summary(profile: Profile) -> str:
    """Return the steps of an engine by draft length, each condition a table."""
    assert profile.engine is not None  # callers have one
    acceptance = profile.acceptances[0]
    tokens = {0: 1.0, **{each.length: each.tokens_per_step for each in acceptance.chains}}
    lines = [
        f"{profile.engine.name} ({profile.engine.version}): {profile.pair.label}",
        f"accepted at temperature {acceptance.temperature:g}, by position: "
        + ", ".join(f"{each:.3f}" for each in acceptance.table.p[:, 0]),
    ]
    for latency in profile.chain_latencies:
        lines += [
            "",
            f"batch {latency.batch_size}, about {latency.context_tokens} tokens of context",
            *_table(latency, tokens),
        ]
    return "\n".join([*lines, "", *_parts(step_parts(profile.chain_latencies))])


IN_WORDS = {
    SPECULATING: "speculating at all",
    STEP: "every step of {} text{}, beside its passes",
    DRAFT: "drafting one token of {} text{}",
    VERIFY: "verifying {} token{}",
}

NAMED = {SPECULATING: "speculating at all", STEP: "what is beside passes", DRAFT: "drafting", VERIFY: "verifying"}


def _parts(parts: Sequence[StepPart]) -> list[str]:
    """Return what steps are made of, as far as it was told apart, and what was not."""
    known = [each for each in parts if each.seconds is not None]
    left = [part for part in IN_WORDS if any(each.part == part and each.seconds is None for each in parts)]
    rows = [("a step is made of", "ms", "95 %")]
    for each in known:
        assert each.seconds is not None
        ends = f"{milliseconds(each.seconds.low)}-{milliseconds(each.seconds.high)}"
        name = IN_WORDS[each.part].format(each.size, "s" * (each.size != 1))
        rows.append((name, milliseconds(each.seconds.value), ends))
    lines = aligned(rows, [Column(), Column(">"), Column(">")]) if known else []
    if left:
        how = (
            "--batch-sizes 1,2,4 --lengths 0,1,3,7 tells the first"
            if SPECULATING in left
            else "an engine has to tell its passes"
        )
        lines.append(f"Not told apart: {', '.join(NAMED[part] for part in left)} ({how}).")
    return lines


def _table(latency: ChainLatency, tokens: dict[int, float]) -> list[str]:
    plain_s = latency.chains[0].steps.median_s
    rows = [("draft tokens", "step, ms", "95 %", "tokens", "speedup")]
    for each in latency.chains:
        low, high = each.steps.interval_s
        median_s = each.steps.median_s
        rows.append(
            (
                str(each.length),
                milliseconds(median_s),
                f"{milliseconds(low)}-{milliseconds(high)}",
                f"{tokens[each.length]:.2f}",
                f"{tokens[each.length] * plain_s / median_s:.2f}",
            )
        )
    return aligned(rows, [Column(">")] * len(rows[0]))


def doubts(profile: Profile) -> Iterator[Warning]:
    """Yield what the measurements leave open, each with what to run."""
    lengths = [each.length for each in profile.chain_latencies[0].chains]
    assert profile.engine is not None
    if 1 not in lengths:
        yield Warning(
            f"steps with 1 draft token were not measured: those with fewer than {lengths[1]} are interpolated from plain "
            "decoding, which does not draft.",
            f"Probe with --lengths {','.join(map(str, (0, 1, *lengths[1:])))}.",
        )
    deepest = int((profile.acceptances[0].table.p[:, 0] > 0).sum())
    if deepest < lengths[-1]:
        yield Warning(
            f"with {lengths[-1]} draft tokens, none after number {deepest} was ever accepted. Was the engine started with "
            "fewer?",
            "Then probe again, and name the length that it was started with.",
        )
