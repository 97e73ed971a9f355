"""Re-calibration of `treeopt run`: what it begins with, what it tells, and what it leaves behind."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import click

from treeopt.cli.identity import identity_here, refuse_other_pair
from treeopt.cli.options.adapt import AdaptOptions
from treeopt.cli.options.inputs import load_profile
from treeopt.errors import TreeoptError
from treeopt.report.text import counted

if TYPE_CHECKING:
    from treeopt.adaptation import Change, Recalibration
    from treeopt.runtime.models.pair import ModelPair


@dataclass(slots=True)
class Adapting:
    """Re-calibration that is under way."""

    options: AdaptOptions
    recalibration: "Recalibration"
    log: TextIO | None

    def finish(self, models: "ModelPair") -> None:
        """Tell what became of the plan, and save what was learnt."""
        found = self.recalibration
        if self.log is not None:
            self.log.close()
        own = found.own_s + found.reading_s
        share = own / (own + found.decoding_s) if found.decoding_s else 0.0
        click.echo(
            f"re-calibration: {counted(len(found.changes), 'change')} in {counted(found.steps, 'step')}, "
            f"{_shape(found)} at the end; it took {100 * share:.1f} % of the time.",
            err=True,
        )
        if self.options.save_profile is not None:
            from treeopt.profiler.machine import describe_machine, now
            from treeopt.version import TOOL

            profile = found.learnt(created=now(), tool=TOOL, machine=describe_machine(models.target.device))
            profile.save(self.options.save_profile)


def adapting(options: AdaptOptions, models: "ModelPair", *, batch_size: int | None = None) -> Adapting | None:
    """Return re-calibration as the options ask for it, None where they do not.

    Raises TreeoptError for a profile of another pair, and a log that cannot be written.
    """
    if not options.adapt:
        return None
    from treeopt.adaptation import Recalibration

    profile = load_profile(options.profile_path)
    refuse_other_pair(options.profile_path, profile, identity_here(models))
    try:
        log = None if options.log is None else options.log.open("w", encoding="utf-8")
    except OSError as error:
        raise TreeoptError(f"{options.log}: cannot be written ({error.strerror}). Name another file.") from None

    def told(change: "Change") -> None:
        if log is not None:
            log.write(json.dumps({"tool": "treeopt", **change.to_json()}, ensure_ascii=False) + "\n")
            log.flush()  # a run may be interrupted

    return Adapting(options, Recalibration(profile, batch_size=batch_size, on_change=told), log)


def _shape(found: "Recalibration") -> str:
    from treeopt.adaptation.change import described

    tree = described(found.tree)
    return "plain decoding" if tree["kind"] == "plain" else f"a {tree['kind']} of {tree['nodes']} nodes"
