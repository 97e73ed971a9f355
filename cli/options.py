"""Options that several commands share, and the models that they name."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treeopt.cli.outputs import InputFile, OutputFile
from treeopt.cli.text import counted
from treeopt.cli.values import MEASURED_RULE, TEMPERATURE, TEXT, THREADS, Whole
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.records.rules import check_rule

if TYPE_CHECKING:
    from treeopt.records.profile import Profile
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.texts.tokenizer import Tokenizer
    from treeopt.trees import TreeFile

Function = TypeVar("Function", bound=Callable[..., Any])

file = InputFile()
output = OutputFile(stream=True)
output_file = OutputFile(stream=False)
PROFILE = Path("profile.yaml")
"""What was measured, where no other file is named."""
MAX_PROMPT_TOKENS = 512
"""Tokens of a prompt that are used, the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Which pair, and how it is run."""

    target: Path | None
    draft: Path | None
    device: str
    dtype: str
    threads: int | None
    offload: Path | None = None
    """Where weights of the target lie that no device holds."""
    max_memory: tuple[tuple[str, str], ...] = ()
    """Pairs of a device and what of the target it may hold."""
    tensor_parallel: bool = False
    """Whether the target is split over the processes that torchrun started."""
    quiet: bool = False
    """Whether nothing is said of the pair."""

    def load(self, *, text_tokens: int = 0) -> "ModelPair":
        """Load the pair and say on standard error what is special about it; torch is imported here and not before.

        A pair that cannot take a text of `text_tokens` is refused before its weights are loaded, where that is known.
        """
        from treeopt.runtime.models.pair import load_pair

        placement = None
        if self.offload is not None or self.max_memory:
            from treeopt.runtime.models.hf.loading import Placement

            placement = Placement(max_memory=self.max_memory, offload_folder=self.offload)
        pair = load_pair(
            self.target,
            self.draft,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            placement=placement,
            tensor_parallel=self.tensor_parallel,
            text_tokens=text_tokens,
        )
        for note in () if self.quiet else pair.notes:
            click.echo(note, err=True)
        return pair


class MemoryLimits(click.ParamType[tuple[tuple[str, str], ...]]):
    """What each device may hold, such as `cpu=4GB,0=20GiB`: pairs of a device, GPUs by their number, and a size."""

    name = "limits"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, str], ...]:
        """Return the pairs; a usage error for anything else."""
        if isinstance(value, tuple):
            return value
        found: dict[str, str] = {}
        for part in str(value).split(","):
            match = MEMORY_LIMIT.fullmatch(part.strip())
            if match is None:
                self.fail(f"expected limits such as cpu=4GB,0=20GiB. Got {part.strip()!r}.", param, ctx)
            if match["device"] in found:
                self.fail(f"expected one limit for each device. Got two for {match['device']}.", param, ctx)
            found[match["device"]] = match["size"]
        return tuple(found.items())


MEMORY_LIMIT = re.compile(r"(?P<device>cpu|0|[1-9]\d{0,2})=(?P<size>\d{1,9}[KMG]i?B)", re.ASCII)


def pair_options(function: Function) -> Function:
    """Add the options that choose a pair; the command receives them as one `pair`."""
    names = [field.name for field in fields(PairOptions) if field.name not in ("tensor_parallel", "quiet")]

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        return function(*args, pair=PairOptions(**{name: kwargs.pop(name) for name in names}), **kwargs)

    options = [
        click.option(
            "--target",
            type=file,
            metavar="MODEL",
            help="Target model, a folder or a name on the Hugging Face hub; by default the bundled pair.",
        ),
        click.option("--draft", type=file, metavar="MODEL", help="Draft model, a folder or a name on the hub."),
        click.option(
            "--device",
            type=TEXT,
            metavar="DEVICE",
            default="cpu",
            show_default=True,
            help="Where to run: cpu, cuda, cuda:1, …",
        ),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16", "float16"]),
            default="float32",
            show_default=True,
            help="Number format to run in.",
        ),
        click.option("--threads", type=THREADS, help="CPU threads; by default torch's choice."),
        click.option(
            "--offload",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Where to lay weights of the target that no device holds.",
        ),
        click.option(
            "--max-memory",
            type=MemoryLimits(),
            default=(),
            metavar="LIMITS",
            help="What of the target each device may hold, such as cpu=4GB,0=20GiB.",
        ),
    ]
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Which prompts, and how they are put to the model."""

    path: Path | None
    chat: bool
    most: int

    def load(self, tokenizer: "Tokenizer") -> list[list[int]]:
        """Return the tokens of every prompt; say on standard error how many of a file are taken, and how many cut."""
        from treeopt.texts.prompts import load_prompts
        from treeopt.texts.tokenizer import UNFINISHED

        if self.path is None:
            texts = load_prompts(most=self.most)
        else:
            texts = load_prompts(self.path, most=self.most)
            click.echo(f"{self.path}: {len(texts)} prompts taken, at most {self.most} (--max-prompts).", err=True)
        cut, prompts = 0, []
        for text in texts:
            tokens = tokenizer.encode_inner(text)
            if len(tokens) > MAX_PROMPT_TOKENS:
                cut += 1
                text = tokenizer.decode(tokens[:MAX_PROMPT_TOKENS]).rstrip(UNFINISHED)
            prompts.append(prompt_tokens(tokenizer, text, chat=self.chat))
        if cut:
            click.echo(f"{counted(cut, 'prompt')} cut to the first {MAX_PROMPT_TOKENS} tokens.", err=True)
        return prompts


def prompt_options(function: Function) -> Function:
    """Add the options that choose prompts; the command receives them as one `prompts`."""

    @functools.wraps(function)
    def command(*args: Any, prompts: Path | None, chat: bool, max_prompts: int, **kwargs: Any) -> Any:
        return function(*args, prompts=PromptOptions(path=prompts, chat=chat, most=max_prompts), **kwargs)

    options = [
        click.option(
            "--prompts",
            type=file,
            metavar="PATH",
            help="Prompts, a .txt, .json or .jsonl file or a datasets folder; by default the bundled ones.",
        ),
        chat_option,
        click.option(
            "--max-prompts",
            type=Whole(3, 4096),
            default=64,
            show_default=True,
            help="Prompts taken, the first ones; every 4th is kept for benchmarks.",
        ),
    ]
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]


def prompt_tokens(tokenizer: "Tokenizer", text: str, *, chat: bool) -> list[int]:
    """Return the tokens of a prompt as it is, or as a user's message in the model's chat template."""
    return tokenizer.chat(text) if chat else tokenizer.encode(text)


def profile_options(function: Function, *, rule_help: str = "Verification rule; by default the tree's.") -> Function:
    """Add the options that choose a profile and, of what it holds, one rule and temperature.

    Args:
        function: the command.
        rule_help: what the command takes the rule for, and which it takes by default.
    """
    options = [
        click.option(
            "--profile",
            "profile_path",
            type=file,
            default=PROFILE,
            show_default=True,
            help="What was measured, written by treeopt profile.",
        ),
        click.option("--rule", type=MEASURED_RULE, help=rule_help),
        click.option("--temperature", type=TEMPERATURE, help="Temperature; by default the first in the profile."),
    ]
    for option in reversed(options):
        option(function)
    return function


def record_beside(profile_path: Path) -> Path:
    """Return where the draft record of a profile lies, unless it was given another place."""
    return profile_path.with_suffix(".record.npz")


def load_profile(path: Path) -> "Profile":
    """Return the profile of a file; where there is none, say how to make one."""
    from treeopt.records.profile import Profile

    if not path.exists():
        raise TreeoptError(f"{path}: no such file. Run treeopt profile first, or name another with --profile.")
    return Profile.load(path)


def checked_rule(rule: str, *, lossy: bool, option: str = "--rule") -> str:
    """Return a rule that can be run; click.UsageError for an unknown one, and for a lossy one without --lossy."""
    try:
        check_rule(rule, lossy=lossy)
    except InvalidValueError as error:
        raise click.UsageError(f"{option}: {str(error).partition(': ')[2]}") from None
    return rule


def planned_rule(planned: "TreeFile") -> str:
    """Return the rule that a tree was planned for, `sequoia` where its file does not say."""
    return (planned.provenance and planned.provenance.rule) or "sequoia"


lossy_option = click.option("--lossy", is_flag=True, help="Allow rules that change the text's law.")
chat_option = click.option(
    "--chat", is_flag=True, help="Put prompts as a user's messages, by the model's chat template."
)
