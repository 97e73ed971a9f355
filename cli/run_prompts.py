"""`treeopt run --prompts`: a text for every prompt of a file, several at a time."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.command import in_options
from treeopt.cli.options.inputs import file, output_option
from treeopt.cli.options.prompts import prompt_tokens
from treeopt.cli.options.record import Heading, given, option
from treeopt.cli.options.values import Whole
from treeopt.cli.outputs import Named, check_outputs
from treeopt.cli.profile_files import check_checkpoint, journal_path
from treeopt.cli.waiting import patience
from treeopt.errors import InterruptionError, TreeoptError
from treeopt.files.whole_files import STANDARD_STREAM, is_stream, write_text
from treeopt.report.text import counted

if TYPE_CHECKING:
    from treeopt.profiler import Journal
    from treeopt.runtime import Decoder
    from treeopt.runtime.decoding.batch import TextRequest
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.texts.prompts import PlacedPrompt
    from treeopt.trees.tree_schedule import TreeSchedule

NEW_TOKENS = 256
MOST_TEXTS = 1024
KIND = "text"
"""Of a text among what is kept of an unfinished run: the steps that it took, and its tokens."""

NAMES = {"prompt": "prompt", "max_new_tokens": "--max-new-tokens"}
"""What errors of single texts call the decoder's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralOptions:
    """Many prompts in place of one."""

    prompts: Path | None = field(
        metadata=option(
            "--prompts",
            type=file,
            metavar="PATH",
            help="Texts to continue, a .txt, .json or .jsonl file or a datasets folder, in place of --prompt.",
        )
    )
    batch_size: int = field(
        metadata=option(
            "--batch-size",
            heading=Heading.PROMPTS,
            type=Whole(1, MOST_TEXTS),
            default=8,
            show_default=True,
            help="With --prompts, texts decoded at a time.",
        )
    )
    path: Path = field(
        metadata=output_option(
            "path",
            "With --prompts, file to write, one line of JSON a prompt; - is standard output.",
            default=STANDARD_STREAM,
            show_default=True,
        )
    )
    resume: bool = field(
        metadata=option(
            "--resume", heading=Heading.OUTPUT, is_flag=True, help="With --prompts, continue an interrupted run."
        )
    )
    batch_size_given: bool = field(metadata=given("batch_size"))
    path_given: bool = field(metadata=given("path"))

    @property
    def kept_path(self) -> Path | None:
        """Where the texts of an unfinished run are kept; None where the output is a stream."""
        return None if is_stream(self.path) else journal_path(self.path)

    @property
    def texts(self) -> int:
        """Those that are decoded at a time."""
        return 1 if self.prompts is None else self.batch_size

    def check(self, *, prompt: str | None, force: bool) -> None:
        """Raise click.UsageError for options that do not fit together, TreeoptError for a checkpoint that would be lost."""
        if (prompt is None) == (self.prompts is None):
            got = "neither" if prompt is None else "both"
            raise click.UsageError(f"--prompt, --prompts: expected one of the two. Got {got}.")
        only = {"--batch-size": self.batch_size_given, "--output": self.path_given, "--resume": self.resume}
        for name, there in only.items():
            if there and self.prompts is None:
                raise click.UsageError(f"{name}: expected --prompts with it. Got --prompt.")
        if self.resume and self.kept_path is None:
            raise click.UsageError("--resume: expected -o FILE, beside which unfinished texts are kept. Name it.")
        if self.kept_path is not None:
            check_outputs([Named("--output", self.kept_path)])
            check_checkpoint([self.kept_path], resume=self.resume, force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsRequest:
    """What is to be decoded, with what."""

    options: SeveralOptions
    models: "ModelPair"
    new_decoder: Callable[[int], "Decoder"]
    """Makes the decoder of texts up to so many tokens."""
    stop: Sequence[Sequence[int]]
    chat: bool
    max_new_tokens: int | None
    conditions: Mapping[str, Any]
    """What makes the texts what they are, the prompts left out."""
    schedule: "TreeSchedule | None" = None
    """The tree by the number of texts; None for the decoder's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What became of a prompt."""

    text: str | None = None
    """How it goes on; None where it could not be decoded."""
    tokens: int = 0
    steps: int = 0
    error: str | None = None

    def line(self) -> str:
        """Return it as a line of JSON."""
        found: dict[str, object] = {
            "tool": "treeopt",
            "text": self.text,
            "tokens": self.tokens,
            "steps": self.steps,
        }
        return json.dumps(found if self.error is None else {**found, "error": self.error}, ensure_ascii=False)


def run_prompts(asked: PromptsRequest) -> None:
    """Decode all prompts and write a line for each; raises TreeoptError at the end where some could not be decoded."""
    from treeopt.texts.prompts import every_prompt

    path = asked.options.prompts
    assert path is not None
    prompts = every_prompt(path)
    requests = _requests(asked, prompts)
    journal = _journal(asked, requests)
    start_s = time.perf_counter()
    errors = _decode(asked, requests, journal)
    seconds = time.perf_counter() - start_s
    texts = journal.samples(KIND)
    found = [
        _decoded(asked, request.token_ids, texts.get(number), errors.get(number))
        for number, request in enumerate(requests)
    ]
    write_text(asked.options.path, "".join(each.line() + "\n" for each in found))
    journal.remove()
    _tell(found, seconds)
    for number, error in sorted(errors.items()):
        click.echo(f"{path}: {prompts[number].place}: {error}", err=True)
    if errors:
        raise TreeoptError(f"{path}: {len(errors)} of {counted(len(prompts), 'prompt')} could not be continued.")


def _requests(asked: PromptsRequest, prompts: Sequence["PlacedPrompt"]) -> list["TextRequest"]:
    """Return what each prompt is continued by; a blank prompt has no tokens."""
    from treeopt.runtime.decoding.batch import TextRequest
    from treeopt.runtime.decoding.target_text import text_seed

    longest, seed = asked.models.target.config.max_positions, asked.conditions["seed"]
    found = []
    for number, (_, text) in enumerate(prompts, start=1):  # the first has the seed of a text of its own
        tokens = prompt_tokens(asked.models.tokenizer, text, chat=asked.chat) if text.strip() else []
        new_tokens = asked.max_new_tokens or max(1, min(NEW_TOKENS, longest - len(tokens)))
        found.append(TextRequest(tokens, new_tokens, asked.stop, text_seed(seed, number)))
    return found


def _journal(asked: PromptsRequest, requests: Sequence["TextRequest"]) -> "Journal":
    """Return what is kept of the run so far."""
    from zlib import crc32

    from treeopt.profiler import Journal

    prompts = crc32(repr([list(request.token_ids) for request in requests]).encode())
    heading = json.dumps({**asked.conditions, "prompts": prompts}, sort_keys=True)
    return Journal(asked.options.kept_path, heading, resume=asked.options.resume)


def _decode(asked: PromptsRequest, requests: Sequence["TextRequest"], journal: "Journal") -> dict[int, str]:
    """Decode the texts that are not kept yet, keep each once it has ended, and return why the others could not be."""
    done = journal.samples(KIND)
    left = [number for number in range(len(requests)) if number not in done]
    wanted = [requests[number] for number in left]
    if not left:
        return {}
    tokens: dict[int, list[int]] = {number: [] for number in left}
    steps, errors = dict.fromkeys(left, 0), dict[int, str]()
    with patience("preparing"):
        decoder = asked.new_decoder(_longest(asked, wanted))
    try:
        with patience("decoding", unit="text", total=len(wanted)) as tick:
            for step in decoder.steps_of_all(wanted, batch_size=asked.options.batch_size, schedule=asked.schedule):
                number = left[step.text]
                tokens[number] += step.tokens
                steps[number] += bool(step.tokens)
                if step.error is not None:
                    errors[number] = in_options(step.error, NAMES)
                elif step.ended:
                    journal.append(KIND, number, (float(steps[number]), *map(float, tokens.pop(number))))
                if step.ended:
                    tick()
    except KeyboardInterrupt:
        if asked.options.kept_path is None:
            raise
        ready = len(journal.samples(KIND))
        raise InterruptionError(
            f"interrupted. {ready} of {counted(len(requests), 'text')} are kept in {asked.options.kept_path}; the same "
            "command with --resume goes on from there."
        ) from None
    return errors


def _longest(asked: PromptsRequest, requests: Sequence["TextRequest"]) -> int:
    """Return the tokens of the longest text: no more than the target takes."""
    longest = asked.models.target.config.max_positions
    return max(min(longest, len(each.token_ids) + each.max_new_tokens) for each in requests)


def _decoded(asked: PromptsRequest, prompt: Sequence[int], kept: list[float] | None, error: str | None) -> Decoded:
    """Return what became of a prompt, given what is kept of its text."""
    if kept is None:
        return Decoded(error=error)
    steps, *tokens = map(int, kept)
    ends = asked.models.target.config.end_tokens
    shown = (token for token in tokens if token not in ends)
    text = "".join(asked.models.tokenizer.stream(shown, after=list(prompt)))
    return Decoded(text=text, tokens=len(tokens), steps=steps)


def _tell(found: Sequence[Decoded], seconds: float) -> None:
    """Say how many texts there are, and how fast they came."""
    texts = sum(each.text is not None for each in found)
    tokens, steps = sum(each.tokens for each in found), sum(each.steps for each in found)
    click.echo(
        f"{counted(texts, 'text')} of {counted(tokens, 'token')} in {counted(steps, 'step')}, "
        f"{tokens / max(1, steps):.2f} per step; this run took {seconds:.1f} s.",
        err=True,
    )
