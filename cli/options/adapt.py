"""Options of re-calibration while text is generated."""

from dataclasses import dataclass, field
from pathlib import Path

import click

from treeopt.cli.options.inputs import PROFILE, file, output_file
from treeopt.cli.options.record import Heading, given, option
from treeopt.cli.outputs import Named, check_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptOptions:
    """Whether the plan follows what decoding shows, and where is told what it did."""

    adapt: bool = field(
        metadata=option(
            "--adapt",
            heading=Heading.ADAPTATION,
            is_flag=True,
            help="Count what is accepted and how long steps take, and change the tree where another, or "
            "prompt lookup where the profile has it, is faster. "
            "The text stays the same.",
        )
    )
    profile_path: Path = field(
        metadata=option(
            "--profile",
            "profile_path",
            heading=Heading.ADAPTATION,
            type=file,
            default=PROFILE,
            show_default=True,
            help="With --adapt: what was measured before, written by treeopt profile.",
        )
    )
    log: Path | None = field(
        metadata=option(
            "--adapt-log",
            "log",
            heading=Heading.ADAPTATION,
            type=output_file,
            metavar="FILE",
            help="With --adapt: a line of JSON for every change of what drafts: step, why, from, to, predicted gain.",
        )
    )
    save_profile: Path | None = field(
        metadata=option(
            "--save-profile",
            heading=Heading.ADAPTATION,
            type=output_file,
            metavar="FILE",
            help="With --adapt: what was learnt, as a profile that treeopt solve reads.",
        )
    )
    profile_named: bool = field(metadata=given("profile_path"))

    def check(self, *, scheduled: bool) -> None:
        """Raise click.UsageError for options that do not fit together, and refuse outputs that would destroy something."""
        only = {
            "--profile": self.profile_named,
            "--adapt-log": self.log is not None,
            "--save-profile": self.save_profile is not None,
        }
        for name, there in only.items():
            if there and not self.adapt:
                raise click.UsageError(f"{name}: expected --adapt with it. Add it, or leave {name} out.")
        if self.adapt and scheduled:
            raise click.UsageError(
                "--adapt: expected one tree. Got a schedule, which says itself what to draft: leave one out."
            )
        outputs = {"--adapt-log": self.log, "--save-profile": self.save_profile}
        check_outputs(
            [Named(name, path) for name, path in outputs.items() if path is not None],
            [Named("--profile", self.profile_path)] if self.adapt else [],
        )
