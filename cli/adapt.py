"""Re-calibration of `treeopt run`: what it begins with, what it tells, and what it leaves behind."""

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
    """Yield re-calibration of a plan as the options ask for it, None where they do not; tell at the end what it did.

    What was learnt is saved at the end, and where decoding was interrupted too.

    Raises TreeoptError for a profile of another pair, and a log that cannot be written.
    """
    if not options.adapt:
        yield None
        return
    from treeopt.adaptation import Recalibration
    from treeopt.adaptation.ways import lookup_of
    from treeopt.planner import PlanRequest
    from treeopt.records.profile import check_draft_model

    profile = load_profile(options.profile_path)
    check_draft_model(profile, "--adapt")
    check_models(options.profile_path, identity_of(profile), identity_here(models))
    with _change_log(options.log) as told:
        request = PlanRequest(batch_size=batch_size)
        recalibration = Recalibration(profile, request, begin_with=lookup_of(planned.drafter), on_change=told)
        try:
            yield recalibration
        except (KeyboardInterrupt, InterruptionError):
            try:
                _save(options, recalibration, models)
            except TreeoptError as error:
                click.echo(f"--save-profile: {error}", err=True)
            raise
    _tell(recalibration)
    _save(options, recalibration, models)


@contextmanager
def _change_log(path: Path | None) -> "Iterator[Callable[[Change], None]]":
    """Yield what writes a line for every change into a file, if there is one; raises TreeoptError where it cannot be written."""
    with ExitStack() as files:
        try:
            log = None if path is None else files.enter_context(path.open("w", encoding="utf-8"))
        except OSError as error:
            raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Name another file.") from None

        def told(change: "Change") -> None:
            if log is not None:
                log.write(json.dumps({"tool": "treeopt", **change.to_json()}, ensure_ascii=False) + "\n")
                log.flush()  # a run may be interrupted

        yield told


def adapted_rule(options: AdaptOptions, planned: "TreeFile", temperature: float) -> str | None:
    """Return the rule by which the draft model's trees are verified beside a plan of prompt lookup, as it was measured.

    None for other plans, and where nothing is re-calibrated.  Raises TreeoptError for a profile that cannot be read,
    InfeasibleError where nothing was measured at the temperature.
    """
    from treeopt.adaptation.ways import lookup_of

    if not options.adapt or lookup_of(planned.drafter) is None:
        return None
    return load_profile(options.profile_path).acceptance(temperature=temperature).rule


def _tell(found: "Recalibration") -> None:
    from treeopt.adaptation.ways import shape_of

    own_s = found.time.own_s + found.reading_s
    share = own_s / (own_s + found.time.decoding_s) if found.steps else 0.0
    click.echo(
        f"re-calibration: {counted(len(found.changes), 'change')} in {counted(found.steps, 'step')}, "
        f"{shape_of(found.way)} at the end; it took {100 * share:.1f} % of the time.",
        err=True,
    )


def _save(options: AdaptOptions, found: "Recalibration", models: "ModelPair") -> None:
    """Save what was learnt where that is asked for; raises TreeoptError where hardly any step drafted."""
    if options.save_profile is None:
        return
    from treeopt.profiler.machine import describe_machine, now
    from treeopt.version import TOOL

    found.learnt(created=now(), tool=TOOL, machine=describe_machine(models.target.device)).save(options.save_profile)
