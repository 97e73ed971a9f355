"""Simulated settings as a table for each rate, and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.errors import Warning
from treeopt.files.serialization import serialize_record
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds, range_text
from treeopt.simulation.arrivals import Load
from treeopt.simulation.outcome import Outcome
from treeopt.simulation.simulate import Limits
from treeopt.simulation.step_times import StepTimes
from treeopt.version import TOOL

HEADER = ("", "tokens/s", "first token, ms", "99 %", "per token, ms", "99 %", "tokens/step", "capacity/s", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRate:
    """The largest rate at which a setting meets the limits."""

    name: str
    rate_per_s: float | None
    """None if it never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Results of a simulation."""

    load: Load
    """With the largest of the simulated rates."""
    replicas: int
    batch_size_limit: int
    outcomes: tuple[Outcome, ...]
    """By rate, then by setting."""
    limits: Limits
    largest_rates: tuple[LargestRate, ...] = ()


def simulation_json(simulation: Simulation, times: StepTimes, warnings: Sequence[Warning]) -> str:
    """Return one JSON object, in seconds, requests per second and tokens per second.

    Args:
        simulation: the results.
        times: what they were predicted from.
        warnings: about them.
    """
    report = {
        "tool": TOOL,
        "pair": serialize_record(times.profile.pair, nulls=True),
        "machine": serialize_record(times.profile.machine, nulls=True),
        "rule": times.acceptance.rule,
        "temperature": times.acceptance.temperature,
        **serialize_record(simulation, nulls=True),
        "warnings": list(map(str, warnings)),
    }
    return json.dumps(report, indent=2)


def simulation_text(simulation: Simulation) -> str:
    """Return a table for each rate with a line for each setting, the fastest marked, and the largest rates."""
    blocks = [_heading(simulation)]
    for rate in dict.fromkeys(outcome.rate_per_s for outcome in simulation.outcomes):
        outcomes = [outcome for outcome in simulation.outcomes if outcome.rate_per_s == rate]
        blocks.append("\n".join([_requests_line(outcomes[0]), "", *_table(outcomes)]))
    if simulation.largest_rates:
        blocks.append(_largest_rates(simulation))
    return "\n\n".join(blocks)


def fastest(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome with the least time per token of those that keep up; if none does, the one with the most tokens."""
    keeping_up = [outcome for outcome in outcomes if outcome.keeps_up]
    if not keeping_up:
        return max(outcomes, key=lambda outcome: outcome.tokens_per_s)
    return min(keeping_up, key=lambda outcome: outcome.token_s)


def _heading(simulation: Simulation) -> str:
    load = simulation.load
    servers, batch_size = counted(simulation.replicas, "server"), counted(simulation.batch_size_limit, "sequence")
    return (
        f"{servers}, at most {batch_size} at a time; prompts of "
        f"{range_text(load.prompt_tokens)} tokens, outputs of {range_text(load.new_tokens)}, arriving for {load.duration_s:g} s"
    )


def _requests_line(outcome: Outcome) -> str:
    """Return how many requests arrived, and how many of them the percentiles count."""
    sequences, token = outcome.latency.sequences, outcome.time_per_token
    text = f"{outcome.rate_per_s:g} requests a second, {outcome.requests} in all; percentiles of {sequences}"
    if sequences < outcome.requests:
        text += f" (warm-up of {outcome.warm_up_s:.3g} s left out)"
    if token is not None and token.sequences < sequences:
        text += f", per token of {token.sequences} with two tokens or more"
    return text + ":"


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    best = fastest(outcomes)
    rows = [HEADER, *(_row(outcome, chosen=outcome is best) for outcome in outcomes)]
    return aligned(rows, [Column(), *[Column(">")] * 7, Column()])


def _row(outcome: Outcome, *, chosen: bool) -> tuple[str, ...]:
    first, token = outcome.time_to_first_token, outcome.time_per_token
    return (
        ("* " if chosen else "  ") + outcome.name,
        f"{outcome.tokens_per_s:.0f}",
        milliseconds(first.median_s),
        milliseconds(first.p99_s),
        "" if token is None else milliseconds(token.median_s),
        "" if token is None else milliseconds(token.p99_s),
        f"{outcome.tokens_per_step:.2f}",
        f"{outcome.capacity_per_s:.3g}",
        "" if outcome.keeps_up else "does not keep up",
    )


def _largest_rates(simulation: Simulation) -> str:
    limits = simulation.limits
    conditions = [
        f"{name} within {milliseconds(seconds)} ms"
        for name, seconds in (("first token", limits.first_token_s), ("each token", limits.token_s))
        if seconds is not None
    ]
    rows = [
        ("  " + largest.name, "never" if largest.rate_per_s is None else f"{largest.rate_per_s:.3g}")
        for largest in simulation.largest_rates
    ]
    title = f"Most requests a second with {' and '.join(conditions)} for 99 % of sequences:"
    return "\n".join([title, "", *aligned(rows, [Column(), Column(">")])])
