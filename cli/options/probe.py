"""Options of `treeopt probe`, and those that `treeopt bench engine` shares."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.inputs import FORCE, PROFILE, file, output_option
from treeopt.cli.options.pair import DTYPE
from treeopt.cli.options.record import Heading, Metadata, argument, given, group, option
from treeopt.cli.options.values import (
    COUNT,
    COUNTS,
    DEVICE,
    DURATION,
    FILE_TEXT,
    LENGTHS,
    PROBED_ENGINE,
    TEMPERATURE,
    THREADS,
    Whole,
)
from treeopt.cli.profile_files import journal_path
from treeopt.engines.probes.client import METHODS, NGRAM
from treeopt.errors import InvalidValueError
from treeopt.files.whole_files import is_stream
from treeopt.records.machine import AUTO

if TYPE_CHECKING:
    from treeopt.engines.probes.client import EngineClient, Launch

LEAST_PROMPTS, MOST_PROMPTS = 3, 4096
PROGRAM = option(
    "--program",
    heading=Heading.MODELS,
    type=FILE_TEXT,
    metavar="PATH",
    help="llama-server to start; by default the package xllamacpp's, or else the one on PATH.",
)
ENGINE_DEVICE = option(
    "--device",
    heading=Heading.MODELS,
    type=DEVICE,
    metavar="DEVICE",
    default=AUTO,
    show_default=True,
    help="Where transformers runs: auto, cpu, cuda, cuda:1, …; auto is that of the profile at hand, else CUDA, else the CPU.",
)
ENGINE_DTYPE = option(
    "--dtype",
    heading=Heading.MODELS,
    type=DTYPE,
    default=AUTO,
    show_default=True,
    help="Dtype that transformers runs in; auto is that of the profile at hand, else the target checkpoint's own on CUDA, "
    "float32 on the CPU.",
)
TIMEOUT = option(
    "--timeout",
    "timeout_s",
    heading=Heading.MODELS,
    type=DURATION,
    default="60s",
    show_default=True,
    help="Longest wait for a start or an answer.",
)
TOGETHER = option(
    "--together",
    heading=Heading.MEASURED,
    is_flag=True,
    help="Start llama-server with all lengths at the same time, each with its own copy of the models, so that drift of the "
    "machine hits all alike; by default one at a time.",
)
ENGINE_PROMPTS = option(
    "--prompts", type=file, metavar="PATH", help="Prompts, as for treeopt profile; by default treeopt's own."
)

CHAT_TEMPLATE = option(
    "--chat-template",
    heading=Heading.PROMPTS,
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Model folder whose chat template prompts are put into, as a user's messages; by default none in treeopt probe, and "
    "that of the probe in treeopt bench engine.",
)


def max_prompts(default: int) -> Metadata:
    """Return the option of how many prompts are taken."""
    return option(
        "--max-prompts",
        "most_prompts",
        heading=Heading.PROMPTS,
        type=Whole(LEAST_PROMPTS, MOST_PROMPTS),
        default=default,
        show_default=True,
        help="Most prompts to take, evenly over the file and its categories; every 4th is held out for benchmarks.",
    )


def check_engine(name: str | None) -> str:
    """Return the name of an engine that can be probed; click.UsageError for any other."""
    from treeopt.engines.probes.named import NAMES

    if name not in NAMES:
        raise click.UsageError(
            f"ENGINE: expected one of {', '.join(NAMES)}. Got {name!r:.40}: treeopt probe --list tells of each."
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """An engine's models, where it is, and how it is run."""

    target: str | None = field(
        metadata=option(
            "--target",
            type=FILE_TEXT,
            metavar="MODEL",
            help="Target model in the form that the engine takes, such as a GGUF file.",
        )
    )
    draft: str | None = field(
        metadata=option("--draft", type=FILE_TEXT, metavar="MODEL", help="Draft model, likewise.")
    )
    url: str | None = field(
        metadata=option(
            "--url",
            metavar="URLS",
            help="Addresses of engines that run already, one for each length, 0=URL,3=URL; or one alone, with one length "
            "in --lengths. Nothing else is contacted.",
        )
    )
    program: str | None = field(metadata=PROGRAM)
    method: str | None = field(
        metadata=option(
            "--method",
            type=click.Choice(METHODS),
            help="How the engine drafts where not with a draft model: ngram from the text itself, eagle3 with the head in "
            "--draft, mtp with the target's own module, of an engine at --url.",
        )
    )
    ngram_tokens: int | None = field(
        metadata=option(
            "--ngram-tokens",
            heading=Heading.MODELS,
            type=COUNT,
            help="With --method ngram: tokens that have to match; by default the engine's.",
        )
    )
    threads: int | None = field(
        metadata=option(
            "--threads", heading=Heading.MODELS, type=THREADS, help="CPU threads; by default the engine's choice."
        )
    )
    device: str = field(metadata=ENGINE_DEVICE)
    dtype: str = field(metadata=ENGINE_DTYPE)
    timeout_s: float = field(metadata=TIMEOUT)

    def check(self, name: str) -> None:
        """Raise click.UsageError unless models are named, or the address of an engine that has them."""
        from treeopt.engines.probes.named import PLACED

        for flag, value in (("--device", self.device), ("--dtype", self.dtype)):
            if value != AUTO and name not in PLACED:
                raise click.UsageError(
                    f"{flag}: expected with {', '.join(PLACED)} alone. {name} chooses for itself: leave it out."
                )
        if self.ngram_tokens is not None and (self.method != NGRAM or self.url is not None):
            raise click.UsageError(
                "--ngram-tokens: it is for --method ngram of an engine that treeopt starts. Leave it out."
            )
        if self.url is None and self.method == NGRAM and (self.target is None or self.draft is not None):
            raise click.UsageError(
                "--method ngram: expected --target alone, because nothing else drafts. Leave --draft out."
            )
        if self.url is None and self.method != NGRAM and (self.target is None or self.draft is None):
            raise click.UsageError("--target, --draft: expected both, or --url of an engine that runs. Give them.")
        if self.url is not None:
            from treeopt.engines.probes.client import addresses

            try:
                addresses(self.url)
            except InvalidValueError as error:
                raise click.UsageError(str(error)) from None

    def client(self, name: str) -> "EngineClient":
        """Return the engine of a name."""
        from treeopt.engines.probes.named import engine_client

        return engine_client(name, url=self.url, threads=self.threads, timeout_s=self.timeout_s, program=self.program)

    def launch(self, name: str) -> "Launch":
        """Return how the engine of a name is started, whatever the length.

        Raises InvalidValueError if the device is not there.
        """
        from treeopt.engines.probes.client import Launch
        from treeopt.engines.probes.named import PLACED

        device, dtype = self._placement(self.target) if name in PLACED and self.target is not None else (None, None)
        return Launch(
            device=device,
            dtype=dtype,
            target=self.target,
            draft=self.draft,
            draft_tokens=0,
            threads=self.threads,
            timeout_s=self.timeout_s,
            method=self.method,
            ngram_tokens=self.ngram_tokens,
        )

    def _placement(self, target: str) -> tuple[str, str]:
        """Return device and dtype without `auto`."""
        from treeopt.runtime.models.pair import chosen_device, chosen_dtype

        device = chosen_device(self.device)
        return str(device), chosen_dtype(target, self.dtype, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What is measured of which engine, how much of it, and where it is written."""

    engine: str | None = field(metadata=argument(type=PROBED_ENGINE, required=False, metavar="ENGINE"))
    listed: bool = field(
        metadata=option(
            "--list", "listed", is_flag=True, help="Say of each engine whether it is installed, and what it tells."
        )
    )
    models: EngineOptions = field(metadata=group(EngineOptions))
    lengths: tuple[int, ...] = field(
        metadata=option(
            "--lengths",
            heading=Heading.MEASURED,
            type=LENGTHS,
            metavar="NUMBERS",
            default="0,1,3,7",
            show_default=True,
            help="Draft tokens to measure with, from 0, plain decoding, on; with --url 0=URL,3=URL those named there.",
        )
    )
    lengths_named: bool = field(metadata=given("lengths"))
    batch_sizes: tuple[int, ...] = field(
        metadata=option(
            "--batch-sizes",
            heading=Heading.MEASURED,
            type=COUNTS,
            metavar="NUMBERS",
            default="1",
            show_default=True,
            help="Texts decoded at the same time.",
        )
    )
    prompts: Path | None = field(metadata=ENGINE_PROMPTS)
    chat_template: str | None = field(metadata=CHAT_TEMPLATE)
    most_prompts: int = field(metadata=max_prompts(24))
    temperature: float = field(
        metadata=option(
            "--temperature",
            heading=Heading.MEASURED,
            type=TEMPERATURE,
            default=0.0,
            show_default=True,
            help="0 is greedy.",
        )
    )
    rounds: int = field(
        metadata=option(
            "--rounds",
            heading=Heading.MEASURED,
            type=COUNT,
            default=3,
            show_default=True,
            help="Times each prompt is decoded.",
        )
    )
    max_new_tokens: int = field(
        metadata=option(
            "--max-new-tokens",
            heading=Heading.MEASURED,
            type=Whole(8, 100_000),
            default=96,
            show_default=True,
            help="Tokens of each text.",
        )
    )
    time_budget_s: float | None = field(
        metadata=option(
            "--time-budget",
            "time_budget_s",
            heading=Heading.MEASURED,
            type=DURATION,
            help="Measure for so long, in place of --rounds.",
        )
    )
    together: bool = field(metadata=TOGETHER)
    resume: bool = field(
        metadata=option("--resume", heading=Heading.OUTPUT, is_flag=True, help="Continue an interrupted probe.")
    )
    force: bool = field(metadata=FORCE)
    path: Path = field(
        metadata=output_option("path", "File to write; - is standard output.", default=PROFILE, show_default=True)
    )

    def resolved(self) -> "ProbeOptions":
        """Return the options with the lengths of the servers at --url, where no others are named."""
        from treeopt.engines.probes.client import addresses

        if self.lengths_named or self.models.url is None or self.one_length:
            return self
        try:
            return replace(self, lengths=tuple(sorted(addresses(self.models.url))))
        except InvalidValueError as error:
            raise click.UsageError(str(error)) from None

    def check(self) -> str:
        """Return the engine's name; click.UsageError where none is named that there is, or models or lengths are missing."""
        engine = check_engine(self.engine)
        if self.one_length:
            self._check_one_length()
            self.served.check(engine)
            return engine
        self.models.check(engine)
        self._check_method()
        if self.lengths[0] != 0 or len(self.lengths) < 2 or list(self.lengths) != sorted(self.lengths):
            raise click.UsageError(
                f"--lengths: expected 0, plain decoding, and others that rise, such as 0,1,3,7. Got {','.join(map(str, self.lengths))}."
            )
        return engine

    def _check_method(self) -> None:
        """Raise click.UsageError for a method that the engine cannot be started with."""
        from treeopt.engines.probes.named import check_method

        try:
            check_method(str(self.engine), self.models.method, url=self.models.url)
        except InvalidValueError as error:
            raise click.UsageError(str(error)) from None

    def _check_one_length(self) -> None:
        """Raise click.UsageError for several lengths of one server, and where answers cannot be kept for the next."""
        if len(self.lengths) != 1:
            raise click.UsageError(
                f"--url: expected one length of one server, such as --lengths 3. Got {','.join(map(str, self.lengths))}: start "
                "it with each in turn, or give a server for each, 0=URL,3=URL."
            )
        if self.journal_file is None:
            raise click.UsageError("--output: expected a file, beside which answers are kept. Name one with -o.")

    @property
    def one_length(self) -> bool:
        """Whether one server is asked with one length, and the profile comes together in several runs."""
        from treeopt.engines.probes.client import is_address

        return self.models.url is not None and is_address(self.models.url)

    @property
    def served(self) -> EngineOptions:
        """The engine, its address that of the one length where there is one."""
        return replace(self.models, url=f"{self.lengths[0]}={self.models.url}") if self.one_length else self.models

    @property
    def journal_file(self) -> Path | None:
        """Where every answer is kept until the profile is written; None beside a stream."""
        return None if is_stream(self.path) else journal_path(self.path)
