"""What `treeopt bench` is asked in all of its modes, and what its modes refuse."""

from dataclasses import dataclass, field
from pathlib import Path

import click
from click.core import ParameterSource

from treeopt.cli.options.drafter import PLANNED_DRAFTER, PLANNED_EAGLE_LAYERS
from treeopt.cli.options.inputs import FORCE_MODELS, PROFILE, file, output, output_file
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import PromptOptions
from treeopt.cli.options.record import argument, given, group, option
from treeopt.cli.options.rule import LOSSY
from treeopt.cli.options.values import (
    COUNTS,
    DURATION,
    FILE_TEXT,
    LENGTHS,
    MEASURED_RULE,
    METHOD_LIST,
    PROBED_ENGINE,
    TEMPERATURES,
)
from treeopt.files.picture_file import checked_suffix
from treeopt.files.whole_files import STANDARD_STREAM, write_text
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.tree_schedule import is_schedule

TREE, BATCHES, GRID, SYSTEMS, ENGINE = "TREE", "--batch-size", "--grid", "--systems", "--engine"
REFUSED = {
    TREE: {
        "plot": "one tree gives no picture of a bench. Bench many with --grid, or draw the tree with treeopt show.",
        "same_prompts": "held-out prompts are decoded. Leave it out, or bench many trees with --grid.",
    },
    BATCHES: {
        "drafter": "trees that the draft model fills are raced. Leave it out, or decode with treeopt run --prompts.",
        "eagle_layers": "the draft model fills all trees. Leave it out.",
        "same_prompts": "held-out prompts are decoded. Leave it out.",
    },
    GRID: {
        "drafter": "the draft model fills all trees. Leave it out, or bench a tree file that names another drafter.",
        "eagle_layers": "the draft model fills all trees. Leave it out.",
    },
    SYSTEMS: {
        "drafter": "methods bring their own drafters. Name them with --systems.",
        "eagle_layers": "methods bring their own heads. Leave it out, and name a profile that was measured with it.",
        "same_prompts": "all methods decode prompts that none was measured on. Leave it out.",
        "rule": "each method verifies by a rule of its own. Leave it out, or name methods of that rule.",
        "lossy": "only methods that keep the target's distribution are compared. Leave it out.",
    },
    ENGINE: {
        "drafter": "the engine drafts by its own method. Leave it out.",
        "eagle_layers": "the engine reads what the head's config.json names. Leave it out.",
        "same_prompts": "held-out prompts are decoded. Leave it out.",
        "rule": "the engine verifies by its own rule. Leave it out.",
        "lossy": "the engine verifies by its own rule. Leave it out.",
        "chat": "prompts go to the engine as they are. Leave it out.",
        "device": "the engine knows its own. Leave it out.",
        "dtype": "the models are in a form of their own. Leave it out.",
        "offload": "the engine loads the models. Leave it out.",
        "max_memory": "the engine loads the models. Leave it out.",
    },
}
"""Options that a mode has no use for, and what to do instead; all others are honoured."""
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is decoded, by which pair, beside which profile, and where the results go."""

    tree: Path | None = field(metadata=argument(type=file, required=False))
    batch_sizes: tuple[int, ...] = field(
        metadata=option(
            "--batch-size",
            "batch_sizes",
            type=COUNTS,
            default=(),
            metavar="NUMBERS",
            help="Texts at a time, several with commas between: TREE, a schedule, or by default the plan of each size "
            "beside plain decoding.",
        )
    )
    systems: str | None = field(
        metadata=option(
            "--systems",
            type=METHOD_LIST,
            metavar="NAMES",
            help="Instead of TREE: all ways of speculating, or some, with commas between.",
        )
    )
    grid: bool = field(
        metadata=option(
            "--grid",
            is_flag=True,
            help="Instead of TREE: chains, trees of several sizes and depths, and the plan's choice.",
        )
    )
    engine: str | None = field(
        metadata=option(
            "--engine",
            type=PROBED_ENGINE,
            metavar="ENGINE",
            help="Instead of TREE: draft lengths in an engine that treeopt probe has measured.",
        )
    )
    url: str | None = field(
        metadata=option("--url", metavar="URL", help="With --engine: address of one that runs already.")
    )
    program: str | None = field(
        metadata=option("--program", type=FILE_TEXT, metavar="PATH", help="With --engine: llama-server to start.")
    )
    lengths: tuple[int, ...] = field(
        metadata=option(
            "--lengths",
            type=LENGTHS,
            default=(),
            metavar="NUMBERS",
            help="With --engine: draft tokens to race beside those of the profile.",
        )
    )
    timeout_s: float = field(
        metadata=option(
            "--timeout",
            "timeout_s",
            type=DURATION,
            default="60s",
            show_default=True,
            help="With --engine: longest wait for a start or an answer.",
        )
    )
    same_prompts: bool = field(
        metadata=option(
            "--same-prompts",
            is_flag=True,
            help="With --grid: decode the prompts that profiles are measured on, which leaves only the model's own errors.",
        )
    )
    prompts: PromptOptions = field(metadata=group(PromptOptions))
    profile_path: Path = field(
        metadata=option(
            "--profile",
            "profile_path",
            type=file,
            default=PROFILE,
            show_default=True,
            help="What was measured, written by treeopt profile; --systems measures anew unless a file is named.",
        )
    )
    profile_named: bool = field(metadata=given("profile_path"))
    """Whether the user named the profile."""
    rule: str | None = field(
        metadata=option(
            "--rule",
            type=MEASURED_RULE,
            help="Verification rule; by default the tree's, with --grid the best measured.",
        )
    )
    temperatures: tuple[float, ...] | None = field(
        metadata=option(
            "--temperature",
            "temperatures",
            type=TEMPERATURES,
            metavar="NUMBERS",
            help="Temperature; by default the profile's first. --systems takes several with commas, by default 0,0.6.",
        )
    )
    lossy: bool = field(metadata=LOSSY)
    drafter: DrafterSetting | None = field(metadata=PLANNED_DRAFTER)
    eagle_layers: tuple[int, ...] = field(metadata=PLANNED_EAGLE_LAYERS)
    max_new_tokens: int | None = field(
        metadata=option(
            "--max-new-tokens",
            type=click.IntRange(min=1),
            help="Tokens per prompt, the last step decoded to its end; by default as many as the profile measured, with "
            "--systems 192. Of TREE, --grid and --batch-size what is predicted is for texts of so many.",
        )
    )
    repeats: int | None = field(
        metadata=option(
            "--repeats",
            type=click.IntRange(min=1),
            help=f"Times each prompt is decoded, the median counts; by default {REPEATS}, with --systems 2.",
        )
    )
    plot: Path | None = field(
        metadata=option(
            "--plot",
            type=output_file,
            help="With --batch-size, --systems, --grid or --engine: picture to write too, .svg, .png or .pdf.",
        )
    )
    path: Path | None = field(
        metadata=option("-o", "--output", "path", type=output, help="JSON file to write as well; - is standard output.")
    )
    force: bool = field(metadata=FORCE_MODELS)
    pair: PairOptions = field(metadata=group(PairOptions))

    @property
    def temperature(self) -> float | None:
        """The temperature of a mode that takes one; None for the profile's first."""
        return self.temperatures[0] if self.temperatures else None

    @property
    def mode(self) -> str:
        """Which of the modes is meant; click.UsageError where none is, or several are."""
        given = (
            (TREE, self.tree is not None and not self.batch_sizes),
            (BATCHES, bool(self.batch_sizes)),
            (SYSTEMS, self.systems is not None),
            (GRID, self.grid),
            (ENGINE, self.engine is not None),
        )
        modes = [mode for mode, is_given in given if is_given]
        if len(modes) != 1:
            raise click.UsageError(
                "TREE, --systems, --grid, --engine: expected one of them. --batch-size goes with TREE, or alone."
            )
        if modes == [TREE] and self.tree is not None and is_schedule(self.tree):
            raise click.UsageError(f"{self.tree} is a schedule. Name numbers of texts with --batch-size 1,2,4,8.")
        return modes[0]

    def check(self) -> None:
        """Raise for an option that the mode has no use for, and for a picture of no known kind, before any long work."""
        refuse_useless(self.mode, self.temperatures or ())
        if self.plot is not None:
            checked_suffix(self.plot)

    def publish(self, table: str, report: str) -> None:
        """Print the table, on standard error where the JSON goes to standard output, and write the JSON."""
        click.echo(table, err=self.path is not None and str(self.path) == STANDARD_STREAM)
        if self.path is not None:
            write_text(self.path, report)


def refuse_useless(mode: str, temperatures: tuple[float, ...]) -> None:
    """Raise click.UsageError for an option that was given and that the mode has no use for."""
    context = click.get_current_context()
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in () if mode == ENGINE else ("url", "program", "lengths", "timeout_s"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{flags[name]} with {mode}: it is for --engine. Leave it out.")
    for name, reason in REFUSED[mode].items():
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{flags[name]} with {mode}: {reason}")
    if mode != SYSTEMS and len(temperatures) > 1:
        raise click.UsageError(f"--temperature with {mode}: expected one. Got {len(temperatures)}: bench each.")
