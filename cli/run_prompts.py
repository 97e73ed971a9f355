"""`treeopt run --prompts`: one output for each prompt of a file, decoded in batches."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import click

from treeopt.cli.command import name_options
from treeopt.cli.options.inputs import file, output_option
from treeopt.cli.options.prompts import tokenize_prompt
from treeopt.cli.options.record import Heading, option, refuse_options
from treeopt.cli.options.values import MAX_BATCH_SIZE, whole
from treeopt.cli.outputs import check_checkpoint, checkpoint_path
from treeopt.cli.terminal import progress
from treeopt.errors import InterruptionError, TreeoptError
from treeopt.files.atomic_files import STANDARD_STREAM, write_text
from treeopt.report.text import counted
from treeopt.texts.prompts import PlacedPrompt, load_all_prompts
from treeopt.trees.tree_schedule import TreeSchedule

if TYPE_CHECKING:
    from treeopt.profiler import Checkpoint
    from treeopt.runtime import Decoder
    from treeopt.runtime.decoding.batch import GenerationRequest
    from treeopt.runtime.models.pair import ModelPair

NEW_TOKENS = 256
"""Default number of new tokens."""
KIND = "text"
"""Kind of checkpoint entries: the number of steps of a finished sequence, then its tokens."""
OPTIONS = {"prompt": "prompt", "max_new_tokens": "--max-new-tokens"}
"""Arguments of the decoder in error messages of single prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsOptions:
    """Many prompts instead of one."""

    prompts: Path | None = option(
        "--prompts",
        type=file,
        metavar="PATH",
        help="Prompts to continue, instead of --prompt: a .txt, .json or .jsonl file, or a datasets folder.",
    )
    batch_size: int = Heading.PROMPTS.option(
        "--batch-size", type=whole(1, MAX_BATCH_SIZE), default=8, help="Sequences decoded together, with --prompts."
    )
    path: Path = output_option(
        "File to write, with --prompts, one line of JSON per prompt; - for standard output.",
        default=STANDARD_STREAM,
    )
    resume: bool = Heading.OUTPUT.option(
        "--resume", is_flag=True, help="Continue an interrupted run, if there is one, with --prompts."
    )

    def check(self, *, prompt: str | None, force: bool) -> None:
        """Raise click.UsageError for options that contradict each other, TreeoptError for an existing checkpoint."""
        if (prompt is None) == (self.prompts is None):
            got = "neither" if prompt is None else "both"
            raise click.UsageError(f"--prompt, --prompts: expected one of the two. Got {got}.")
        if self.prompts is None:
            refuse_options(["batch_size", "path", "resume"], "expected --prompts with it. Got --prompt.")
        check_checkpoint(self.path, resume=self.resume, force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What is decoded, and with what."""

    options: PromptsOptions
    models: "ModelPair"
    new_decoder: Callable[[int], "Decoder"]
    """Returns a decoder for sequences of up to this many tokens."""
    stop: Sequence[Sequence[int]]
    chat: bool
    max_new_tokens: int | None
    conditions: Mapping[str, Any]
    """What determines the outputs, except for the prompts."""
    schedule: TreeSchedule | None = None
    """The tree by batch size; None for the decoder's own."""


def run_prompts(generation: Generation) -> None:
    """Decode all prompts and write one line for each; afterwards raise TreeoptError if some could not be decoded."""
    path = generation.options.prompts
    assert path is not None  # checked by the command
    prompts = load_all_prompts(path)
    requests = _requests(generation, prompts)
    checkpoint = _open_checkpoint(generation, requests)
    start_s = time.perf_counter()
    errors = _decode(generation, requests, checkpoint)
    seconds = time.perf_counter() - start_s
    sequences = checkpoint.samples(KIND)
    rows = [
        _output_row(generation, request.token_ids, sequences.get(number), errors.get(number))
        for number, request in enumerate(requests)
    ]
    write_text(generation.options.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    checkpoint.remove()
    done = sum(row["text"] is not None for row in rows)
    tokens, steps = sum(row["tokens"] for row in rows), sum(row["steps"] for row in rows)
    click.echo(
        f"{counted(tokens, 'token')} of {counted(done, 'sequence')} in {counted(steps, 'step')}, "
        f"{tokens / max(1, steps):.2f} per step; this run took {seconds:.1f} s.",
        err=True,
    )
    for number, error in sorted(errors.items()):
        click.echo(f"{path}: {prompts[number].place}: {error}", err=True)
    if errors:
        raise TreeoptError(f"{path}: {len(errors)} of {counted(len(prompts), 'prompt')} could not be continued.")


def _requests(generation: Generation, prompts: Sequence[PlacedPrompt]) -> list["GenerationRequest"]:
    """Return a request for each prompt; a blank prompt has no tokens."""
    from treeopt.runtime.decoding.batch import GenerationRequest
    from treeopt.runtime.decoding.target_sequence import sequence_seed

    tokenizer, longest = generation.models.tokenizer, generation.models.target.config.max_positions
    requests = []
    for number, (_, text) in enumerate(prompts, start=1):  # number 0 is the seed of --prompt
        tokens = tokenize_prompt(tokenizer, text, chat=generation.chat) if text.strip() else []
        new_tokens = generation.max_new_tokens or max(1, min(NEW_TOKENS, longest - len(tokens)))
        seed = sequence_seed(generation.conditions["seed"], number)
        requests.append(GenerationRequest(tokens, new_tokens, generation.stop, seed))
    return requests


def _open_checkpoint(generation: Generation, requests: Sequence["GenerationRequest"]) -> "Checkpoint":
    from treeopt.profiler import Checkpoint

    prompts = crc32(repr([list(request.token_ids) for request in requests]).encode())
    heading = json.dumps({**generation.conditions, "prompts": prompts}, sort_keys=True)
    return Checkpoint(checkpoint_path(generation.options.path), heading, resume=generation.options.resume)


def _decode(
    generation: Generation, requests: Sequence["GenerationRequest"], checkpoint: "Checkpoint"
) -> dict[int, str]:
    """Decode the requests that the checkpoint lacks, store each finished sequence there, and return errors by number."""
    finished = checkpoint.samples(KIND)
    numbers = [number for number in range(len(requests)) if number not in finished]
    if not numbers:
        return {}
    pending = [requests[number] for number in numbers]
    tokens: dict[int, list[int]] = {number: [] for number in numbers}
    steps, errors = dict.fromkeys(numbers, 0), dict[int, str]()
    options, longest = generation.options, generation.models.target.config.max_positions
    capacity = max(min(longest, len(request.token_ids) + request.max_new_tokens) for request in pending)
    with progress("preparing"):
        decoder = generation.new_decoder(capacity)
    try:
        with progress("decoding", unit="sequence", total=len(pending)) as tick:
            for step in decoder.stream_all(pending, batch_size=options.batch_size, schedule=generation.schedule):
                number = numbers[step.request]
                tokens[number] += step.tokens
                steps[number] += bool(step.tokens)
                if step.error is not None:
                    errors[number] = name_options(step.error, OPTIONS)
                elif step.finished:
                    checkpoint.append(KIND, number, (float(steps[number]), *map(float, tokens.pop(number))))
                if step.finished:
                    tick()
    except KeyboardInterrupt:
        if (checkpoint_file := checkpoint_path(options.path)) is None or not checkpoint_file.exists():
            raise
        raise InterruptionError(
            f"interrupted. {len(checkpoint.samples(KIND))} of {counted(len(requests), 'sequence')} are saved in "
            f"{checkpoint_file}; run the same command with --resume."
        ) from None
    return errors


def _output_row(
    generation: Generation, prompt: Sequence[int], sequence: list[float] | None, error: str | None
) -> dict[str, Any]:
    """Return one line of the output; `sequence` is a checkpoint entry."""
    row: dict[str, Any] = {"tool": "treeopt", "text": None, "tokens": 0, "steps": 0}
    if sequence is None:
        return row if error is None else {**row, "error": error}
    steps, *tokens = map(int, sequence)
    ends = generation.models.target.config.end_tokens
    shown = (token for token in tokens if token not in ends)
    text = "".join(generation.models.tokenizer.stream(shown, after=list(prompt)))
    return {**row, "text": text, "tokens": len(tokens), "steps": steps}
