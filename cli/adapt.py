"""Re-calibration of `treeopt run`: its profile, its log, its report and the learnt profile."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.identity import check_models, identity_here, identity_of
from treeopt.cli.options.adapt import AdaptOptions
from treeopt.cli.options.inputs import load_profile
from treeopt.errors import InterruptionError, TreeoptError
from treeopt.report.text import counted

if TYPE_CHECKING:
    from treeopt.adaptation import Change, Recalibration
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile


@contextmanager
def adapting(
    options: AdaptOptions, models: "ModelPair", planned: "TreeFile", *, batch_size: int
) -> "Iterator[Recalibration | None]":
    """Yield the re-calibration of a plan, or None without `--adapt`; print a report at the end.

    The learnt profile is written at the end, also after an interrupt.

    Raises TreeoptError for a profile of another pair, and for a log that cannot be written.
    """
    if not options.adapt:
        yield None
        return
    from treeopt.adaptation import Recalibration
    from treeopt.adaptation.strategy import lookup_of
    from treeopt.planner import PlanRequest
    from treeopt.records.profile import check_draft_model

    profile = load_profile(options.profile_path)
    check_draft_model(profile, "--adapt")
    check_models(options.profile_path, identity_of(profile), identity_here(models))
    with _change_log(options.log) as log_change:
        request = PlanRequest(batch_size=batch_size)
        recalibration = Recalibration(profile, request, begin_with=lookup_of(planned.drafter), on_change=log_change)
        try:
            yield recalibration
        except (KeyboardInterrupt, InterruptionError):
            try:
                _save(options, recalibration, models)
            except TreeoptError as error:
                click.echo(f"--save-profile: {error}", err=True)
            raise
    _report(recalibration)
    _save(options, recalibration, models)


@contextmanager
def _change_log(path: Path | None) -> "Iterator[Callable[[Change], None]]":
    """Yield a function that appends each change to a file, if there is one; raises TreeoptError if it cannot be written."""
    with ExitStack() as files:
        try:
            log = None if path is None else files.enter_context(path.open("w", encoding="utf-8"))
        except OSError as error:
            raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Name another file.") from None

        def log_change(change: "Change") -> None:
            if log is not None:
                log.write(json.dumps({"tool": "treeopt", **change.to_json()}, ensure_ascii=False) + "\n")
                log.flush()  # a run may be interrupted

        yield log_change


def adapted_rule(options: AdaptOptions, planned: "TreeFile", temperature: float) -> str | None:
    """Return the measured rule for the draft model's trees, if a plan of prompt lookup is re-calibrated; else None.

    Raises TreeoptError for a profile that cannot be read, InfeasibleError for a temperature that was not measured.
    """
    from treeopt.adaptation.strategy import lookup_of

    if not options.adapt or lookup_of(planned.drafter) is None:
        return None
    return load_profile(options.profile_path).acceptance(temperature=temperature).rule


def _report(recalibration: "Recalibration") -> None:
    from treeopt.adaptation.strategy import shape_of

    own_s = recalibration.own_s
    share = own_s / (own_s + recalibration.decoding_s) if recalibration.steps else 0.0
    changes, steps = counted(len(recalibration.changes), "change"), counted(recalibration.steps, "step")
    click.echo(
        f"re-calibration: {changes} in {steps}, {shape_of(recalibration.strategy)} at the end; "
        f"it took {100 * share:.1f} % of the time.",
        err=True,
    )


def _save(options: AdaptOptions, recalibration: "Recalibration", models: "ModelPair") -> None:
    """Write the learnt profile, if there is a path for it; raises TreeoptError if hardly any step drafted."""
    if options.save_profile is None:
        return
    from treeopt.profiler.machine import describe_machine, now
    from treeopt.version import TOOL

    machine = describe_machine(models.target.device)
    recalibration.learnt(created=now(), tool=TOOL, machine=machine).save(options.save_profile)
