"""Options of the subcommands of `treeopt bench`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.drafter import PLANNED_DRAFTER, PLANNED_EAGLE_LAYERS
from treeopt.cli.options.inputs import FORCE_MODELS, PROFILE, PROFILE_PATH, file, output_file, output_option
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.plan import PROFILE_TEMPERATURE
from treeopt.cli.options.probe import (
    CHAT_TEMPLATE,
    ENGINE_DEVICE,
    ENGINE_DTYPE,
    ENGINE_PROMPTS,
    PROGRAM,
    TIMEOUT,
    TOGETHER,
    check_engine,
    max_prompts,
)
from treeopt.cli.options.prompts import PromptOptions
from treeopt.cli.options.record import Heading, argument, group, option
from treeopt.cli.options.rule import LOSSY, measured_rule
from treeopt.cli.options.values import (
    COUNT,
    COUNTS,
    FILE_TEXT,
    GAP,
    LENGTHS,
    METHOD_LIST,
    PROBED_ENGINE,
    TEMPERATURES,
    THREADS,
    Whole,
)
from treeopt.files.picture_file import checked_suffix
from treeopt.files.whole_files import STANDARD_STREAM, write_text
from treeopt.trees.drafter_setting import DrafterSetting

if TYPE_CHECKING:
    from treeopt.pictures.panels import Panel
    from treeopt.records.bench_file import Bench
    from treeopt.records.bench_heading import BenchHeading


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Where the results of a bench go."""

    path: Path | None = field(metadata=output_option("path", "JSON file to write as well; - is standard output."))

    def publish(self, table: str, heading: "BenchHeading", bench: "Bench") -> None:
        """Print the table, on standard error where the JSON goes to standard output, and write the JSON."""
        from treeopt.records.bench_file import FiledBench

        click.echo(table, err=self.path is not None and str(self.path) == STANDARD_STREAM)
        if self.path is not None:
            write_text(self.path, FiledBench(heading, bench).text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureOptions(ResultOptions):
    """Where results go that also have a figure."""

    plot: Path | None = field(
        metadata=option(
            "--plot", heading=Heading.OUTPUT, type=output_file, help="Figure to write as well, .svg, .png or .pdf."
        )
    )

    def __post_init__(self) -> None:
        if self.plot is not None:
            checked_suffix(self.plot)

    def draw(self, panels: "Sequence[Panel]", *, title: str, subtitle: str, columns: int = 1) -> None:
        """Write the figure."""
        from treeopt.files.picture_file import save_drawing
        from treeopt.pictures.panels import compose

        assert self.plot is not None  # asked before
        save_drawing(compose(panels, title=title, subtitle=subtitle, columns=columns), self.plot)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What `bench tree`, `bench grid` and `bench batches` share: the pair, the profile that predicts, the sequences."""

    pair: PairOptions = field(metadata=group(PairOptions))
    prompts: PromptOptions = field(metadata=group(PromptOptions))
    profile_path: Path = field(metadata=PROFILE_PATH)
    rule: str | None = field(metadata=measured_rule("Verification rule; by default the tree's."))
    temperature: float | None = field(metadata=PROFILE_TEMPERATURE)
    lossy: bool = field(metadata=LOSSY)
    max_new_tokens: int | None = field(
        metadata=option(
            "--max-new-tokens",
            heading=Heading.MEASURED,
            type=COUNT,
            help="New tokens per prompt, the last step decoded to its end; by default as many as the profile measured. "
            "Predictions are for this length.",
        )
    )
    force: bool = field(metadata=FORCE_MODELS)
    repeats: int = field(
        metadata=option(
            "--repeats",
            heading=Heading.MEASURED,
            type=COUNT,
            default=3,
            show_default=True,
            help="Times each prompt is decoded; the median counts.",
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTreeOptions(BenchOptions):
    """Options of `treeopt bench tree`."""

    tree: Path = field(metadata=argument(type=file))
    drafter: DrafterSetting | None = field(metadata=PLANNED_DRAFTER)
    eagle_layers: tuple[int, ...] = field(metadata=PLANNED_EAGLE_LAYERS)
    results: ResultOptions = field(metadata=group(ResultOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGridOptions(BenchOptions):
    """Options of `treeopt bench grid`."""

    rule: str | None = field(metadata=measured_rule("Verification rule; by default the best measured."))
    same_prompts: bool = field(
        metadata=option(
            "--same-prompts",
            heading=Heading.PROMPTS,
            is_flag=True,
            help="Decode the prompts that profiles are measured on, which leaves only the model's own errors.",
        )
    )
    results: FigureOptions = field(metadata=group(FigureOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchBatchesOptions(BenchOptions):
    """Options of `treeopt bench batches`."""

    tree: Path | None = field(metadata=argument(type=file, required=False, metavar="[TREE|SCHEDULE]"))
    batch_sizes: tuple[int, ...] = field(
        metadata=option(
            "--batch-sizes",
            type=COUNTS,
            required=True,
            metavar="NUMBERS",
            help="Sequences decoded together; several with commas between.",
        )
    )
    rule: str | None = field(
        metadata=measured_rule("Verification rule; by default the tree's, without one the best measured.")
    )
    results: FigureOptions = field(metadata=group(FigureOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMethodsOptions:
    """Options of `treeopt bench methods`."""

    methods: str = field(
        metadata=option(
            "--methods",
            type=METHOD_LIST,
            metavar="NAMES",
            default="all",
            show_default=True,
            help="Methods to compare, with commas between; plain decoding is always among them.",
        )
    )
    pair: PairOptions = field(metadata=group(PairOptions))
    prompts: PromptOptions = field(metadata=group(PromptOptions))
    profile_path: Path | None = field(
        metadata=option(
            "--profile",
            "profile_path",
            type=file,
            help="Profile to plan from; by default the pair is profiled first. Drafters that it lacks are measured.",
        )
    )
    force: bool = field(metadata=FORCE_MODELS)
    temperatures: tuple[float, ...] | None = field(
        metadata=option(
            "--temperature",
            "temperatures",
            heading=Heading.MEASURED,
            type=TEMPERATURES,
            metavar="NUMBERS",
            help="Temperatures, with commas between; by default 0,0.6, or all in --profile.",
        )
    )
    max_new_tokens: int = field(
        metadata=option(
            "--max-new-tokens",
            heading=Heading.MEASURED,
            type=COUNT,
            default=192,
            show_default=True,
            help="New tokens per held-out prompt.",
        )
    )
    repeats: int = field(
        metadata=option(
            "--repeats",
            heading=Heading.MEASURED,
            type=COUNT,
            default=2,
            show_default=True,
            help="Times each prompt is decoded; the median counts.",
        )
    )
    results: FigureOptions = field(metadata=group(FigureOptions))

    def __post_init__(self) -> None:
        if self.force and self.profile_path is None:
            raise click.UsageError(
                "--force: expected --profile, whose models it overrides. Add it, or leave --force out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchEngineOptions:
    """Options of `treeopt bench engine`."""

    engine: str = field(metadata=argument(type=PROBED_ENGINE, metavar="ENGINE"))
    profile_path: Path = field(
        metadata=option(
            "--profile",
            "profile_path",
            type=file,
            default=PROFILE,
            show_default=True,
            help="What was measured of the engine, written by treeopt probe.",
        )
    )
    target: str | None = field(
        metadata=option("--target", type=FILE_TEXT, metavar="MODEL", help="Target model; by default as probed.")
    )
    draft: str | None = field(
        metadata=option("--draft", type=FILE_TEXT, metavar="MODEL", help="Draft model; by default as probed.")
    )
    url: str | None = field(
        metadata=option(
            "--url",
            metavar="URLS",
            help="Addresses of engines that run already, one for each length, 0=URL,3=URL. Nothing else is contacted.",
        )
    )
    program: str | None = field(metadata=PROGRAM)
    threads: int | None = field(
        metadata=option(
            "--threads", heading=Heading.MODELS, type=THREADS, help="CPU threads; by default as many as probed with."
        )
    )
    device: str = field(metadata=ENGINE_DEVICE)
    dtype: str = field(metadata=ENGINE_DTYPE)
    timeout_s: float = field(metadata=TIMEOUT)
    lengths: tuple[int, ...] = field(
        metadata=option(
            "--lengths",
            heading=Heading.MEASURED,
            type=LENGTHS,
            default=(),
            metavar="NUMBERS",
            help="Draft tokens to run with, next to those of the profile.",
        )
    )
    prompts: Path | None = field(metadata=ENGINE_PROMPTS)
    chat_template: str | None = field(metadata=CHAT_TEMPLATE)
    most_prompts: int = field(metadata=max_prompts(64))
    temperature: float | None = field(metadata=PROFILE_TEMPERATURE)
    max_new_tokens: int = field(
        metadata=option(
            "--max-new-tokens",
            heading=Heading.MEASURED,
            type=Whole(8, 100_000),
            default=96,
            show_default=True,
            help="New tokens per prompt.",
        )
    )
    repeats: int = field(
        metadata=option(
            "--repeats",
            heading=Heading.MEASURED,
            type=COUNT,
            default=5,
            show_default=True,
            help="Times each prompt is decoded; the median counts.",
        )
    )
    together: bool = field(metadata=TOGETHER)
    tolerance_nats: float | None = field(
        metadata=option(
            "--near-tie",
            "tolerance_nats",
            heading=Heading.MEASURED,
            type=GAP,
            metavar="NATS",
            help="Largest gap of log-probabilities that rounding may decide; by default that of the dtype, of float16 where the "
            "engine does not tell it.",
        )
    )
    strict: bool = field(
        metadata=option(
            "--strict",
            heading=Heading.MEASURED,
            is_flag=True,
            help="Exit with 1 unless every text is plain decoding's but for near-ties; at temperature 0.",
        )
    )
    results: FigureOptions = field(metadata=group(FigureOptions))

    def __post_init__(self) -> None:
        check_engine(self.engine)
