"""Options that say how tokens are sampled, at one temperature or at several."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from treeopt.cli.values import DRAFT_TEMPERATURE, LENGTH, SHARE, TEMPERATURE, TEMPERATURES
from treeopt.records.sampling import Sampling

Function = TypeVar("Function", bound=Callable[..., Any])


def sampling_options(function: Function) -> Function:
    """Add the options of one way of sampling; the command receives `sampling` and `draft_sampling`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        temperature: float,
        top_p: float,
        top_k: int,
        draft_temperature: float | None,
        draft_top_p: float,
        draft_top_k: int,
        **kwargs: Any,
    ) -> Any:
        draft = _draft_sampling((temperature,), draft_temperature, draft_top_p, draft_top_k)
        return function(*args, sampling=Sampling(temperature, top_p, top_k), draft_sampling=draft, **kwargs)

    help_text = "Sampling temperature; 0 is greedy."
    option = click.option("--temperature", type=TEMPERATURE, default="0", show_default=True, help=help_text)
    return _with_options(command, option)  # type: ignore[return-value]


def samplings_options(function: Function) -> Function:
    """Add the options of sampling at one temperature or several; the command receives `samplings`, `draft_sampling`."""

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
        draft = _draft_sampling(temperature, draft_temperature, draft_top_p, draft_top_k)
        samplings = tuple(Sampling(each, top_p, top_k) for each in temperature)
        return function(*args, samplings=samplings, draft_sampling=draft, **kwargs)

    option = click.option(
        "--temperature",
        type=TEMPERATURES,
        metavar="NUMBERS",
        default="0",
        show_default=True,
        help="Sampling temperature; 0 is greedy. Several with commas between.",
    )
    return _with_options(command, option)  # type: ignore[return-value]


def sampling_text(sampling: Sampling, draft_sampling: Sampling | None) -> str:
    """Return the options that stand for a way of sampling, those of the defaults left out.

    >>> sampling_text(Sampling(0.6, top_k=50), Sampling(0.8)), sampling_text(Sampling(), None)
    (' --temperature 0.6 --top-k 50 --draft-temperature 0.8', '')
    """
    given = [(name, getattr(sampling, name)) for name in ("temperature", "top_p", "top_k")]
    if draft_sampling is not None:
        given += [(f"draft_{name}", getattr(draft_sampling, name)) for name in ("temperature", "top_p", "top_k")]
    usual = {"temperature": 0, "top_p": 1, "top_k": 0, "draft_top_p": 1, "draft_top_k": 0}
    return "".join(f" --{name.replace('_', '-')} {value:g}" for name, value in given if value != usual.get(name))


def _draft_sampling(
    temperatures: Iterable[float], draft_temperature: float | None, draft_top_p: float, draft_top_k: int
) -> Sampling | None:
    """Return how the draft samples, None where that is not said; click.UsageError where it cannot be meant."""
    if draft_temperature is None and draft_top_p == 1 and draft_top_k == 0:
        return None
    warm = [each for each in temperatures if each > 0]
    if not warm:
        raise click.UsageError(
            "--draft-temperature, --draft-top-p, --draft-top-k: at temperature 0 the draft takes its likeliest "
            "tokens. Leave them out."
        )
    if draft_temperature is None and len(warm) > 1:
        raise click.UsageError("--draft-top-p, --draft-top-k: expected --draft-temperature with several.")
    return Sampling(draft_temperature or warm[0], draft_top_p, draft_top_k)


def _with_options(function: Function, temperature: Callable[[Function], Function]) -> Function:
    """Add `--temperature` and the options beside it."""
    options: list[Callable[[Function], Function]] = [
        temperature,
        click.option(
            "--top-p",
            type=SHARE,
            default=1.0,
            show_default=True,
            help="Share of the target's distribution that is kept.",
        ),
        click.option(
            "--top-k",
            type=LENGTH,
            default=0,
            show_default=True,
            help="Tokens of the target's distribution kept; 0 is all.",
        ),
        click.option(
            "--draft-temperature",
            type=DRAFT_TEMPERATURE,
            help="Temperature of the draft; by default the target's. It changes the speed, never the text's distribution.",
        ),
        click.option("--draft-top-p", type=SHARE, default=1.0, show_default=True, help="As --top-p, for the draft."),
        click.option("--draft-top-k", type=LENGTH, default=0, show_default=True, help="As --top-k, for the draft."),
    ]
    for option in reversed(options):
        option(function)
    return function
