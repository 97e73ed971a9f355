"""`treeopt probe`: measure a serving engine from outside."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import click

from treeopt.cli.command import Command
from treeopt.cli.options.engine import (
    PROBED_ENGINE,
    EngineOptions,
    chat_template_option,
    max_new_tokens_option,
    together_option,
)
from treeopt.cli.options.inputs import PROFILE, REPLACE_FILES, force_option, output_option
from treeopt.cli.options.prompts import apply_chat_template, max_prompts_option, prompts_option, select_prompts
from treeopt.cli.options.record import Heading, argument, group, is_given, print_option
from treeopt.cli.options.values import COUNT, COUNTS, DURATION, LENGTHS, TEMPERATURE
from treeopt.cli.outputs import check_profile_outputs, checkpoint_path
from treeopt.cli.terminal import print_result, warn
from treeopt.engines.clients import registry
from treeopt.engines.clients.client import EngineClient, EngineConfig
from treeopt.errors import Warning
from treeopt.records.profile import Profile
from treeopt.report.probe_text import engine_lines, probe_summary, probe_warnings
from treeopt.report.text import quoted
from treeopt.texts.prompts import DEFAULT_PROMPTS, profile_prompts, prompts_name

if TYPE_CHECKING:
    from treeopt.profiler import Checkpoint
    from treeopt.profiler.engine import ProbeSettings

PROPOSED_LENGTH = 3
"""Draft length to measure next if only plain decoding was."""
RESUMABLE = ("lengths", "categories", "timeout_s")
"""Settings that a resumed run may change, besides the addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    engine: str = argument(type=PROBED_ENGINE, metavar="ENGINE")
    models: EngineOptions = group(EngineOptions)
    lengths: tuple[int, ...] = Heading.MEASURED.option(
        "--lengths",
        type=LENGTHS,
        default="0,1,3,7",
        help="Draft lengths to measure, starting with 0 for plain decoding; with --url 0=URL,3=URL, the lengths there.",
    )
    batch_sizes: tuple[int, ...] = Heading.MEASURED.option(
        "--batch-sizes", type=COUNTS, default="1", help="Batch sizes to measure, separated by commas."
    )
    prompts: Path | None = prompts_option()
    chat_template: str | None = chat_template_option()
    max_prompts: int = max_prompts_option(24)
    temperature: float = Heading.MEASURED.option(
        "--temperature", type=TEMPERATURE, default=0.0, help="Sampling temperature; 0 is greedy."
    )
    rounds: int = Heading.MEASURED.option(
        "--rounds", type=COUNT, default=3, help="How often each prompt is decoded, at most if there is a --time-budget."
    )
    max_new_tokens: int = max_new_tokens_option()
    time_budget_s: float | None = Heading.MEASURED.option(
        "--time-budget", type=DURATION, help="Start no further round after this time, such as 90s or 3m."
    )
    together: bool = together_option()
    resume: bool = Heading.OUTPUT.option(
        "--resume", is_flag=True, help="Continue an interrupted probe, if there is one."
    )
    force: bool = force_option(REPLACE_FILES)
    path: Path = output_option("Profile to write; - for standard output.", default=PROFILE)

    def with_server_lengths(self) -> "ProbeOptions":
        """Return the options with the lengths in `--url`, unless `--lengths` is given."""
        if is_given("lengths") or self.models.url is None or self.is_one_length:
            return self
        return replace(self, lengths=tuple(sorted(registry.parse_urls(self.models.url))))

    def check(self) -> None:
        """Raise click.UsageError or InvalidValueError for options that contradict each other."""
        self.server.check(self.engine)
        lengths = ",".join(map(str, self.lengths))
        if self.is_one_length:
            if len(self.lengths) != 1:
                raise click.UsageError(
                    f"--url: expected one length of one server, such as --lengths 3. Got {lengths}: start it with each in "
                    "turn, or give a server for each, 0=URL,3=URL."
                )
            if checkpoint_path(self.path) is None:
                raise click.UsageError("--output: expected a file, next to which answers are stored. Name one with -o.")
        elif self.lengths[0] != 0 or len(self.lengths) < 2 or list(self.lengths) != sorted(self.lengths):
            raise click.UsageError(
                f"--lengths: expected 0, plain decoding, and others that rise, such as 0,1,3,7. Got {lengths}."
            )

    @property
    def is_one_length(self) -> bool:
        """Whether there is one server with one length, so that several runs make a profile."""
        return self.models.url is not None and registry.is_single_url(self.models.url)

    @property
    def server(self) -> EngineOptions:
        """The engine's options, a single address with its length."""
        if not self.is_one_length:
            return self.models
        return replace(self.models, url=f"{self.lengths[0]}={self.models.url}")


def _describe_engines() -> str:
    return "\n".join(map(engine_lines, registry.list_engines()))


@click.command(cls=Command, record=ProbeOptions)
@print_option("--list", _describe_engines, "List engines, whether they are installed, and what they report.")
def probe(args: ProbeOptions) -> None:
    """Measure ENGINE from outside, and write its profile.

    The engine decodes the same prompts plainly and with drafts of several lengths, in interleaved runs.  Its own times
    and counters give the time of a step and the acceptance; solve, export, compare and bench engine use the profile like
    any other.  Completions are saved in OUTPUT.partial: after an interruption, run the same command with --resume.
    """
    args = args.with_server_lengths()
    args.check()
    check_profile_outputs(args.path, resume=args.resume, force=args.force)
    client, config = args.server.client(args.engine), args.server.config(args.engine)
    settings = _settings(args)
    checkpoint = _open_checkpoint(args, client, config, settings)
    result = _measure(args, client, config, settings, checkpoint)
    if result is None:
        return
    result.save(args.path)
    if not args.is_one_length:
        checkpoint.remove()
    _print_summary(args, result)


def _settings(args: ProbeOptions) -> "ProbeSettings":
    from treeopt.profiler.engine import ProbeSettings

    sample = select_prompts(args.prompts, args.max_prompts)
    return ProbeSettings(
        lengths=args.lengths,
        batch_sizes=args.batch_sizes,
        prompts=tuple(profile_prompts(apply_chat_template(sample.texts, args.chat_template))),
        categories=tuple(profile_prompts(sample.categories)),
        chat_template=args.chat_template,
        prompts_from=prompts_name(args.prompts or DEFAULT_PROMPTS, sample),
        rounds=args.rounds,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        together=args.together,
    )


def _open_checkpoint(
    args: ProbeOptions, client: EngineClient, config: EngineConfig, settings: "ProbeSettings"
) -> "Checkpoint":
    """Return the checkpoint of answers; a resumed run may change addresses and the settings in `RESUMABLE`."""
    from treeopt.profiler import Checkpoint

    conditions = {
        field.name: getattr(record, field.name)
        for record in (config, settings)
        for field in fields(record)
        if field.name not in RESUMABLE
    }
    conditions["prompts"] = f"{len(settings.prompts)} of checksum {crc32(repr(settings.prompts).encode()):08x}"
    items = [f"probe 4, {client.name} {client.version} {client.settings}"]
    heading = ", ".join(items + [f"{name} {value}" for name, value in conditions.items()])
    return Checkpoint(checkpoint_path(args.path), heading, resume=args.resume)


def _measure(
    args: ProbeOptions,
    client: EngineClient,
    config: EngineConfig,
    settings: "ProbeSettings",
    checkpoint: "Checkpoint",
) -> Profile | None:
    """Measure what the checkpoint lacks and return the profile, or None after a message if a length is missing."""
    from tqdm import tqdm

    from treeopt.profiler.engine import Probe
    from treeopt.profiler.engine_profile import engine_profile

    probe = Probe(client, config, settings, checkpoint)
    with tqdm(total=settings.batches, desc="probe     ", unit="text", disable=None) as bar:
        probe.measure(bar.update, budget_s=args.time_budget_s)
    lengths = probe.measured()
    if args.is_one_length and (0 not in lengths or len(lengths) < 2):
        _print_missing_length(args, lengths)
        return None
    if count := probe.ended_at_once():
        reason = f"{count} sequences ended at once, so that no step could be timed. They are left out."
        warn(Warning(reason, "Replace their prompts, or start the engine so that it ignores end tokens."))
    return engine_profile(client, config, replace(settings, lengths=lengths), probe)


def _print_missing_length(args: ProbeOptions, lengths: Sequence[int]) -> None:
    click.echo(f"Draft lengths measured: {', '.join(map(str, lengths))}. Saved in {checkpoint_path(args.path)}.")
    if 0 not in lengths:
        length, missing, start = 0, "0, plain decoding", "without a draft"
    else:
        length, missing = PROPOSED_LENGTH, f"one above 0, such as {PROPOSED_LENGTH}"
        start = f"with {PROPOSED_LENGTH} draft tokens"
    click.echo(
        f"Missing: {missing}. Start the server {start}, and run the same command with --lengths {length} --resume."
    )


def _print_summary(args: ProbeOptions, result: Profile) -> None:
    """Print what was measured, warnings, and the next command."""
    print_result(
        probe_summary(result),
        [args.path],
        warnings=probe_warnings(result),
        next_command=f"treeopt solve --profile {quoted(args.path)}",
    )
    if args.is_one_length:
        click.echo(
            f"Answers stay in {checkpoint_path(args.path)}: measure further lengths with --resume, or remove it."
        )
