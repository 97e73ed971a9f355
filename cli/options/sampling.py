"""Options for sampling and for the verification rule."""

from dataclasses import dataclass
from typing import Any

import click

from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import LENGTH, SHARE, TEMPERATURE, TEMPERATURES, Names, Parsed, parse_temperature
from treeopt.records.rules import RULES
from treeopt.records.sampling import Sampling
from treeopt.trees import TreeFile

DRAFT_SAMPLING = ("draft_temperature", "draft_top_p", "draft_top_k")
"""Options of the draft's sampling."""


def lossy_option() -> Any:
    return Heading.SAMPLING.option(
        "--lossy", is_flag=True, help="Allow lossy rules, which change the distribution of the output."
    )


def measured_rule_option(help_text: str) -> Any:
    """Return the option of any rule that a profile may contain; another program may have measured it."""
    return Heading.SAMPLING.option("--rule", type=Names("rule", lambda: RULES), help=help_text)


def planned_rule(planned: TreeFile) -> str:
    """Return the rule that a tree was planned for, by default the one for its drafter."""
    default = "sequoia" if planned.drafter is None else "target"
    return (planned.provenance and planned.provenance.rule) or default


def _parse_draft_temperature(text: str) -> float:
    if (value := parse_temperature(text)) == 0:
        raise ValueError(text)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingsOptions:
    """Sampling at one or several temperatures."""

    temperature: tuple[float, ...] = option(
        "--temperature",
        type=TEMPERATURES,
        default="0",
        help="Sampling temperature; 0 is greedy. Separate several with commas.",
    )
    top_p: float = option("--top-p", type=SHARE, default=1.0, help="Nucleus sampling: probability mass to keep.")
    top_k: int = option("--top-k", type=LENGTH, default=0, help="Likeliest tokens to keep; 0 for all.")
    draft_temperature: float | None = option(
        "--draft-temperature",
        type=Parsed("number", "a number of at least 1e-6", _parse_draft_temperature),
        help="Temperature of the draft; by default the target's. It changes the speed, not the output's distribution.",
    )
    draft_top_p: float = option("--draft-top-p", type=SHARE, default=1.0, help="Like --top-p, for the draft.")
    draft_top_k: int = option("--draft-top-k", type=LENGTH, default=0, help="Like --top-k, for the draft.")

    def __post_init__(self) -> None:
        _ = self.draft_sampling  # refuses contradictions

    @property
    def samplings(self) -> tuple[Sampling, ...]:
        """The target's sampling at each temperature."""
        return tuple(Sampling(temperature, self.top_p, self.top_k) for temperature in self.temperature)

    @property
    def draft_sampling(self) -> Sampling | None:
        """The draft's sampling, None if no option sets it; click.UsageError for options that contradict each other."""
        if self.draft_temperature is None and self.draft_top_p == 1 and self.draft_top_k == 0:
            return None
        positive = [temperature for temperature in self.temperature if temperature > 0]
        if not positive:
            raise click.UsageError(
                "--draft-temperature, --draft-top-p, --draft-top-k: at temperature 0 the draft takes its likeliest "
                "tokens. Leave them out."
            )
        if self.draft_temperature is None and len(positive) > 1:
            raise click.UsageError(
                "--draft-top-p, --draft-top-k: expected --draft-temperature with several temperatures. Add it."
            )
        return Sampling(self.draft_temperature or positive[0], self.draft_top_p, self.draft_top_k)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions(SamplingsOptions):
    """Sampling at one temperature."""

    temperature: tuple[float, ...] = option(
        "--temperature",
        type=Parsed(TEMPERATURE.name, TEMPERATURE.expected, lambda text: (parse_temperature(text),)),
        default="0",
        help="Sampling temperature; 0 is greedy.",
    )

    @property
    def sampling(self) -> Sampling:
        """The target's sampling."""
        return self.samplings[0]
