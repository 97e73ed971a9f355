"""Options that several commands share, and the models that they name."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.rules import check_rule
from treeopt.sampling import Sampling

if TYPE_CHECKING:
    from treeopt.profile import Profile
    from treeopt.runtime.pair import ModelPair
    from treeopt.trees import TreeFile

Function = TypeVar("Function", bound=Callable[..., Any])

output = click.Path(path_type=Path, allow_dash=True)
file = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which pair, and how it is run."""

    target: Path | None
    draft: Path | None
    device: str
    dtype: str
    threads: int | None

    def load(self) -> "ModelPair":
        """Load the pair; torch is imported here and not before."""
        from treeopt.runtime.pair import load_pair

        return load_pair(self.target, self.draft, device=self.device, dtype=self.dtype, threads=self.threads)


def pair_options(function: Function) -> Function:
    """Add the options that choose a pair; the command receives them as one `pair`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        target: Path | None,
        draft: Path | None,
        device: str,
        dtype: str,
        threads: int | None,
        **kwargs: Any,
    ) -> Any:
        return function(*args, pair=PairOptions(target, draft, device, dtype, threads), **kwargs)

    options = [
        click.option("--target", type=file, metavar="DIR", help="Target model folder; by default the bundled pair."),
        click.option("--draft", type=file, metavar="DIR", help="Draft model folder."),
        click.option("--device", default="cpu", show_default=True, help="Where to run: cpu, cuda, cuda:1, …"),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16", "float16"]),
            default="float32",
            show_default=True,
            help="Number format to run in.",
        ),
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads; by default torch's choice."),
    ]
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]


def profile_options(function: Function) -> Function:
    """Add the options that choose a profile and, of what it holds, one rule and temperature."""
    options = [
        click.option(
            "--profile",
            "profile_path",
            type=file,
            default=Path("profile.yaml"),
            show_default=True,
            help="What was measured, written by treeopt profile.",
        ),
        click.option("--rule", help="Verification rule; by default the best measured (solve), the tree's (bench)."),
        click.option(
            "--temperature", type=click.FloatRange(min=0), help="Temperature; by default the first in the profile."
        ),
    ]
    for option in reversed(options):
        option(function)
    return function


def record_beside(profile_path: Path) -> Path:
    """Return where the draft record of a profile lies, unless it was given another place."""
    return profile_path.with_suffix(".record.npz")


def load_profile(path: Path) -> "Profile":
    """Return the profile of a file; where there is none, say how to make one."""
    from treeopt.profile import Profile

    if not path.exists():
        raise TreeoptError(f"{path}: no such file. Run treeopt profile first, or name another with --profile.")
    return Profile.load(path)


def sampling_options(function: Function) -> Function:
    """Add the options that say how tokens are sampled; the command receives `sampling` and `draft_sampling`."""

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
        own = draft_temperature is not None or draft_top_p < 1 or draft_top_k > 0
        if own and temperature == 0:
            raise click.UsageError(
                "--draft-temperature, --draft-top-p, --draft-top-k: at temperature 0 the draft takes its likeliest "
                "tokens. Leave them out."
            )
        warmth = temperature if draft_temperature is None else draft_temperature
        draft_sampling = Sampling(warmth, draft_top_p, draft_top_k) if own else None
        sampling = Sampling(temperature, top_p, top_k)
        return function(*args, sampling=sampling, draft_sampling=draft_sampling, **kwargs)

    share, count = click.FloatRange(0, 1, min_open=True), click.IntRange(min=0)
    options = [
        click.option(
            "--temperature",
            type=click.FloatRange(min=0),
            default=0.0,
            show_default=True,
            help="Sampling temperature; 0 is greedy.",
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


def checked_rule(rule: str, *, lossy: bool, option: str = "--rule") -> str:
    """Return a rule that can be run; click.UsageError for an unknown one, and for a lossy one without --lossy."""
    try:
        check_rule(rule, lossy=lossy)
    except InvalidValueError as error:
        raise click.UsageError(f"{option}: {str(error).partition(': ')[2]}") from None
    return rule


def planned_rule(planned: "TreeFile") -> str:
    """Return the rule that a tree was planned for, `sequoia` where its file does not say."""
    return (planned.provenance and planned.provenance.rule) or "sequoia"


lossy_option = click.option("--lossy", is_flag=True, help="Allow rules that change the text's law.")
