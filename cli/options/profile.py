"""What `treeopt profile` is asked: what is measured, how much of it, and what is written."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.drafter import DRAFTER, EAGLE_LAYERS, with_layers
from treeopt.cli.options.imports import ImportOptions
from treeopt.cli.options.inputs import FORCE, PROFILE, output_option
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import PromptOptions
from treeopt.cli.options.record import Heading, given, group, option
from treeopt.cli.options.rule import LOSSY, checked_rule
from treeopt.cli.options.sampling import SamplingsOptions
from treeopt.cli.options.values import COUNT, COUNTS, DURATION, FILE_TEXT, MOST, RULE_LIST, Whole
from treeopt.cli.profile_files import BESIDE, journal_path, record_file
from treeopt.errors import InvalidValueError
from treeopt.files.whole_files import STANDARD_STREAM, is_stream
from treeopt.records.rules import RULES
from treeopt.trees.drafter_setting import DRAFTERS, DrafterSetting

if TYPE_CHECKING:
    from treeopt.profiler import Settings

BUDGET_S, BUNDLED_BUDGET_S = 300.0, 45.0
"""Time budgets of a user's models and of the bundled pair, where none is given."""
WITHOUT_MODELS = ("prompt-lookup", "lookahead")
"""Drafters that need no model of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What is measured of which pair, how much of it, and where it is written."""

    pair: PairOptions = field(metadata=group(PairOptions))
    path: Path = field(
        metadata=output_option("path", "File to write; - is standard output.", default=PROFILE, show_default=True)
    )
    rules: str = field(
        metadata=option(
            "--rules",
            heading=Heading.SAMPLING,
            type=RULE_LIST,
            metavar="NAMES",
            default="sequoia",
            show_default=True,
            help=f"Verification rules to measure, with commas between: {', '.join(RULES)}.",
        )
    )
    rules_named: bool = field(metadata=given("rules"))
    lossy: bool = field(metadata=LOSSY)
    how: SamplingsOptions = field(metadata=group(SamplingsOptions))
    context_tokens: tuple[int, ...] = field(
        metadata=option(
            "--context-tokens",
            heading=Heading.MEASURED,
            type=COUNTS,
            metavar="NUMBERS",
            default="256",
            show_default=True,
            help="Tokens in the cache while times are taken; several with commas between, and acceptance is measured at each too.",
        )
    )
    context_named: bool = field(metadata=given("context_tokens"))
    batch_sizes: tuple[int, ...] = field(
        metadata=option(
            "--batch-sizes",
            heading=Heading.MEASURED,
            type=COUNTS,
            metavar="NUMBERS",
            default="1",
            show_default=True,
            help="Texts verified together while times are taken; several with commas between, 1 among them.",
        )
    )
    max_tokens: int = field(
        metadata=option(
            "--max-tokens",
            heading=Heading.MEASURED,
            type=Whole(2, MOST),
            default=512,
            show_default=True,
            help="Largest pass that is timed; no larger budget can be planned.",
        )
    )
    rounds: int = field(
        metadata=option(
            "--rounds",
            heading=Heading.MEASURED,
            type=COUNT,
            default=25,
            help="Samples of every time, 25 with --positions; measures a fixed amount.",
        )
    )
    rounds_named: bool = field(metadata=given("rounds"))
    time_budget_s: float | None = field(
        metadata=option(
            "--time-budget",
            "time_budget_s",
            heading=Heading.MEASURED,
            type=DURATION,
            help="Measure until the plan is within 1 % of the fastest with 90 % probability, or for so long, such as 90s or "
            "3m, everything included; without --rounds and --positions by default 5m, for the bundled pair 45s.",
        )
    )
    cuda_graphs: bool | None = field(
        metadata=option(
            "--cuda-graphs/--no-cuda-graphs",
            heading=Heading.MODELS,
            default=None,
            help="Whether passes are timed as CUDA graphs; by default on a CUDA device, as decoding runs them.",
        )
    )
    positions: int = field(
        metadata=option(
            "--positions",
            heading=Heading.MEASURED,
            type=COUNT,
            default=4096,
            help="Generated tokens whose acceptance is counted, and that are recorded, 4096 with --rounds; measures a "
            "fixed amount.",
        )
    )
    positions_named: bool = field(metadata=given("positions"))
    prompts: PromptOptions = field(metadata=group(PromptOptions))
    imports: ImportOptions = field(metadata=group(ImportOptions))
    record_name: str | None = field(
        metadata=option(
            "--record",
            "record_name",
            heading=Heading.MEASURED,
            type=FILE_TEXT,
            metavar="[FILE]",
            is_flag=False,
            flag_value=BESIDE,
            help="Also record what the draft model thinks of each token, from which dynamic trees (EAGLE-2, SGLang) are "
            "chosen; without FILE beside the profile, as profile.record.npz.",
        )
    )
    wait_s: float | None = field(
        metadata=option(
            "--wait",
            "wait_s",
            heading=Heading.MEASURED,
            type=DURATION,
            help="Wait so long at most, such as 60s or 10m, until no other program uses the processors.",
        )
    )
    resume: bool = field(
        metadata=option("--resume", heading=Heading.OUTPUT, is_flag=True, help="Continue an interrupted profile.")
    )
    force: bool = field(metadata=FORCE)
    tensor_parallel: bool = field(
        metadata=option(
            "--tensor-parallel",
            heading=Heading.MODELS,
            is_flag=True,
            help="Split the target over the processes that torchrun started.",
        )
    )
    drafters: tuple[DrafterSetting, ...] = field(
        metadata=option(
            "--drafter",
            "drafters",
            type=DRAFTER,
            multiple=True,
            metavar="NAME[=DIR]",
            help="A drafter to measure, several times for several: "
            f"{', '.join(name for name in DRAFTERS if name != 'model')}. DIR is a folder or a hub name; heads without it are the bundled ones. A target "
            f"without --draft and --drafter is measured with {' and '.join(WITHOUT_MODELS)}.",
        )
    )
    eagle_layers: tuple[int, ...] = field(metadata=EAGLE_LAYERS)

    @property
    def has_draft_model(self) -> bool:
        """Whether a draft model is measured, the bundled one where no target is named."""
        return self.pair.target is None or self.pair.draft is not None

    @property
    def beside(self) -> tuple[DrafterSetting, ...]:
        """The drafters that are measured beside the draft model, or without one.

        Raises click.UsageError for one that is named twice, for boundaries that no head reads, and for a draft model
        that is not named.
        """
        names = [each.name for each in self.drafters]
        needing = [each.name for each in self.drafters if each.expands_draft_model]
        if needing and not self.has_draft_model:
            raise click.UsageError(
                f"--drafter {needing[0]}: expected --draft MODEL, which it drafts with. Got none: add it."
            )
        if not names and not self.has_draft_model:
            return tuple(DrafterSetting(name=name) for name in WITHOUT_MODELS)
        if twice := [name for name in names if names.count(name) > 1]:
            raise click.UsageError(f"--drafter {twice[0]}: expected once. Got it {names.count(twice[0])} times.")
        return with_layers([each for each in self.drafters if each.name != "model"], self.eagle_layers)

    @property
    def budget_s(self) -> float | None:
        """The time budget; None where a fixed amount is measured."""
        if self.time_budget_s is not None or self.rounds_named or self.positions_named or self.imports.times:
            return self.time_budget_s
        return BUNDLED_BUDGET_S if self.pair.target is None else BUDGET_S

    @property
    def rule_names(self) -> tuple[str, ...]:
        """The rules; click.UsageError for one that cannot be run."""
        return tuple(checked_rule(rule.strip(), lossy=self.lossy, option="--rules") for rule in self.rules.split(","))

    @property
    def to_stdout(self) -> bool:
        """Whether the profile goes to standard output."""
        return str(self.path) == STANDARD_STREAM

    @property
    def journal_file(self) -> Path | None:
        """Where measurements are kept; None beside a stream, where nothing can lie."""
        return None if is_stream(self.path) else journal_path(self.path)

    @property
    def record_path(self) -> Path | None:
        """Where the draft record is written, if one is wanted; click.UsageError where that cannot be."""
        return None if self.record_name is None else record_file(self.record_name, self.path)

    def check(self) -> None:
        """Raise click.UsageError for what has no meaning without a draft model or beside imported curves."""
        if not self.has_draft_model and not self.imports.everything:
            self._check_without_draft_model()
        if self.beside and self.imports.times:
            raise click.UsageError(
                "--drafter: expected times to be taken, because drafters are timed beside them. Got imported ones: leave it out."
            )
        if self.time_budget_s is not None and (self.rounds_named or self.positions_named):
            raise click.UsageError(
                "--time-budget: expected without --rounds and --positions, which measure a fixed amount. Give one or the other."
            )
        if self.imports.times and self.wait_s is not None:
            raise click.UsageError("--wait: expected times to be taken. Got imported ones: leave it out.")
        if self.imports.everything and self.record_name is not None:
            raise click.UsageError("--record: expected a draft model to ask. Got imported curves and acceptance only.")

    def _check_without_draft_model(self) -> None:
        only = {
            "--rules": self.rules_named,
            "--draft-temperature, --draft-top-p, --draft-top-k": self.how.draft_sampling is not None,
            "--record": self.record_name is not None,
            "--latency, --draft-latency, --acceptance": self.imports.any,
        }
        for name, there in only.items():
            if there:
                raise click.UsageError(
                    f"{name}: expected a draft model, of which this is. Add --draft MODEL, or leave it out."
                )

    def check_measured(self) -> None:
        """Raise click.UsageError for what cannot be measured together."""
        if self.record_name is not None and self.tensor_parallel:
            raise click.UsageError("--record: expected without --tensor-parallel. Record with a target that is whole.")
        if self.beside and self.tensor_parallel:
            raise click.UsageError(
                "--drafter: expected without --tensor-parallel. Measure with a target that is whole."
            )
        imports = self.imports
        if imports.latency is not None and imports.draft_latency is None and self.pair.target is None:
            raise click.UsageError(
                "--latency: expected --draft-latency too, or --target and --draft to time drafting of."
            )

    def settings(self) -> "Settings":
        """Return what the profiler is to measure; click.UsageError for what cannot be."""
        from treeopt.profiler import RecordSize, Settings

        try:
            return Settings(
                rules=self.rule_names,
                lossy=self.lossy,
                samplings=self.how.samplings,
                draft_sampling=self.how.draft_sampling,
                context_tokens=self.context_tokens,
                batch_sizes=self.batch_sizes,
                max_tokens=self.max_tokens,
                rounds=self.rounds,
                time_budget_s=self.budget_s,
                positions=self.positions,
                record=None if self.record_name is None else RecordSize(),
                cuda_graphs=self.cuda_graphs,
            )
        except InvalidValueError as error:  # every setting is an option
            option, _, rest = str(error).partition(":")
            raise click.UsageError(f"--{option.replace('_', '-')}:{rest}") from None
