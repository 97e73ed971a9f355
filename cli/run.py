"""`treeopt run`: generate text with a tree."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

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
from treeopt.cli.waiting import patience
from treeopt.rules import LOSSY_RULES
from treeopt.sampling import Sampling


@click.command()
@click.argument("tree", type=file)
@click.option("--prompt", required=True, help="Text to continue.")
@chat_option
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--rule", help="Verification rule; by default the one that the tree was planned for.")
@lossy_option
@click.option("--stop", multiple=True, help="Text that ends the continuation; may be given more than once.")
@sampling_options
@click.option("--seed", type=int, default=0, show_default=True)
@pair_options
def run(
    tree: Path,
    prompt: str,
    chat: bool,
    max_new_tokens: int,
    rule: str | None,
    lossy: bool,
    stop: tuple[str, ...],
    sampling: Sampling,
    draft_sampling: Sampling | None,
    seed: int,
    pair: PairOptions,
) -> None:
    """Continue a text with TREE; it is printed as it is generated, with --chat the answer to a message.

    The text is what the target alone would write: at temperature 0 the same, above it of the same law.  Only with
    --lossy, and a lossy rule, it is not.
    """
    if "" in stop:
        raise click.UsageError("--stop: expected a text. Got an empty one.")
    from treeopt.runtime import Decoder
    from treeopt.runtime.decode_loop import trained_tokens

    planned = read_any_tree(tree)
    rule = checked_rule(rule or planned_rule(planned), lossy=lossy)
    models = pair.load()
    tokens = prompt_tokens(models.tokenizer, prompt, chat=chat)
    trained = trained_tokens(models.target, models.draft)
    with patience("preparing"):
        decoder = Decoder(
            models.target,
            models.draft,
            planned.tree,
            rule=rule,
            **asdict(sampling),
            draft_sampling=draft_sampling,
            lossy=lossy,
            seed=seed,
            max_text_tokens=min(trained, len(tokens) + max_new_tokens),
        )
    counts: list[int] = []
    start_s = time.perf_counter()
    steps = decoder.steps(tokens, max_new_tokens, stop=[models.tokenizer.encode_inner(text) for text in stop])
    if not chat:
        click.echo(prompt, nl=False)
    for piece in models.tokenizer.stream(_counted(steps, counts), after=tokens):
        click.echo(piece, nl=False)
        sys.stdout.flush()
    seconds = time.perf_counter() - start_s
    click.echo()
    count = sum(counts)
    if rule in LOSSY_RULES and not sampling.greedy:
        click.echo(f"Rule {rule} is lossy: this text does not follow the target's law.", err=True)
    click.echo(
        f"{count} tokens in {len(counts)} steps, {count / max(1, len(counts)):.2f} per step, {count / seconds:.0f} per second",
        err=True,
    )


def _counted(steps: Iterable[list[int]], counts: list[int]) -> Iterator[int]:
    """Yield the tokens of all steps and note how many each had."""
    for tokens in steps:
        counts.append(len(tokens))
        yield from tokens
