"""Options that say how tokens are sampled, at one temperature or at several."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from treeopt.cli.values import TEMPERATURES
from treeopt.sampling import Sampling

Function = TypeVar("Function", bound=Callable[..., Any])


def sampling_options(function: Function) -> Function:
    """Add the options of one law; the command receives `sampling` and `draft_sampling`."""

    @functools.wraps(function)
    def command(*args: Any, samplings: tuple[Sampling, ...], **kwargs: Any) -> Any:
        if len(samplings) > 1:
            raise click.UsageError("--temperature: expected one. Got several.")
        return function(*args, sampling=samplings[0], **kwargs)

    return samplings_options(command)  # type: ignore[return-value]


def samplings_options(function: Function) -> Function:
    """Add the options of a law at one temperature or several; the command receives `samplings` and `draft_sampling`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        temperature: tuple[float, ...],
        top_p: float,
        top_k: int,
        draft_temperature: float | None,
        draft_top_p: float,
        draft_top_k: int,
        **kwargs: Any,
    ) -> Any:
        samplings = tuple(Sampling(each, top_p, top_k) for each in temperature)
        own = draft_temperature is not None or draft_top_p < 1 or draft_top_k > 0
        draft_sampling = None
        if own:
            warm = [each for each in temperature if each > 0]
            if not warm:
                raise click.UsageError(
                    "--draft-temperature, --draft-top-p, --draft-top-k: at temperature 0 the draft takes its likeliest "
                    "tokens. Leave them out."
                )
            if draft_temperature is None and len(warm) > 1:
                raise click.UsageError("--draft-top-p, --draft-top-k: expected --draft-temperature with several.")
            draft_sampling = Sampling(draft_temperature or warm[0], draft_top_p, draft_top_k)
        return function(*args, samplings=samplings, draft_sampling=draft_sampling, **kwargs)

    share, count = click.FloatRange(0, 1, min_open=True), click.IntRange(min=0)
    options = [
        click.option(
            "--temperature",
            type=TEMPERATURES,
            default="0",
            show_default=True,
            help="Sampling temperature; 0 is greedy. A profile takes several, with commas between.",
        ),
        click.option(
            "--top-p", type=share, default=1.0, show_default=True, help="Share of the target's law that is kept."
        ),
        click.option(
            "--top-k", type=count, default=0, show_default=True, help="Tokens of the target's law kept; 0 is all."
        ),
        click.option(
            "--draft-temperature",
            type=click.FloatRange(0, min_open=True),
            help="Temperature of the draft; by default the target's. It changes the speed, never the text's law.",
        ),
        click.option("--draft-top-p", type=share, default=1.0, show_default=True, help="As --top-p, for the draft."),
        click.option("--draft-top-k", type=count, default=0, show_default=True, help="As --top-k, for the draft."),
    ]
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]
