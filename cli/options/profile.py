"""Options of `treeopt profile`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.drafter import DRAFTER, eagle_layers_option, with_blocks, with_layers
from treeopt.cli.options.inputs import PROFILE, REPLACE_FILES, file, force_option, output_option
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import PromptOptions
from treeopt.cli.options.record import Heading, group, is_given, option, refuse_options
from treeopt.cli.options.sampling import DRAFT_SAMPLING, SamplingsOptions, lossy_option
from treeopt.cli.options.values import COUNT, COUNTS, DURATION, FILE_TEXT, MAX_COUNT, Names, whole
from treeopt.cli.outputs import DEFAULT_RECORD, record_path
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.rules import RULES, check_rule
from treeopt.records.sampling import Sampling
from treeopt.trees.drafter_setting import DRAFTERS, DrafterSetting

if TYPE_CHECKING:
    from treeopt.engines.importers import ImportedLatency
    from treeopt.profiler import Settings

BUDGET_S, BUNDLED_BUDGET_S = 300.0, 45.0
"""Default time budgets, the second for the bundled pair."""
WITHOUT_MODELS = ("prompt-lookup", "lookahead")
"""Drafters that need no model."""
OF_DRAFT_MODEL = (*DRAFT_SAMPLING, "rules", "record", "latency", "draft_latency", "acceptance")
"""Options that need a draft model."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Files of measurements made elsewhere."""

    latency: Path | None = option(
        "--latency",
        type=file,
        help="Verification times: CSV (tokens and a time; may also contain drafting times), output of llama-bench or llama-batched-bench, or a cost table "
        "of SGLang or TensorRT-LLM.",
    )
    draft_latency: Path | None = option(
        "--draft-latency",
        type=file,
        help="Drafting times: CSV, output of llama-bench for the draft model, or a log of llama-server.",
    )
    acceptance: Path | None = option(
        "--acceptance",
        type=file,
        help="Acceptance: rates or counts per position, /metrics of vLLM or llama.cpp, a speculation profile, requests "
        "of vLLM or AIPerf, answers of Spec-Bench, or Sequoia's vector.",
    )
    sweep: tuple[Path, ...] = option(
        "--sweep",
        type=file,
        multiple=True,
        help="Whole steps by draft length: CSV or JSON with draft length, batch size, speed and acceptance length. "
        "Repeat the option for several files.",
    )

    @property
    def has_times(self) -> bool:
        """Whether both verification and drafting times are imported, from one file or two."""
        if self.latency is not None and self.draft_latency is not None:
            return True
        parts = ("verify", "draft")
        return all(any(getattr(curve, part) is not None for curve in self.latencies) for part in parts)

    @property
    def has_everything(self) -> bool:
        """Whether nothing is left to measure."""
        return self.has_times and self.acceptance is not None

    @cached_property
    def latencies(self) -> "tuple[ImportedLatency, ...]":
        """All imported times; a pipe can be read only once."""
        from treeopt.engines.importers import read_latency

        curves = () if self.latency is None else read_latency(self.latency)
        is_read = self.draft_latency == self.latency and any(curve.draft is not None for curve in curves)
        if self.draft_latency is None or is_read:
            return curves
        return (*curves, *read_latency(self.draft_latency, drafts=True))

    def acceptances(self, rule: str, sampling: Sampling) -> tuple[MeasuredAcceptance, ...]:
        from treeopt.engines.importers import read_acceptance

        if self.acceptance is None:
            return ()
        return (read_acceptance(self.acceptance, rule=rule, sampling=sampling),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    pair: PairOptions = group(PairOptions)
    path: Path = output_option("Profile to write; - for standard output.", default=PROFILE)
    rules: str = Heading.SAMPLING.option(
        "--rules",
        type=Names("names", lambda: RULES),
        default="sequoia",
        help=f"Verification rules to measure, separated by commas: {', '.join(RULES)}.",
    )
    lossy: bool = lossy_option()
    sampling: SamplingsOptions = group(SamplingsOptions, Heading.SAMPLING)
    context_tokens: tuple[int, ...] = Heading.MEASURED.option(
        "--context-tokens",
        type=COUNTS,
        default="256",
        help="Tokens in the KV cache, separated by commas; times, and acceptance if there are several, are measured at "
        "each.",
    )
    batch_sizes: tuple[int, ...] = Heading.MEASURED.option(
        "--batch-sizes",
        type=COUNTS,
        default="1",
        help="Sequences verified together, separated by commas, 1 among them; times are measured at each.",
    )
    max_tokens: int = Heading.MEASURED.option(
        "--max-tokens",
        type=whole(2, MAX_COUNT),
        default=512,
        help="Largest pass to measure, in tokens; plans cannot exceed it.",
    )
    rounds: int = Heading.MEASURED.option(
        "--rounds",
        type=COUNT,
        default=25,
        show_default=False,
        help="Samples of each time, in place of a time budget; by default 25 with --positions.",
    )
    time_budget_s: float | None = Heading.MEASURED.option(
        "--time-budget",
        type=DURATION,
        help="Longest time to measure, once models are loaded, such as 90s or 3m; by default 5m, or 45s for the bundled pair. "
        "Measuring ends earlier if the plan is within 1 % of the fastest with 90 % probability.",
    )
    cuda_graphs: bool | None = Heading.MODELS.option(
        "--cuda-graphs/--no-cuda-graphs",
        default=None,
        help="Time passes as CUDA graphs; by default on CUDA devices, where decoding uses them.",
    )
    positions: int = Heading.MEASURED.option(
        "--positions",
        type=COUNT,
        default=4096,
        show_default=False,
        help="Generated tokens over which acceptance is counted, in place of a time budget; by default 4096 with --rounds.",
    )
    prompts: PromptOptions = group(PromptOptions)
    imports: ImportOptions = group(ImportOptions, Heading.IMPORTS)
    record: str | None = Heading.MEASURED.option(
        "--record",
        type=FILE_TEXT,
        metavar="[FILE]",
        is_flag=False,
        flag_value=DEFAULT_RECORD,
        help="Also record the draft model's probabilities, from which dynamic trees (EAGLE-2, SGLang) are planned; by "
        "default in profile.record.npz next to the profile.",
    )
    wait_s: float | None = Heading.MEASURED.option(
        "--wait", type=DURATION, help="Wait at most this long, such as 60s, until no other program uses the processors."
    )
    resume: bool = Heading.OUTPUT.option(
        "--resume", is_flag=True, help="Continue an interrupted profile, if there is one."
    )
    force: bool = force_option(REPLACE_FILES)
    tensor_parallel: bool = Heading.MODELS.option(
        "--tensor-parallel", is_flag=True, help="Split the target over the processes that torchrun started."
    )
    drafters: tuple[DrafterSetting, ...] = option(
        "--drafter",
        type=DRAFTER,
        multiple=True,
        help=f"Drafter to measure: {', '.join(DRAFTERS)}. Repeat the option for several. DIR is the folder or hub name "
        "of its heads; by default the bundled ones. A target without --draft and --drafter is measured with "
        f"{' and '.join(WITHOUT_MODELS)}.",
    )
    eagle_layers: tuple[int, ...] = eagle_layers_option("those in its config.json")
    block_draft_tokens: tuple[int, ...] = Heading.MODELS.option(
        "--block-draft-tokens",
        type=COUNTS,
        default=(),
        help="Draft tokens of the blocks of dflash, dspark and ddtree, separated by commas; each is measured as a drafter "
        "of its own. By default those of the training.",
    )

    @property
    def has_draft_model(self) -> bool:
        """Whether a draft model is measured: the bundled one if no target is named."""
        return self.pair.target is None or self.pair.draft is not None

    @property
    def other_drafters(self) -> tuple[DrafterSetting, ...]:
        """The drafters to measure other than the draft model.

        Raises click.UsageError for one that is named twice, one that needs a missing draft model, layers without an
        EAGLE head, and block sizes without a DFlash head.
        """
        names = [drafter.name for drafter in self.drafters]
        needing = [drafter.name for drafter in self.drafters if drafter.expands_draft_model]
        if needing and not self.has_draft_model:
            raise click.UsageError(
                f"--drafter {needing[0]}: expected --draft MODEL, which it drafts with. Got none: add it."
            )
        if twice := [name for name in names if names.count(name) > 1]:
            raise click.UsageError(f"--drafter {twice[0]}: expected once. Got it {names.count(twice[0])} times.")
        others = [drafter for drafter in self.drafters if drafter.name != "model"]
        if not names and not self.has_draft_model:
            others = [DrafterSetting(name=name) for name in WITHOUT_MODELS]
        return with_blocks(with_layers(others, self.eagle_layers), self.block_draft_tokens)

    @property
    def is_fixed_amount(self) -> bool:
        """Whether `--rounds` or `--positions` replaces a time budget."""
        return is_given("rounds") or is_given("positions")

    @property
    def rule_names(self) -> tuple[str, ...]:
        """The rules; raises InvalidValueError for one that cannot be run."""
        rules = tuple(rule.strip() for rule in self.rules.split(","))
        for rule in rules:
            check_rule(rule, lossy=self.lossy)
        return rules

    @property
    def record_path(self) -> Path | None:
        """Where the draft record is written, if one is wanted; raises click.UsageError as `record_path` does."""
        return None if self.record is None else record_path(self.record, self.path)

    def check(self) -> None:
        """Raise click.UsageError for options that contradict each other."""
        imports = self.imports
        if not self.has_draft_model and not imports.has_everything:
            refuse_options(OF_DRAFT_MODEL, "expected a draft model. Add --draft MODEL, or leave it out.")
        if self.other_drafters and imports.has_times:
            raise click.UsageError(
                "--drafter: expected measured times, with which drafters are compared. Got imported ones: leave it out."
            )
        if self.is_fixed_amount:
            reason = "expected without --rounds and --positions, which measure a fixed amount. Give one or the other."
            refuse_options(["time_budget_s"], reason)
        if imports.has_times:
            refuse_options(["wait_s"], "expected times to measure. Got imported ones: leave it out.")
        if imports.has_everything:
            refuse_options(["record"], "expected a draft model to run. Got imported measurements only.")

    def check_measured(self) -> None:
        """Raise click.UsageError for options that contradict each other if anything is measured."""
        if self.tensor_parallel:
            refuse_options(["record"], "expected without --tensor-parallel. Record with a target that is whole.")
            if self.other_drafters:
                raise click.UsageError(
                    "--drafter: expected without --tensor-parallel. Measure with a target that is whole."
                )
        if self.imports.latency is not None and not self.imports.has_times and self.pair.target is None:
            raise click.UsageError(
                "--latency: expected --draft-latency too, or rows of drafting in the file, or --target and --draft to time "
                "drafting of."
            )

    def settings(self) -> "Settings":
        """Return the profiler's settings; raises InvalidValueError for an invalid one."""
        from treeopt.profiler import RecordSize, Settings

        budget_s = self.time_budget_s
        if budget_s is None and not self.is_fixed_amount and not self.imports.has_times:
            budget_s = BUNDLED_BUDGET_S if self.pair.target is None else BUDGET_S
        return Settings(
            rules=self.rule_names,
            lossy=self.lossy,
            samplings=self.sampling.samplings,
            draft_sampling=self.sampling.draft_sampling,
            context_tokens=self.context_tokens,
            batch_sizes=self.batch_sizes,
            max_tokens=self.max_tokens,
            rounds=self.rounds,
            time_budget_s=budget_s,
            positions=self.positions,
            record=None if self.record is None else RecordSize(),
            cuda_graphs=self.cuda_graphs,
        )
