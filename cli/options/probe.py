"""Options of `treeopt probe`, and the options of an engine that `treeopt bench engine` shares."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options.inputs import PROFILE, REPLACE_FILES, force_option, output_option
from treeopt.cli.options.pair import DTYPE
from treeopt.cli.options.prompts import max_prompts_option, prompts_option
from treeopt.cli.options.record import Heading, argument, group, is_given, option, refuse_options
from treeopt.cli.options.values import (
    COUNT,
    COUNTS,
    DEVICE,
    DURATION,
    FILE_TEXT,
    LENGTHS,
    TEMPERATURE,
    THREADS,
    OneOf,
    whole,
)
from treeopt.cli.outputs import checkpoint_path
from treeopt.engines.clients.client import METHODS, NGRAM
from treeopt.records.machine import AUTO

if TYPE_CHECKING:
    from treeopt.engines.clients.client import EngineClient, EngineConfig


def _engine_names() -> Sequence[str]:
    from treeopt.engines.clients.registry import NAMES

    return NAMES


PROBED_ENGINE = OneOf("engine", _engine_names)
MODEL_FORMS = "in the engine's own form, such as a GGUF file"


def max_new_tokens_option() -> Any:
    return option(
        "--max-new-tokens", heading=Heading.MEASURED, type=whole(8, 100_000), default=96, help="New tokens per prompt."
    )


def together_option() -> Any:
    return option(
        "--together",
        heading=Heading.MEASURED,
        is_flag=True,
        help="Run one llama-server per draft length at the same time, so that drift of the machine affects all alike. "
        "Each has its own copy of the models; by default one runs at a time.",
    )


def chat_template_option() -> Any:
    return option(
        "--chat-template",
        heading=Heading.PROMPTS,
        type=click.Path(exists=True, file_okay=False),
        metavar="FOLDER",
        help="Model folder whose chat template is applied to each prompt; by default none in treeopt probe, and that of "
        "the profile in treeopt bench engine.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where an engine runs, and its models."""

    target: str | None = option("--target", type=FILE_TEXT, metavar="MODEL", help=f"Target model {MODEL_FORMS}.")
    draft: str | None = option("--draft", type=FILE_TEXT, metavar="MODEL", help=f"Draft model {MODEL_FORMS}.")
    url: str | None = option(
        "--url",
        metavar="URLS",
        help="Addresses of running engines, one for each draft length, 0=URL,3=URL; treeopt probe also takes a single "
        "address, with one length in --lengths. Nothing else is contacted.",
    )
    program: str | None = option(
        "--program",
        heading=Heading.MODELS,
        type=FILE_TEXT,
        metavar="PATH",
        help="llama-server to start; by default the one in the package xllamacpp, otherwise the one on PATH.",
    )
    threads: int | None = option(
        "--threads", heading=Heading.MODELS, type=THREADS, help="CPU threads; by default the engine's choice."
    )
    device: str = option(
        "--device",
        heading=Heading.MODELS,
        type=DEVICE,
        default=AUTO,
        help="Device of transformers: auto, cpu, cuda, cuda:1, …; auto takes that of the profile, then CUDA, then the CPU.",
    )
    dtype: str = option(
        "--dtype",
        heading=Heading.MODELS,
        type=DTYPE,
        default=AUTO,
        help="Data type of transformers; auto takes that of the profile, then the checkpoint's on CUDA or float32 on the "
        "CPU.",
    )
    timeout_s: float = option(
        "--timeout",
        heading=Heading.MODELS,
        type=DURATION,
        default="60s",
        help="Longest wait for the engine to start or to respond.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(ServerOptions):
    method: str | None = option(
        "--method",
        type=click.Choice(METHODS),
        help="Drafting without a draft model: from n-grams of the sequence (ngram), with the head in --draft (eagle3), or with "
        "the target's own module (mtp, only with --url).",
    )
    ngram_tokens: int | None = option(
        "--ngram-tokens",
        heading=Heading.MODELS,
        type=COUNT,
        help="Tokens that must match, with --method ngram; by default the engine's choice.",
    )

    def check(self, name: str) -> None:
        """Raise click.UsageError unless the options name the engine's models, InvalidValueError for a wrong address or method."""
        from treeopt.engines.clients.registry import PLACED, check_method, parse_urls

        for flag, value in (("--device", self.device), ("--dtype", self.dtype)):
            if value != AUTO and name not in PLACED:
                raise click.UsageError(
                    f"{flag}: expected with {', '.join(PLACED)} alone. {name} chooses for itself: leave it out."
                )
        if self.ngram_tokens is not None and (self.method != NGRAM or self.url is not None):
            raise click.UsageError(
                "--ngram-tokens: it is for --method ngram of an engine that treeopt starts. Leave it out."
            )
        if self.url is not None:
            reason = "expected with an engine that treeopt starts. Got --url: leave it out."
            refuse_options(["threads", "together"], reason)
            parse_urls(self.url)
        elif self.method == NGRAM and (self.target is None or self.draft is not None):
            raise click.UsageError(
                "--method ngram: expected --target alone, because nothing else drafts. Leave --draft out."
            )
        elif self.method != NGRAM and (self.target is None or self.draft is None):
            raise click.UsageError("--target, --draft: expected both, or --url of an engine that runs. Give them.")
        check_method(name, self.method, url=self.url)

    def client(self, name: str) -> "EngineClient":
        from treeopt.engines.clients.registry import create_client

        return create_client(name, url=self.url, timeout_s=self.timeout_s, program=self.program)

    def config(self, name: str) -> "EngineConfig":
        """Return the engine's configuration without a draft length; raises InvalidValueError for a missing device."""
        from treeopt.engines.clients.client import EngineConfig
        from treeopt.engines.clients.registry import PLACED

        device = dtype = None
        if name in PLACED and self.target is not None:
            from treeopt.runtime.models.load import resolve_device, resolve_dtype

            torch_device = resolve_device(self.device)
            device, dtype = str(torch_device), resolve_dtype(self.target, self.dtype, torch_device)
        return EngineConfig(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    engine: str = argument(type=PROBED_ENGINE, metavar="ENGINE")
    models: EngineOptions = group(EngineOptions)
    lengths: tuple[int, ...] = option(
        "--lengths",
        heading=Heading.MEASURED,
        type=LENGTHS,
        default="0,1,3,7",
        help="Draft lengths to measure, starting with 0 for plain decoding; with --url 0=URL,3=URL, the lengths there.",
    )
    batch_sizes: tuple[int, ...] = option(
        "--batch-sizes",
        heading=Heading.MEASURED,
        type=COUNTS,
        default="1",
        help="Batch sizes to measure, separated by commas.",
    )
    prompts: Path | None = prompts_option()
    chat_template: str | None = chat_template_option()
    max_prompts: int = max_prompts_option(24)
    temperature: float = option(
        "--temperature",
        heading=Heading.MEASURED,
        type=TEMPERATURE,
        default=0.0,
        help="Sampling temperature; 0 is greedy.",
    )
    rounds: int = option(
        "--rounds",
        heading=Heading.MEASURED,
        type=COUNT,
        default=3,
        help="How often each prompt is decoded, at most if there is a --time-budget.",
    )
    max_new_tokens: int = max_new_tokens_option()
    time_budget_s: float | None = option(
        "--time-budget",
        heading=Heading.MEASURED,
        type=DURATION,
        help="Start no further round after this time, such as 90s or 3m.",
    )
    together: bool = together_option()
    resume: bool = option(
        "--resume", heading=Heading.OUTPUT, is_flag=True, help="Continue an interrupted probe, if there is one."
    )
    force: bool = force_option(REPLACE_FILES)
    path: Path = output_option("Profile to write; - for standard output.", default=PROFILE)

    def with_server_lengths(self) -> "ProbeOptions":
        """Return the options with the lengths in `--url`, unless `--lengths` is given."""
        from treeopt.engines.clients.registry import parse_urls

        if is_given("lengths") or self.models.url is None or self.is_one_length:
            return self
        return replace(self, lengths=tuple(sorted(parse_urls(self.models.url))))

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
        from treeopt.engines.clients.registry import is_single_url

        return self.models.url is not None and is_single_url(self.models.url)

    @property
    def server(self) -> EngineOptions:
        """The engine's options, a single address with its length."""
        if not self.is_one_length:
            return self.models
        return replace(self.models, url=f"{self.lengths[0]}={self.models.url}")
