"""What `treeopt profile` measures: a pair on this machine, by one process or several."""

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.profile import ProfileOptions
from treeopt.cli.other_programs import warn_of_other_programs
from treeopt.cli.profile_files import texts_path
from treeopt.errors import InvalidValueError

if TYPE_CHECKING:
    from treeopt.engines.importers import ImportedLatency
    from treeopt.profiler import Journal, Measurement, Settings, TextFiles
    from treeopt.profiler.budget import Budget
    from treeopt.profiler.processes.processes import Processes
    from treeopt.records.draft_record import DraftRecord
    from treeopt.records.measured_acceptance import MeasuredAcceptance
    from treeopt.records.profile import Profile
    from treeopt.runtime.drafters.loaded import LoadedDrafter
    from treeopt.runtime.models.pair import ModelPair

    Prompts = list[list[int]]

RECORD_SHARE = 0.25
"""Of a time budget, what a draft record may take."""


def measured(asked: ProfileOptions) -> "tuple[Profile, DraftRecord | None] | None":
    """Measure what was not imported and write it; return the profile, and the draft record where one is wanted.

    Of several processes only the first has something to return.
    """
    started_s = time.monotonic()
    asked.check_measured()
    from treeopt.profiler.heading import check_edition
    from treeopt.profiler.processes.distributed import local_device, processes_for

    settings = asked.settings()
    device = local_device(asked.pair.device, os.environ)
    processes = processes_for(os.environ, tensor_parallel=asked.tensor_parallel, device=device)
    if processes.count > 1:  # each has a clock of its own
        if asked.time_budget_s is not None:
            raise click.UsageError("--time-budget: expected one process. Give --rounds and --positions under torchrun.")
        settings = replace(settings, time_budget_s=None)
    journal_file = asked.journal_file
    with processes.watched(journal_file):
        if asked.resume and journal_file is not None:
            check_edition(journal_file)
        imported = _Imported(
            curves=asked.imports.latencies(),
            acceptances=asked.imports.acceptances(settings.rules[0], settings.sampling),
        )
        chosen = str(device) if processes.count > 1 else asked.pair.device
        return _Run(asked, settings, processes, chosen, started_s).measured(imported)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Imported:
    """What need not be measured."""

    curves: "tuple[ImportedLatency, ...]"
    acceptances: "tuple[MeasuredAcceptance, ...]"


@dataclass(frozen=True, slots=True)
class _Run:
    """One profile in the making."""

    asked: ProfileOptions
    settings: "Settings"
    processes: "Processes"
    device: str
    started_s: float
    """When the command began, which a time budget includes."""
    categories: tuple[str, ...] = ()
    """The category of each prompt, `""` for none."""

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.processes.rank == 0

    def measured(self, imported: _Imported) -> "tuple[Profile, DraftRecord | None] | None":
        """Measure and write what was not imported; return it in the first process."""
        from treeopt.profiler.profile_run import check_measurable

        models, prompts, categories = self._loaded()
        check_measurable(models.target, models.draft, prompts, self.settings)
        drafters = self._drafters(models, prompts)
        settings = replace(self.settings, drafters=tuple(each.setting() for each in drafters))
        return replace(self, settings=settings, categories=categories)._measured(models, prompts, drafters, imported)

    def _measured(
        self, models: "ModelPair", prompts: "Prompts", drafters: "list[LoadedDrafter]", imported: _Imported
    ) -> "tuple[Profile, DraftRecord | None] | None":
        from treeopt.profiler import TextFiles

        if self.first and not self.asked.imports.times:
            self._warn_of_other_programs(models)
        kept = self.asked.journal_file is not None and self.first
        texts = TextFiles(texts_path(self.asked.path) if kept else None, resume=self.asked.resume)
        journal = self._journal(models, prompts)
        budget = self._budget(journal)
        measurement = self._measurement(models, prompts, journal, drafters, budget)
        result = self._profile(measurement, imported)
        if not self.first:
            return None
        record = self._record(models, prompts, texts, budget)
        if budget is not None:
            _tell_effort(budget, measurement)
        result.save(self.asked.path)
        journal.remove()
        texts.remove()
        return result, record

    def _loaded(self) -> "tuple[ModelPair, Prompts, tuple[str, ...]]":
        from treeopt.profiler.latency.passes import ROOM_TOKENS
        from treeopt.texts.prompts import profile_prompts

        asked = self.asked
        pair = replace(asked.pair, device=self.device, tensor_parallel=asked.tensor_parallel, quiet=not self.first)
        models = pair.load(text_tokens=max(self.settings.context_tokens) + ROOM_TOKENS)
        prompts, categories = asked.prompts.load_with_categories(models)
        return models, profile_prompts(prompts), tuple(profile_prompts(categories))

    def _warn_of_other_programs(self, models: "ModelPair") -> None:
        wait_s = self.asked.wait_s
        warn_of_other_programs(
            models.target,
            wait_s=wait_s or 0.0,
            several=self.processes.count > 1,
            otherwise="wait for quiet with --wait 60s" if wait_s is None else "wait longer",
        )

    def _journal(self, models: "ModelPair", prompts: "Prompts") -> "Journal":
        from treeopt.profiler import Journal

        heading = self.settings.conditions(models.target, models.draft, prompts, models.described)
        return Journal(self.asked.journal_file, heading, resume=self.asked.resume, processes=self.processes)

    def _drafters(self, models: "ModelPair", prompts: "Prompts") -> "list[LoadedDrafter]":
        """Load the drafters that are measured beside the draft model, before anything is timed."""
        if not self.asked.beside:
            return []
        if self.processes.count > 1:
            raise InvalidValueError(
                f"drafter: expected to be measured by one process. Got {self.processes.count}: leave torchrun out."
            )
        from treeopt.profiler.profile_run import longest_text
        from treeopt.runtime.drafters.loaded import load_drafter

        return [
            load_drafter(
                each.name,
                each.source,
                models.target,
                models.draft,
                layers=each.layers,
                target_digest=models.described.target_digest,
                capacity=longest_text(models.target, models.draft, prompts, self.settings),
            )
            for each in self.asked.beside
        ]

    def _measurement(
        self,
        models: "ModelPair",
        prompts: "Prompts",
        journal: "Journal",
        drafters: "list[LoadedDrafter]",
        budget: "Budget | None",
    ) -> "Measurement":
        from treeopt.planner import fastest_drafted_tree
        from treeopt.planner.certainty import certainty
        from treeopt.profiler import Measurement, clock_for
        from treeopt.profiler.latency.busy import ProcessorTimes

        return Measurement(
            models.target,
            models.draft,
            prompts,
            self.settings,
            clock=self.processes.clock(clock_for(models.target.device)),
            journal=journal,
            fastest_tree=fastest_drafted_tree,
            processes=self.processes,
            load=None if self.asked.tensor_parallel else ProcessorTimes,
            pair=models.described,
            drafters=drafters,
            categories=self.categories,
            certainty=certainty,
            budget=budget,
        )

    def _budget(self, journal: "Journal") -> "Budget | None":
        """Return the time budget, which began with the command; None for a fixed amount."""
        from treeopt.profiler.budget import Budget

        seconds = self.settings.time_budget_s
        if seconds is None:
            return None
        share = 1.0 if self.asked.record_name is None else 1 - RECORD_SHARE
        return Budget(share * seconds, journal, started_s=self.started_s)

    def _profile(self, measurement: "Measurement", imported: _Imported) -> "Profile":
        """Measure what was not imported, and put both together."""
        from treeopt.engines.importers import step_latencies, with_imported

        context, sampled = self.settings.context_tokens[0], not self.settings.sampling.greedy
        curves, acceptances = imported.curves, imported.acceptances or None
        if self.asked.imports.times:
            times = step_latencies(curves, context_tokens=context, sampled=sampled)
            return measurement.profile(latencies=times, acceptances=acceptances, show_progress=self.first)
        result = measurement.profile(acceptances=acceptances, show_progress=self.first)
        return with_imported(result, curves, context_tokens=context, sampled=sampled) if curves else result

    def _record(
        self, models: "ModelPair", prompts: "Prompts", texts: "TextFiles", budget: "Budget | None"
    ) -> "DraftRecord | None":
        """Record what the draft model thinks of each token, where that is wanted, and write it."""
        from treeopt.profiler import Recording
        from treeopt.profiler.budget import Slice

        path = self.asked.record_path
        if path is None:
            return None
        recording = Recording(models.target, models.draft_model, prompts, self.settings, files=texts)
        if budget is None:
            record = recording.record()
        else:
            with budget.spending("record"):
                left_s = budget.left_s + RECORD_SHARE * (self.settings.time_budget_s or 0.0)
                record = recording.record(time=Slice(time.monotonic, time.monotonic() + left_s))
        record.save(path)
        return record


def _tell_effort(budget: "Budget", measurement: "Measurement") -> None:
    """Print on standard error what the time was spent on, and how certain the plan and the choice of a drafter are."""
    from treeopt.report.effort_text import certainty_text, choice_text, spent_text

    click.echo(spent_text(budget.spent_s), err=True)
    if measurement.certainty is not None:
        click.echo(certainty_text(measurement.certainty), err=True)
    if measurement.choice_confidence is not None:
        click.echo(choice_text(measurement.choice_confidence), err=True)
