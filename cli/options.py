"""Options that several commands share, and the models that they name."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treeopt.errors import TreeoptError

if TYPE_CHECKING:
    from treeopt.profile import Profile
    from treeopt.runtime.pair import ModelPair

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
        click.option("--rule", help="Verification rule; by default the first in the profile."),
        click.option(
            "--temperature", type=click.FloatRange(min=0), help="Temperature; by default the first in the profile."
        ),
    ]
    for option in reversed(options):
        option(function)
    return function


def load_profile(path: Path) -> "Profile":
    """Return the profile of a file; where there is none, say how to make one."""
    from treeopt.profile import Profile

    if not path.exists():
        raise TreeoptError(f"{path}: no such file. Run treeopt profile first, or name another with --profile.")
    return Profile.load(path)


def sampling_options(function: Function) -> Function:
    """Add the options that say how the target's tokens are sampled."""
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Share of the target's law that is kept.",
    )(function)
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        help="Sampling temperature; 0 is greedy.",
    )(function)
    return function
