"""Options of a plan: which trees, by which objective, and at which operating point."""

import re
from dataclasses import asdict, dataclass
from typing import Any

import click

from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.sampling import measured_rule_option
from treeopt.cli.options.values import COUNT, LENGTH, NAME, TEMPERATURE, Parsed
from treeopt.planner import PlanRequest

_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]i?B)", re.ASCII)


def temperature_option(default: str = "the first in the profile") -> Any:
    """Return the option of the temperature; `default` describes the one that is used without it."""
    return Heading.SAMPLING.option("--temperature", type=TEMPERATURE, help=f"Temperature; by default {default}.")


def category_option() -> Any:
    return Heading.PLANNED.option(
        "--category", type=NAME, help="Use only one category of the profile's prompts; by default all."
    )


def new_tokens_option() -> Any:
    return Heading.PLANNED.option(
        "--new-tokens", type=COUNT, help="Length of outputs to plan for, in tokens; by default the measured length."
    )


def budget_option() -> Any:
    return option("--budget", type=COUNT, help="Maximum number of nodes, root included; by default all measured.")


def raw_option() -> Any:
    return Heading.PLANNED.option(
        "--raw", is_flag=True, help="Use acceptance as measured, without smoothing over ranks."
    )


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    base = 1024 if match[2][1] == "i" else 1000
    return max(1, int(float(match[1]) * base ** ("KMGT".index(match[2][0]) + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOptions:
    """The rule and the operating point to predict for."""

    rule: str | None = measured_rule_option("Verification rule; by default the first lossless one in the profile.")
    temperature: float | None = temperature_option()
    context_tokens: int | None = Heading.PLANNED.option(
        "--context-tokens",
        type=COUNT,
        help="Tokens in the KV cache; by default the first measured. Values between measured ones are interpolated.",
    )
    batch_size: int | None = Heading.PLANNED.option(
        "--batch-size",
        type=COUNT,
        help="Sequences decoded together; by default the first measured. Values between measured ones are interpolated.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(PointOptions):
    """The fields of a `PlanRequest`."""

    rule: str | None = measured_rule_option("Verification rule to plan for; by default the best measured.")
    extrapolate: bool = Heading.PLANNED.option(
        "--extrapolate",
        is_flag=True,
        help="Plan beyond the largest measured budget, context or batch size, by continuing the measured times; with a warning.",
    )
    max_nodes: int | None = budget_option()
    max_depth: int | None = option(
        "--depth", type=LENGTH, help="Maximum depth, in levels below the root; by default all measured."
    )
    level_widths: int | None = Heading.PLANNED.option(
        "--level-width", type=COUNT, help="Maximum nodes per level; by default no limit."
    )
    memory_bytes: int | None = Heading.PLANNED.option(
        "--memory",
        type=Parsed("size", "a size such as 40GB or 24GiB", _parse_size),
        help="Memory for weights and KV caches, such as 40GB; larger plans are left out.",
    )
    objective: str = Heading.PLANNED.option(
        "--objective",
        type=click.Choice(["speed", "tokens"]),
        default="speed",
        help="What the plan maximizes: speed is tokens per second, tokens is tokens per step, however long a step takes.",
    )
    raw: bool = raw_option()
    lossy: bool = Heading.SAMPLING.option(
        "--lossy", is_flag=True, help="Also consider lossy rules, which change the distribution of the output."
    )

    @property
    def request(self) -> PlanRequest:
        return PlanRequest(**asdict(self))
