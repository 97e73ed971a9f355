"""Options of a serving engine, which `treeopt probe` and `treeopt bench engine` share."""

from dataclasses import dataclass
from typing import Any

import click

from treeopt.cli.options.pair import DTYPE
from treeopt.cli.options.record import Heading, option, refuse_options
from treeopt.cli.options.values import COUNT, DEVICE, DURATION, FILE_TEXT, THREADS, OneOf, whole
from treeopt.engines.clients import registry
from treeopt.engines.clients.client import METHODS, NGRAM, EngineClient, EngineConfig
from treeopt.records.machine import AUTO

PROBED_ENGINE = OneOf("engine", lambda: registry.NAMES)
MODEL_FORMS = "in the engine's own form, such as a GGUF file"


def max_new_tokens_option() -> Any:
    return Heading.MEASURED.option(
        "--max-new-tokens", type=whole(8, 100_000), default=96, help="New tokens per prompt."
    )


def together_option() -> Any:
    return Heading.MEASURED.option(
        "--together",
        is_flag=True,
        help="Run one llama-server per draft length at the same time, so that drift of the machine affects all alike. "
        "Each has its own copy of the models; by default one runs at a time.",
    )


def chat_template_option() -> Any:
    return Heading.PROMPTS.option(
        "--chat-template",
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
    program: str | None = Heading.MODELS.option(
        "--program",
        type=FILE_TEXT,
        metavar="PATH",
        help="llama-server to start; by default the one in the package xllamacpp, otherwise the one on PATH.",
    )
    threads: int | None = Heading.MODELS.option(
        "--threads", type=THREADS, help="CPU threads; by default the engine's choice."
    )
    device: str = Heading.MODELS.option(
        "--device",
        type=DEVICE,
        default=AUTO,
        help="Device of transformers: auto, cpu, cuda, cuda:1, …; auto takes that of the profile, then CUDA, then the CPU.",
    )
    dtype: str = Heading.MODELS.option(
        "--dtype",
        type=DTYPE,
        default=AUTO,
        help="Data type of transformers; auto takes that of the profile, then the checkpoint's on CUDA or float32 on the "
        "CPU.",
    )
    timeout_s: float = Heading.MODELS.option(
        "--timeout", type=DURATION, default="60s", help="Longest wait for the engine to start or to respond."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(ServerOptions):
    method: str | None = option(
        "--method",
        type=click.Choice(METHODS),
        help="Drafting without a draft model: from n-grams of the sequence (ngram), with the head in --draft (eagle3), or with "
        "the target's own module (mtp, only with --url).",
    )
    ngram_tokens: int | None = Heading.MODELS.option(
        "--ngram-tokens",
        type=COUNT,
        help="Tokens that must match, with --method ngram; by default the engine's choice.",
    )

    def check(self, name: str) -> None:
        """Raise click.UsageError unless the options name the engine's models, InvalidValueError for a wrong address or method."""
        for flag, value in (("--device", self.device), ("--dtype", self.dtype)):
            if value != AUTO and name not in registry.PLACED:
                raise click.UsageError(
                    f"{flag}: expected with {', '.join(registry.PLACED)} alone. {name} chooses for itself: leave it out."
                )
        if self.ngram_tokens is not None and (self.method != NGRAM or self.url is not None):
            raise click.UsageError(
                "--ngram-tokens: it is for --method ngram of an engine that treeopt starts. Leave it out."
            )
        if self.url is not None:
            reason = "expected with an engine that treeopt starts. Got --url: leave it out."
            refuse_options(["threads", "together"], reason)
            registry.parse_urls(self.url)
        elif self.method == NGRAM and (self.target is None or self.draft is not None):
            raise click.UsageError(
                "--method ngram: expected --target alone, because nothing else drafts. Leave --draft out."
            )
        elif self.method != NGRAM and (self.target is None or self.draft is None):
            raise click.UsageError("--target, --draft: expected both, or --url of an engine that runs. Give them.")
        registry.check_method(name, self.method, url=self.url)

    def client(self, name: str) -> EngineClient:
        return registry.create_client(name, url=self.url, timeout_s=self.timeout_s, program=self.program)

    def config(self, name: str) -> EngineConfig:
        """Return the engine's configuration without a draft length; raises InvalidValueError for a missing device."""
        device = dtype = None
        if name in registry.PLACED and self.target is not None:
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
