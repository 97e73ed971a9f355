"""Options that say what to plan for."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.rule import measured_rule
from treeopt.cli.options.values import COUNT, LENGTH, SIZE, TEMPERATURE, TEXT
from treeopt.records.rules import LOSSY_RULES

if TYPE_CHECKING:
    from treeopt.planner import PlanRequest

PROFILE_TEMPERATURE = option(
    "--temperature",
    heading=Heading.SAMPLING,
    type=TEMPERATURE,
    help="Temperature; by default the first in the profile.",
)
CONTEXT_TOKENS = option(
    "--context-tokens", heading=Heading.PLANNED, type=COUNT, help="Tokens in the cache; by default the first measured."
)
BATCH_SIZE = option(
    "--batch-size",
    heading=Heading.PLANNED,
    type=COUNT,
    help="Sequences decoded together; by default the first measured.",
)
CATEGORY = option(
    "--category",
    heading=Heading.PLANNED,
    type=TEXT,
    metavar="NAME",
    help="Plan for prompts of one category of the profile; by default for all prompts together.",
)
NEW_TOKENS = option(
    "--new-tokens",
    heading=Heading.PLANNED,
    type=COUNT,
    help="Plan for texts of so many new tokens; by default as long as those measured.",
)
RAW = option(
    "--raw",
    heading=Heading.PLANNED,
    is_flag=True,
    help="Use acceptance as measured, ranks that rise by noise included.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Which trees, what they are to be best at, and where."""

    rule: str | None = field(
        metadata=measured_rule("Verification rule to plan for; by default the best of those measured.")
    )
    temperature: float | None = field(metadata=PROFILE_TEMPERATURE)
    context_tokens: int | None = field(
        metadata=option(
            "--context-tokens",
            heading=Heading.PLANNED,
            type=COUNT,
            help="Tokens in the cache; by default the first measured. Between measured lengths times and acceptance are interpolated.",
        )
    )
    batch_size: int | None = field(
        metadata=option(
            "--batch-size",
            heading=Heading.PLANNED,
            type=COUNT,
            help="Sequences decoded together; by default the first measured. Interpolated likewise.",
        )
    )
    extrapolate: bool = field(
        metadata=option(
            "--extrapolate",
            heading=Heading.PLANNED,
            is_flag=True,
            help="Go on, with a warning, beyond what was measured.",
        )
    )
    budget: int | None = field(
        metadata=option("--budget", type=COUNT, help="Most nodes, root included; by default all that was measured.")
    )
    depth: int | None = field(
        metadata=option("--depth", type=LENGTH, help="Most levels below the root; by default all that was measured.")
    )
    level_width: int | None = field(
        metadata=option(
            "--level-width", heading=Heading.PLANNED, type=COUNT, help="Most nodes of any level; by default any number."
        )
    )
    memory: int | None = field(
        metadata=option(
            "--memory",
            heading=Heading.PLANNED,
            type=SIZE,
            metavar="SIZE",
            help="Plan only what fits in SIZE, such as 40GB: weights and a KV cache for each sequence.",
        )
    )
    objective: str = field(
        metadata=option(
            "--objective",
            heading=Heading.PLANNED,
            type=click.Choice(["speed", "tokens"]),
            default="speed",
            show_default=True,
            help="What to have most of: tokens per second, or tokens per step whatever they cost.",
        )
    )
    raw: bool = field(metadata=RAW)
    lossy: bool = field(
        metadata=option(
            "--lossy",
            heading=Heading.SAMPLING,
            is_flag=True,
            help="Consider lossy rules too, under which the text's distribution changes.",
        )
    )

    def __post_init__(self) -> None:
        if self.rule in LOSSY_RULES and not self.lossy:
            raise click.UsageError(f"--rule {self.rule}: it changes the text's distribution. Allow that with --lossy.")

    @property
    def request(self) -> "PlanRequest":
        """What the planner is asked for."""
        from treeopt.planner import PlanRequest

        return PlanRequest(
            rule=self.rule,
            temperature=self.temperature,
            context_tokens=self.context_tokens,
            batch_size=self.batch_size,
            extrapolate=self.extrapolate,
            max_nodes=self.budget,
            max_depth=self.depth,
            level_widths=self.level_width,
            objective=self.objective,
            memory_bytes=self.memory,
            raw=self.raw,
            lossy=self.lossy,
        )
