"""`treeopt run`: generate text with a tree."""

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.command import Command
from treeopt.cli.identity import identity_here, warn_of_tree
from treeopt.cli.inputs import read_any_tree
from treeopt.cli.options import (
    PairOptions,
    chat_option,
    checked_rule,
    file,
    lossy_option,
    pair_options,
    planned_rule,
    prompt_tokens,
)
from treeopt.cli.sampling_options import sampling_options
from treeopt.cli.text import counted
from treeopt.cli.values import COUNT, RULE, SEED, TEXT
from treeopt.cli.waiting import patience
from treeopt.errors import TreeoptError
from treeopt.records.rules import LOSSY_RULES
from treeopt.records.sampling import Sampling

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair

NEW_TOKENS = 256


@click.command(cls=Command)
@click.argument("tree", type=file)
@click.option("--prompt", type=TEXT, required=True, help="Text to continue.")
@chat_option
@click.option(
    "--max-new-tokens",
    type=COUNT,
    help=f"Most tokens to generate; by default {NEW_TOKENS}, or as many as the models' longest text leaves room for.",
)
@click.option("--rule", type=RULE, help="Verification rule; by default the one that the tree was planned for.")
@lossy_option
@click.option("--stop", type=TEXT, multiple=True, help="Text that ends the continuation; may be given more than once.")
@sampling_options
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Of all randomness: above temperature 0 it makes the text."
)
@pair_options
def run(
    tree: Path,
    prompt: str,
    chat: bool,
    max_new_tokens: int | None,
    rule: str | None,
    lossy: bool,
    stop: tuple[str, ...],
    sampling: Sampling,
    draft_sampling: Sampling | None,
    seed: int,
    pair: PairOptions,
) -> None:
    """Generate a text with a tree.

    It is printed as it is generated: the prompt and how it goes on, with --chat the answer to a message.
    The text is what the target alone would write: at temperature 0 the same, above it of the same law.  Only with
    --lossy, and a lossy rule, it is not.
    """
    if "" in stop:
        raise click.UsageError("--stop: expected a text. Got an empty one.")
    planned = read_any_tree(tree)
    rule = checked_rule(rule or planned_rule(planned), lossy=lossy)
    models = pair.load()
    warn_of_tree(tree, planned.provenance, identity_here(models))
    tokens = prompt_tokens(models.tokenizer, prompt, chat=chat)
    limit = _new_tokens(models, len(tokens), max_new_tokens)
    with patience("preparing"):
        from treeopt.runtime import Decoder

        decoder = Decoder(
            models.target,
            models.draft,
            planned.tree,
            rule=rule,
            **asdict(sampling),
            draft_sampling=draft_sampling,
            lossy=lossy,
            seed=seed,
            max_text_tokens=len(tokens) + limit,
        )
    steps = decoder.steps(tokens, limit, stop=[models.tokenizer.encode_inner(text) for text in stop])
    if not chat:
        click.echo(prompt, nl=False)
    told = _print_text(models, steps, after=tokens)
    if rule in LOSSY_RULES and not sampling.greedy:
        click.echo(f"Rule {rule} is lossy: this text does not follow the target's law.", err=True)
    click.echo(told, err=True)


def _new_tokens(models: "ModelPair", prompt_tokens: int, asked: int | None) -> int:
    """Return how many tokens to generate: as asked, or the default where the models' longest text has room for it.

    Raises TreeoptError where a prompt leaves no room, or less than was asked for.
    """
    from treeopt.runtime.decode_loop import trained_tokens

    longest = trained_tokens(models.target, models.draft)
    room = longest - prompt_tokens
    if room < 1:
        raise TreeoptError(
            f"--prompt: expected at most {longest - 1} tokens, because the models were trained on texts of {longest}. "
            f"Got {prompt_tokens}: give a shorter one."
        )
    if asked is not None and asked > room:
        raise TreeoptError(
            f"--max-new-tokens: expected at most {room} after a prompt of {prompt_tokens} tokens, because the models "
            f"were trained on texts of {longest}. Got {asked}: ask for fewer, or give a shorter prompt."
        )
    return asked or min(NEW_TOKENS, room)


def _print_text(models: "ModelPair", steps: Iterable[list[int]], *, after: list[int]) -> str:
    """Print the text of some steps as it comes, and return in one line how many and how fast they were."""
    counts: list[int] = []
    start_s = time.perf_counter()
    ends = models.target.config.end_tokens
    for piece in models.tokenizer.stream(_counted(steps, counts, ends), after=after):
        click.echo(piece, nl=False)
    seconds = time.perf_counter() - start_s
    click.echo()
    count = sum(counts)
    per_step = count / max(1, len(counts))
    return f"{counted(count, 'token')} in {counted(len(counts), 'step')}, {per_step:.2f} per step, {count / seconds:.0f} per second"


def _counted(steps: Iterable[list[int]], counts: list[int], ends: Collection[int]) -> Iterator[int]:
    """Yield the tokens of all steps, but for those that end a text, and note how many each had with them."""
    for tokens in steps:
        counts.append(len(tokens))
        yield from (token for token in tokens if token not in ends)
