"""Options that say what to plan for, and the plans that follow from them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import Function
from treeopt.cli.values import COUNT, LENGTH
from treeopt.records.rules import LOSSY_RULES

if TYPE_CHECKING:
    from treeopt.planner import Plan, Schedule
    from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Which trees, what they are to be best at, and where."""

    rule: str | None
    temperature: float | None
    context_tokens: int | None
    batch_size: int | None
    extrapolate: bool
    budget: int | None
    depth: int | None
    level_width: int | None
    objective: str
    raw: bool
    lossy: bool

    def __post_init__(self) -> None:
        if self.rule in LOSSY_RULES and not self.lossy:
            raise click.UsageError(f"--rule {self.rule}: it changes the text's law. Allow that with --lossy.")

    def plan(self, profile: "Profile") -> "Plan":
        """Return the plan; without a budget, over all nodes that were measured."""
        from treeopt.planner import largest_pass, plan

        where: dict[str, Any] = {
            "context_tokens": self.context_tokens,
            "batch_size": self.batch_size,
            "extrapolate": self.extrapolate,
        }
        return plan(
            profile,
            self.budget or largest_pass(profile, rule=self.rule, temperature=self.temperature, **where),
            objective=self.objective,
            **where,
            **self._trees(),
        )

    def scheduled(self, profile: "Profile") -> int:
        """Return the number of conditions and temperatures that a schedule is made for; 0 where none is made."""
        from treeopt.planner.rule_choice import planned_acceptances
        from treeopt.planner.scheduling import measured_conditions

        asked = planned_acceptances(profile, rule=self.rule, temperature=self.temperature, lossy=self.lossy)
        temperatures = {acceptance.temperature for acceptance in asked}
        if len(profile.latencies) * len(temperatures) == 1 or self.objective != "speed":
            return 0
        return sum(len(measured_conditions(profile, temperature)) for temperature in temperatures)

    def schedule(self, profile: "Profile", tick: Callable[[], object]) -> "Schedule | None":
        """Return what to run at every condition, where several were measured and speed is asked for.

        Its trees have at most as many nodes as were measured everywhere; `tick` is called after every condition.
        """
        from treeopt.planner import schedule

        if not self.scheduled(profile):
            return None
        measured = min(latency.verify.max_tokens for latency in profile.latencies)
        return schedule(profile, min(self.budget or measured, measured), tick=tick, **self._trees())

    def _trees(self) -> dict[str, Any]:
        return {
            "max_depth": self.depth,
            "level_widths": self.level_width,
            "rule": self.rule,
            "temperature": self.temperature,
            "raw": self.raw,
            "lossy": self.lossy,
        }


def plan_options(function: Function) -> Function:
    """Add the options that say what to plan for; with the profile's, the command receives them as one `asked`."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        asked = {name: kwargs.pop(name) for name in PlanOptions.__dataclass_fields__}
        return function(*args, asked=PlanOptions(**asked), **kwargs)

    options = [
        click.option(
            "--context-tokens",
            type=COUNT,
            help="Tokens in the cache; by default the first measured. Between measured lengths times are interpolated.",
        ),
        click.option(
            "--batch-size",
            type=COUNT,
            help="Sequences decoded together; by default the first measured. Interpolated likewise.",
        ),
        click.option("--extrapolate", is_flag=True, help="Go on, with a warning, beyond what was measured."),
        click.option("--budget", type=COUNT, help="Most nodes, root included; by default all that was measured."),
        click.option("--depth", type=LENGTH, help="Most levels below the root; by default all that was measured."),
        click.option("--level-width", type=COUNT, help="Most nodes of any level; by default any number."),
        click.option(
            "--objective",
            type=click.Choice(["speed", "tokens"]),
            default="speed",
            show_default=True,
            help="What to have most of: tokens per second, or tokens per step whatever they cost.",
        ),
        click.option("--raw", is_flag=True, help="Use acceptance as measured, ranks that rise by noise included."),
        click.option("--lossy", is_flag=True, help="Consider lossy rules too, under which the text's law changes."),
    ]
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]
