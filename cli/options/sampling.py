"""Options that say how tokens are sampled, at one temperature or at several."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import click

from treeopt.cli.options.record import Heading, group, option
from treeopt.cli.options.values import DRAFT_TEMPERATURE, LENGTH, SHARE, TEMPERATURE, TEMPERATURES
from treeopt.records.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """Which tokens may be sampled, and how the draft samples: all but the target's temperature."""

    top_p: float = field(
        metadata=option(
            "--top-p",
            heading=Heading.SAMPLING,
            type=SHARE,
            default=1.0,
            show_default=True,
            help="Share of the target's distribution that is kept.",
        )
    )
    top_k: int = field(
        metadata=option(
            "--top-k",
            heading=Heading.SAMPLING,
            type=LENGTH,
            default=0,
            show_default=True,
            help="Tokens of the target's distribution kept; 0 is all.",
        )
    )
    draft_temperature: float | None = field(
        metadata=option(
            "--draft-temperature",
            heading=Heading.SAMPLING,
            type=DRAFT_TEMPERATURE,
            help="Temperature of the draft; by default the target's. It changes the speed, never the text's distribution.",
        )
    )
    draft_top_p: float = field(
        metadata=option(
            "--draft-top-p",
            heading=Heading.SAMPLING,
            type=SHARE,
            default=1.0,
            show_default=True,
            help="As --top-p, for the draft.",
        )
    )
    draft_top_k: int = field(
        metadata=option(
            "--draft-top-k",
            heading=Heading.SAMPLING,
            type=LENGTH,
            default=0,
            show_default=True,
            help="As --top-k, for the draft.",
        )
    )

    def draft_sampling(self, temperatures: Iterable[float]) -> Sampling | None:
        """Return how the draft samples, None where that is not said; click.UsageError where it cannot be meant."""
        if self.draft_temperature is None and self.draft_top_p == 1 and self.draft_top_k == 0:
            return None
        warm = [each for each in temperatures if each > 0]
        if not warm:
            raise click.UsageError(
                "--draft-temperature, --draft-top-p, --draft-top-k: at temperature 0 the draft takes its likeliest "
                "tokens. Leave them out."
            )
        if self.draft_temperature is None and len(warm) > 1:
            raise click.UsageError("--draft-top-p, --draft-top-k: expected --draft-temperature with several.")
        return Sampling(self.draft_temperature or warm[0], self.draft_top_p, self.draft_top_k)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """One way of sampling."""

    temperature: float = field(
        metadata=option(
            "--temperature",
            heading=Heading.SAMPLING,
            type=TEMPERATURE,
            default="0",
            show_default=True,
            help="Sampling temperature; 0 is greedy.",
        )
    )
    tokens: TokenOptions = field(metadata=group(TokenOptions))

    def __post_init__(self) -> None:
        self.tokens.draft_sampling([self.temperature])

    @property
    def sampling(self) -> Sampling:
        """How the target samples."""
        return Sampling(self.temperature, self.tokens.top_p, self.tokens.top_k)

    @property
    def draft_sampling(self) -> Sampling | None:
        """How the draft samples, None where that is not said."""
        return self.tokens.draft_sampling([self.temperature])


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingsOptions:
    """Sampling at one temperature or several."""

    temperatures: tuple[float, ...] = field(
        metadata=option(
            "--temperature",
            "temperature",
            heading=Heading.SAMPLING,
            type=TEMPERATURES,
            metavar="NUMBERS",
            default="0",
            show_default=True,
            help="Sampling temperature; 0 is greedy. Several with commas between.",
        )
    )
    tokens: TokenOptions = field(metadata=group(TokenOptions))

    def __post_init__(self) -> None:
        self.tokens.draft_sampling(self.temperatures)

    @property
    def samplings(self) -> tuple[Sampling, ...]:
        """How the target samples, at each temperature."""
        return tuple(Sampling(each, self.tokens.top_p, self.tokens.top_k) for each in self.temperatures)

    @property
    def draft_sampling(self) -> Sampling | None:
        """How the draft samples, None where that is not said."""
        return self.tokens.draft_sampling(self.temperatures)
