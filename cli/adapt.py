"""Adaptation during `treeopt run`: its options, its log, its report and the updated profile."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.identity import check_models, identity_here, identity_of
from treeopt.cli.options.inputs import PROFILE, file, load_profile
from treeopt.cli.options.record import option, refuse_options
from treeopt.cli.outputs import OutputFile
from treeopt.errors import InterruptionError, TreeoptError
from treeopt.records.machine import now
from treeopt.records.profile import require_draft_model
from treeopt.report.text import counted
from treeopt.trees import TreeFile

if TYPE_CHECKING:
    from treeopt.adaptation import Change, Recalibration
    from treeopt.runtime.models.pair import ModelPair


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptOptions:
    adapt: bool = option(
        "--adapt",
        is_flag=True,
        help="Measure acceptance and step times while decoding, and switch to a faster tree, or to prompt lookup if the "
        "profile has it. The distribution of the output stays the same.",
    )
    profile_path: Path = option("--profile", type=file, default=PROFILE, help="Profile to start from, with --adapt.")
    log: Path | None = option(
        "--adapt-log",
        type=OutputFile(stream=False),
        help="Write one line of JSON for each switch, with --adapt: step, reason, from, to and predicted gain.",
    )
    save_profile: Path | None = option(
        "--save-profile",
        type=OutputFile(stream=False),
        help="Write the profile with the new measurements, with --adapt; treeopt solve reads it.",
    )

    def check(self, *, scheduled: bool) -> None:
        """Raise click.UsageError for options that contradict each other."""
        if not self.adapt:
            reason = "expected --adapt with it. Got none: add --adapt, or leave the option out."
            refuse_options(["profile_path", "log", "save_profile"], reason)
        if self.adapt and scheduled:
            raise click.UsageError(
                "--adapt: expected one tree. Got a schedule, which chooses the trees itself: leave one out."
            )


@contextmanager
def adapt_while_decoding(
    args: AdaptOptions, models: "ModelPair", planned: TreeFile, *, batch_size: int, force: bool
) -> "Iterator[Recalibration | None]":
    """Yield the recalibration of a plan, or None without `--adapt`; afterwards print a report and write the profile.

    The profile is also written after an interruption. Raises TreeoptError for a profile of another pair, unless `force` is
    set, and for a log that cannot be written.
    """
    if not args.adapt:
        yield None
        return
    from treeopt.adaptation import Recalibration
    from treeopt.adaptation.strategy import describe_strategy, prompt_lookup_setting
    from treeopt.planner import PlanRequest

    profile = load_profile(args.profile_path)
    require_draft_model(profile, "--adapt")
    check_models(args.profile_path, identity_of(profile), identity_here(models), force=force)
    with _open_log(args.log) as log_change:
        request, start = PlanRequest(batch_size=batch_size), prompt_lookup_setting(planned.drafter)
        recalibration = Recalibration(profile, request, begin_with=start, on_change=log_change)
        try:
            yield recalibration
        except (KeyboardInterrupt, InterruptionError):
            try:
                _save_profile(args, recalibration, models)
            except TreeoptError as error:
                click.echo(f"--save-profile: {error}", err=True)
            raise
    check_s = recalibration.check_s
    share = check_s / (check_s + recalibration.decoding_s) if recalibration.steps else 0.0
    changes, steps = counted(len(recalibration.changes), "change"), counted(recalibration.steps, "step")
    click.echo(
        f"re-calibration: {changes} in {steps}, {describe_strategy(recalibration.strategy)} at the end; "
        f"it took {100 * share:.1f} % of the time.",
        err=True,
    )
    _save_profile(args, recalibration, models)


@contextmanager
def _open_log(path: Path | None) -> "Iterator[Callable[[Change], None]]":
    """Yield a function that appends a change to the log, if there is one."""
    with ExitStack() as files:
        try:
            log = None if path is None else files.enter_context(path.open("w", encoding="utf-8"))
        except OSError as error:
            raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Name another file.") from None

        def log_change(change: "Change") -> None:
            if log is not None:
                log.write(json.dumps({"tool": "treeopt", **change.to_json()}, ensure_ascii=False) + "\n")
                log.flush()  # complete after an interruption

        yield log_change


def _save_profile(args: AdaptOptions, recalibration: "Recalibration", models: "ModelPair") -> None:
    """Write the updated profile, if an option names it; raises TreeoptError if too few steps drafted."""
    if args.save_profile is None:
        return
    from treeopt.profiler.machine import describe_machine
    from treeopt.version import TOOL

    machine = describe_machine(models.target.device)
    recalibration.updated_profile(created=now(), tool=TOOL, machine=machine).save(args.save_profile)


def rule_after_prompt_lookup(args: AdaptOptions, planned: TreeFile, temperature: float) -> str | None:
    """Return the measured rule of the draft model's trees if adaptation starts from prompt lookup, otherwise None.

    Raises TreeoptError for a profile that cannot be read, InfeasibleError for a temperature that was not measured.
    """
    from treeopt.adaptation.strategy import prompt_lookup_setting

    if not args.adapt or prompt_lookup_setting(planned.drafter) is None:
        return None
    return load_profile(args.profile_path).acceptance(temperature=temperature).rule
