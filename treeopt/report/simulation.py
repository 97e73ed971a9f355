"""Settings under loads: a table for each rate, and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from treeopt.files.record_form import in_file
from treeopt.report.json_text import json_text
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds, range_text
from treeopt.simulation.arrivals import Load
from treeopt.simulation.outcome import Outcome
from treeopt.simulation.simulate import Limits
from treeopt.version import TOOL

HEADER = ("", "tokens/s", "first token, ms", "99 %", "per token, ms", "99 %", "tokens/step", "capacity/s", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRate:
    """The largest rate at which a setting keeps the limits."""

    name: str
    rate_per_s: float | None
    """None where it never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All that was simulated."""

    load: Load
    """Its rate is the largest of those simulated."""
    replicas: int
    most_texts: int
    outcomes: tuple[Outcome, ...]
    """Settings within rates."""
    limits: Limits
    largest_rates: tuple[LargestRate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    tool: str
    found: Simulation = field(metadata=in_file(inline=True))


def simulation_json(found: Simulation) -> str:
    """Return everything as one JSON object; seconds, requests per second and tokens per second."""
    return json_text(_Report(tool=TOOL, found=found))


def simulation_text(found: Simulation) -> str:
    """Return a table for each rate with a line for each setting, the fastest marked, and the rates that are kept."""
    rates = dict.fromkeys(each.rate_per_s for each in found.outcomes)
    parts = [_served(found)]
    for rate in rates:
        at_rate = [each for each in found.outcomes if each.rate_per_s == rate]
        parts.append("\n".join([_arrived(at_rate[0]), "", *_table(at_rate)]))
    if found.largest_rates:
        parts.append(_rates(found))
    return "\n\n".join(parts)


def fastest(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome with the least time per token of those that keep up; where none does, that of most tokens."""
    keeping = [each for each in outcomes if each.keeps_up]
    if not keeping:
        return max(outcomes, key=lambda each: each.tokens_per_s)
    return min(keeping, key=lambda each: each.token_s)


def _served(found: Simulation) -> str:
    load = found.load
    return (
        f"{counted(found.replicas, 'server')}, at most {counted(found.most_texts, 'sequence')} at a time; prompts of "
        f"{range_text(load.prompt_tokens)} tokens, outputs of {range_text(load.new_tokens)}, arriving for {load.duration_s:g} s"
    )


def _arrived(outcome: Outcome) -> str:
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
    rows = [HEADER, *(_row(each, best) for each in outcomes)]
    return aligned(rows, [Column(), *[Column(">")] * 7, Column()])


def _row(each: Outcome, best: Outcome) -> tuple[str, ...]:
    first, token = each.time_to_first_token, each.time_per_token
    return (
        ("* " if each is best else "  ") + each.name,
        f"{each.tokens_per_s:.0f}",
        milliseconds(first.median_s),
        milliseconds(first.p99_s),
        "" if token is None else milliseconds(token.median_s),
        "" if token is None else milliseconds(token.p99_s),
        f"{each.tokens_per_step:.2f}",
        f"{each.capacity_per_s:.3g}",
        "" if each.keeps_up else "does not keep up",
    )


def _rates(found: Simulation) -> str:
    limits = found.limits
    asked = [
        f"{name} within {milliseconds(seconds)} ms"
        for name, seconds in (("first token", limits.first_token_s), ("each token", limits.token_s))
        if seconds is not None
    ]
    rows = [
        ("  " + each.name, "never" if each.rate_per_s is None else f"{each.rate_per_s:.3g}")
        for each in found.largest_rates
    ]
    title = f"Most requests a second with {' and '.join(asked)} for 99 of 100:"
    return "\n".join([title, "", *aligned(rows, [Column(), Column(">")])])
